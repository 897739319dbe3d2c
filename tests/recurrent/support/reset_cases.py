"""Inputs of recurrent_layer with resets: marks and replacement states, in all forms of a batch."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from tests.recurrent.support.layer_cases import (
    ARGUMENTS,
    CELLS,
    NAMES,
    WITH_RELU,
    Lengths,
    batch_sizes,
    layer_arguments,
)
from tests.support.inputs import FLOATING, HALVES, Call, Case, Make, Op
from treadle import reference

MARKS = ("some", "all", "none", "first")
STARTS = ("zeros", "rows", "steps")  # the replacement states


def marks_of(marks: str, input: Tensor, lengths: Lengths) -> Tensor:
    """Marks [T, B, 1] or [S, 1]. If `marks` is `some`, about one in three is true."""
    if lengths is None:
        t, b = torch.meshgrid(*(torch.arange(n) for n in input.shape[:2]), indexing="ij")
    else:
        places = [
            (t, b) for t in range(max(lengths, default=0)) for b, n in enumerate(lengths) if t < n
        ]
        t, b = torch.tensor(places, dtype=torch.int64).reshape(-1, 2).unbind(1)
    found = {
        "some": (5 * t + 3 * b + t * b) % 3 == 0,
        "all": t >= 0,
        "none": t < 0,
        "first": t == 0,
    }
    return found[marks].unsqueeze(-1).to(input.device)


def reset_layer(
    input: Tensor,
    lengths: Lengths,
    *rest: Tensor | None,
    cell: str = "lltm",
    marks: str = "some",
    op: Any = None,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Calls recurrent_layer (or `op`) with marks. `rest` holds the other arguments of NAMES, then
    reset_h and reset_c, which may be missing."""
    *given, reset_h, reset_c = (*rest, *[None] * (len(NAMES) - len(rest)))
    resets = {"reset": marks_of(marks, input, lengths), "reset_h": reset_h, "reset_c": reset_c}
    called = op or torch.ops.treadle.recurrent_layer
    return called(input, batch_sizes(lengths), *given, cell=cell, **resets, **options)  # type: ignore[no-any-return]


def reset_reference(
    input: Tensor, lengths: Lengths, *rest: Any, cell: str = "lltm", marks: str = "some", **_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    options: dict[str, Any] = {"cell": cell, "marks": marks, "op": reference.recurrent_layer}
    results = reset_layer(input, lengths, *rest, **options)
    # Adding this gives a gradient of zero to states that are not used.
    nothing = 0 * sum(t.double().sum() for t in (input, *rest) if t is not None)
    output, h_n, c_n = (t + nothing.to(t.dtype) for t in results)
    return output, h_n, c_n


def reset_arguments(
    make: Make, sizes: tuple[int, int, int, int], starts: str, marks: str, **options: Any
) -> Call:
    call = layer_arguments(make, sizes, **options)
    d, b, h = call.args[2].shape
    state = options.get("state")
    others: tuple[Tensor | None, ...] = (None, None)
    if starts != "zeros":
        places = (d, b) if starts == "rows" else (d, *call.args[0].shape[:-1])
        relu = call.kwargs["cell"] in WITH_RELU  # layer_arguments keeps the sums away from 0
        others = (
            make(*places, h, positive=relu),
            make(*places, call.args[3].shape[-1], dtype=state),
        )
    return Call((*call.args, *others), {**call.kwargs, "marks": marks})


def reset_cases(cell: str) -> tuple[Case, ...]:
    found: list[Case] = []

    def add(
        name: str,
        sizes: tuple[int, int, int, int],
        starts: str,
        marks: str = "some",
        dtypes: tuple[torch.dtype, ...] = FLOATING,
        recompute: bool = False,
        **options: Any,
    ) -> None:
        def build(make: Make) -> Call:
            call = reset_arguments(make, sizes, starts, marks, cell=cell, **options)
            return call.with_options(recompute=True) if recompute else call

        t, b, _, h = sizes
        full = f"recurrent_layer {cell} resets, {name}, {marks}, {starts}"
        found.append(Case(full, build, dtypes, t * b * h > 200, full))

    for starts in STARTS:
        add("D2", (4, 3, 2, 3), starts, directions=2)
        add("packed, D2", (0, 0, 2, 3), starts, directions=2, lengths=(4, 3, 1))
        add("wide", (7, 17, 5, 33), starts)
        add("recompute, D2", (4, 3, 2, 3), starts, directions=2, recompute=True)
    for marks in MARKS[1:]:
        add("D2", (4, 2, 2, 3), "rows", marks, directions=2)
    add("wide packed, D2", (0, 0, 5, 33), "rows", directions=2, lengths=(9, 9, 5, 2, 2, 1))
    add("recompute, packed", (0, 0, 2, 3), "steps", recompute=True, lengths=(3, 1, 1))
    add("one step", (1, 3, 2, 3), "rows", "all", directions=2)
    add("no step", (0, 3, 2, 3), "rows", "all")
    add("no row", (3, 0, 2, 3), "steps", "all")
    add("no unit", (3, 2, 2, 0), "zeros")
    add("no bias", (3, 2, 2, 3), "zeros", bias=False)
    add("fp32 cell", (7, 9, 3, 7), "rows", dtypes=HALVES, state=torch.float32)
    return tuple(found)


def reset_op(cell: str) -> Op:
    arguments = (*ARGUMENTS[cell], len(NAMES), len(NAMES) + 1)
    return Op(
        f"recurrent_layer {cell} resets",
        partial(reset_layer, cell=cell),
        partial(reset_reference, cell=cell),
        ("recurrent_layer",),
        arguments,
        reset_cases(cell),
        saved=arguments,
    )


def ops() -> tuple[Op, ...]:
    return tuple(reset_op(cell) for cell in CELLS)
