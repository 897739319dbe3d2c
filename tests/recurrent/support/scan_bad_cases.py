"""Calls for which affine_scan must raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.recurrent.support.scan_cases import scan_arguments
from tests.support.bad_arguments import sparse, without_storages, wrong_devices, wrong_dtypes
from tests.support.inputs import Bad, Make, elsewhere, of_dtype

OP = "affine_scan"
T, B, H = SIZES = (4, 3, 2)
SHAPES: dict[str, tuple[int, ...]] = {"keep": SIZES, "add": SIZES, "start": (B, H)}


def run(make: Make, reset: Tensor | None = None, **replaced: Tensor) -> Any:
    good = dict(zip(SHAPES, scan_arguments(make, SIZES).args, strict=True))
    return torch.ops.treadle.affine_scan(**(good | replaced), reset=reset)


def changed(make: Make, name: str, change: Callable[[Tensor], Any]) -> Any:
    good = dict(zip(SHAPES, scan_arguments(make, SIZES).args, strict=True))
    return run(make, **{name: change(good[name])})


def shapes() -> list[Bad]:
    wrong: dict[str, tuple[str, tuple[tuple[int, ...], ...]]] = {
        "keep": ("[T, B, H]", ((3, 2), (1, 4, 3, 2), ())),
        "add": ("[T, B, H] = [4, 3, 2]", ((1, 3, 2), (3, 2), (4, 3, 1))),
        "start": ("[B, H] = [3, 2]", ((2,), (1, 2), (1, 3, 2))),
    }
    found = [
        Bad(
            f"{OP} {name} {list(shape)}",
            lambda m, name=name, shape=shape: run(m, **{name: m(*shape)}),
            f"{OP}: {name} must have shape {letters}, got {list(shape)}",
        )
        for name, (letters, each) in wrong.items()
        for shape in each
    ]
    for shape in ((T, B), (T, B, H), (1, B, 1)):
        found.append(
            Bad(
                f"{OP} reset {list(shape)}",
                lambda m, shape=shape: run(m, of_dtype(m, torch.bool, *shape)),
                f"{OP}: reset must have shape [T, B, 1] = [4, 3, 1], got {list(shape)}",
            )
        )
    return found


def kinds() -> list[Bad]:
    found = [
        Bad(
            f"{OP} {shown}",
            lambda m, dtype=dtype: run(m, **{n: of_dtype(m, dtype, *s) for n, s in SHAPES.items()}),
            f"{OP}: keep must have dtype float32 or float64, got {shown}",
        )
        for dtype, shown in (
            (torch.float16, "float16"),
            (torch.bfloat16, "bfloat16"),
            (torch.int64, "int64"),
        )
    ]
    return [
        *found,
        Bad(
            f"{OP} reset dtype",
            lambda m: run(m, m(T, B, 1)),
            f"{OP}: reset must have dtype bool, got float32: call reset.bool()",
        ),
        Bad(
            f"{OP} reset device",
            lambda m: run(m, elsewhere(m, T, B, 1).bool()),
            f"{OP}: reset must be on keep's device, {{device}}, got {{other}}",
        ),
    ]


def scan_bad() -> list[Bad]:
    like = {"add": "keep", "start": "keep"}
    return [
        *shapes(),
        *kinds(),
        *wrong_dtypes(OP, changed, like),
        *wrong_devices(OP, changed, like),
        *without_storages(OP, changed, SHAPES),
        *sparse(OP, changed, SHAPES),
    ]
