"""Inputs of lltm_cell: sizes, missing and two-dimensional bias, wider cell state, strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import treadle
from tests.support import layouts
from tests.support.inputs import FLOATING, HALVES, Call, Case, Make, Op
from tests.support.layouts import expanded, misaligned, padded_rows, strided, transposed
from treadle import reference

# B, I, H, with zeros, ones, odd sizes, and widths that are not multiples of a vector.
SIZES = (
    (0, 5, 7),
    (4, 0, 7),
    (4, 5, 0),
    (0, 0, 1),
    (1, 1, 1),
    (1, 5, 31),
    (2, 1, 33),
    (3, 5, 1),
    (3, 64, 33),
    (33, 5, 31),
    (17, 64, 128),
    (33, 64, 128),
)


def cell_arguments(
    make: Make,
    sizes: tuple[int, int, int],
    *,
    bias: str = "[3H]",
    cell_dtype: torch.dtype | None = None,
    lead: tuple[int, ...] = (),
    to: dict[str, layouts.Layout] | None = None,
) -> Call:
    """Arguments with weights as large as in a trained net, so that gates are of order one at any
    width."""
    b, i, h = sizes
    layout = to or {}
    fan_in = max(1, i + h) ** -0.5
    shapes: dict[str, tuple[int, ...]] = {
        "input": (b, i),
        "weights": (3 * h, h + i),
        "bias": (1, 3 * h) if bias == "[1, 3H]" else (3 * h,),
        "old_h": (b, h),
        "old_cell": (b, h),
    }
    made: dict[str, Tensor | None] = {
        name: make(
            *lead,
            *shape,
            by=fan_in if name == "weights" else 1.0,
            to=layout.get(name),
            dtype=cell_dtype if name == "old_cell" else None,
        )
        for name, shape in shapes.items()
    }
    if bias == "None":
        made["bias"] = None
    return Call(tuple(made.values()))


def cell_reference(
    input: Tensor, weights: Tensor, bias: Tensor | None, old_h: Tensor, old_cell: Tensor
) -> tuple[Tensor, Tensor]:
    """The reference, applied to every cell of a leading dimension."""
    if input.dim() == 2:
        return reference.lltm_cell(input, weights, bias, old_h, old_cell)
    steps = [
        reference.lltm_cell(input[n], weights[n], None if bias is None else bias[n], *state)
        for n, state in enumerate(zip(old_h, old_cell, strict=True))
    ]
    if not steps:  # empty results must still depend on every argument
        nothing = sum(t.sum() for t in (input, weights, bias, old_h, old_cell) if t is not None)
        return old_h * nothing.to(old_h.dtype), old_cell * nothing.to(old_cell.dtype)
    new_h, new_cell = zip(*steps, strict=True)
    return torch.stack(new_h), torch.stack(new_cell)


def lltm_cases() -> tuple[Case, ...]:
    found: list[Case] = []

    def add(
        name: str,
        sizes: tuple[int, int, int],
        dtypes: tuple[torch.dtype, ...] = FLOATING,
        **options: Any,
    ) -> None:
        build: Callable[[Make], Call] = lambda make: cell_arguments(  # noqa: E731
            make, sizes, **options
        )
        big = sizes[0] * sizes[2] > 200
        found.append(Case(f"lltm_cell {name}", build, dtypes, big=big))

    for sizes in SIZES:
        add("B{} I{} H{}".format(*sizes), sizes)
    for bias in ("None", "[1, 3H]"):
        add(f"bias {bias}", (3, 5, 4), bias=bias)
        add(f"bias {bias}, wide", (17, 64, 33), bias=bias)
    for sizes in ((3, 5, 4), (17, 64, 33)):
        add(f"fp32 cell B{sizes[0]}", sizes, HALVES, cell_dtype=torch.float32)
    for layout in (strided, transposed, padded_rows, misaligned):
        names = ("input", "weights", "bias", "old_h", "old_cell")
        add(layout.__name__, (3, 5, 4), to=dict.fromkeys(names, layout))
    add("one dense among strided", (3, 5, 4), to={"weights": transposed, "old_cell": strided})
    add("expanded", (3, 5, 4), to={"input": expanded, "old_h": expanded, "old_cell": expanded})
    for bias in ("[3H]", "None", "[1, 3H]"):
        add(f"N 2, bias {bias}", (3, 5, 4), bias=bias, lead=(2,))
    add("N 0", (3, 5, 4), lead=(0,))
    add("N 3, strided", (3, 5, 4), lead=(3,), to={"input": strided, "weights": transposed})
    # This batch has more rows than gridDim.y allows.
    add("B 65,541", (65_541, 1, 2), (torch.float64, torch.float32))
    return tuple(found)


def ops() -> tuple[Op, ...]:
    return (
        Op(
            "lltm_cell",
            treadle.lltm_cell,
            cell_reference,
            ("lltm_cell",),
            (0, 1, 2, 3, 4),
            lltm_cases(),
            saved=(0, 1, 2, 3, 4),
        ),
    )
