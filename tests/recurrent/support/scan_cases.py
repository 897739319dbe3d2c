"""Inputs of affine_scan: sizes, both directions, with and without resets."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.recurrent.support.reset_cases import marks_of
from tests.support.inputs import Call, Case, Make, Op
from tests.support.layouts import misaligned, strided, transposed

DTYPES = (torch.float64, torch.float32)
# T, B, H, with zeros, ones, odd sizes, and more steps than a CUDA kernel computes in one round.
SIZES = ((4, 3, 2), (0, 3, 2), (3, 0, 2), (3, 2, 0), (1, 1, 1), (2, 17, 5), (300, 2, 33))


def scan(
    keep: Tensor, add: Tensor, start: Tensor, *, marks: str = "", reverse: bool = False
) -> Tensor:
    reset = marks_of(marks, keep, None) if marks else None
    return torch.ops.treadle.affine_scan(keep, add, start, reset=reset, reverse=reverse)  # type: ignore[no-any-return]


def scan_reference(
    keep: Tensor, add: Tensor, start: Tensor, *, marks: str = "", reverse: bool = False
) -> Tensor:
    reset = marks_of(marks, keep, None) if marks else None
    found: dict[int, Tensor] = {}
    state = start
    for t in reversed(range(len(keep))) if reverse else range(len(keep)):
        moved = keep[t] * state + add[t]
        state = found[t] = moved if reset is None else torch.where(reset[t], add[t], moved)
    # The result must depend on every argument, even if not all of them are read.
    nothing = 0 * (keep.sum() + add.sum() + start.sum())
    return torch.stack([found[t] for t in range(len(keep))]) + nothing if found else add + nothing


def scan_arguments(make: Make, sizes: tuple[int, int, int], to: Any = None, **options: Any) -> Call:
    shapes = sizes, sizes, sizes[1:]
    return Call(tuple(make(*shape, to=to, by=0.7) for shape in shapes), options)


def scan_call(make: Make) -> tuple[Any, tuple[Tensor, ...], dict[str, Any]]:
    """The op, its arguments and its options, in opcheck's form."""
    args = scan_arguments(make, (4, 3, 2)).args
    options = {"reset": marks_of("some", args[0], None), "reverse": True}
    return torch.ops.treadle.affine_scan.default, args, options


def scan_cases() -> tuple[Case, ...]:
    found: list[Case] = []

    def add(name: str, sizes: tuple[int, int, int], **options: Any) -> None:
        t, b, h = sizes
        found.append(
            Case(
                f"affine_scan {name}",
                lambda make: scan_arguments(make, sizes, **options),
                DTYPES,
                big=t * b * h > 200,
            )
        )

    for sizes in SIZES:
        for reverse in (False, True):
            add("T{} B{} H{}".format(*sizes) + ", reverse" * reverse, sizes, reverse=reverse)
    for marks in ("some", "all", "first"):
        add(f"{marks} reset", (5, 3, 2), marks=marks)
        add(f"{marks} reset, reverse", (5, 3, 2), marks=marks, reverse=True)
    add("some reset, long", (300, 3, 33), marks="some")
    add("no step, reset", (0, 3, 2), marks="some")
    for layout in (strided, transposed, misaligned):
        add(layout.__name__, (4, 3, 2), to=layout)
    return tuple(found)


def ops() -> tuple[Op, ...]:
    name = "affine_scan"
    cases = scan_cases()
    return (Op(name, scan, scan_reference, (name,), (0, 1, 2), cases, saved=(0, 2)),)
