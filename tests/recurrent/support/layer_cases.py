"""Inputs of recurrent_layer: cells, sizes, directions, packed lengths, missing bias, wider state,
strides, and parameters of a single direction without the dimension D."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import layouts
from tests.support.inputs import FLOATING, HALVES, Call, Case, Make, Op
from tests.support.layouts import expanded, misaligned, padded_rows, strided, transposed
from treadle import Cell, reference

NAMES = ("input", "lengths", "h0", "c0", "weight_ih", "weight_hh", "bias_ih", "bias_hh")
TENSORS = (0, 2, 3, 4, 5, 6)  # positions in NAMES of LLTM's tensors
CELLS = ("lltm", "lstm", "gru", "rnn_tanh", "rnn_relu")
# For each cell: the positions of its tensors in NAMES, the number of gates, and the number of
# blocks of H rows in a weight.
ARGUMENTS = {cell: TENSORS if cell == "lltm" else (*TENSORS, 7) for cell in CELLS}
GATES = {"lltm": 3, "lstm": 4, "gru": 4, "rnn_tanh": 1, "rnn_relu": 1}
BLOCKS = {"lltm": 3, "lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
FORMULAS: dict[str, Cell] = {}  # by name in the op; formula_cases.py adds cells
C_PARTS: dict[str, int] = {}  # for formulas: the number of their states besides h, at least 1
WITH_RELU = {"rnn_relu"}
# By cell: a function that changes the drawn arguments in place, where random ones do not suit the
# formula. It gets the arguments by name.
CHANGES: dict[str, Callable[[dict[str, Any]], None]] = {}
EACH_CELL = pytest.mark.parametrize("cell", CELLS)
# The cells for which tests run torch's compilers, which take seconds for a layer. They trace the
# same C++ code for every cell; LSTM has c, and GRU has not.
TRACED_CELLS = ("lstm", "gru")
WIDE = (torch.float64, torch.float32)
Lengths = tuple[int, ...] | None

# T, B, I, H, with zeros, ones, odd sizes, and widths that are not multiples of a vector. Long
# sequences have small H, because the reference is slow.
SIZES = (
    (2, 2, 2, 2),
    (0, 3, 5, 4),
    (3, 0, 5, 4),
    (3, 2, 0, 4),
    (3, 2, 5, 0),
    (0, 0, 0, 1),
    (1, 1, 1, 1),
    (1, 3, 5, 31),
    (1, 64, 64, 33),
    (2, 1, 1, 33),
    (2, 17, 5, 1),
    (2, 2, 64, 257),
    (3, 1, 5, 128),
    (3, 3, 64, 31),
    (3, 17, 1, 32),
    (3, 64, 5, 31),
    (17, 1, 64, 32),
    (17, 2, 1, 257),
    (17, 3, 5, 33),
    (17, 17, 5, 128),
    (17, 64, 5, 3),
)
LONG = ((257, 1, 1, 31), (257, 2, 5, 1), (257, 3, 1, 5))
LENGTHS = ((2, 1), (3, 3, 1), (17, 2, 1), (5, 4, 3, 2, 1), (1, 1, 1), (17, *[3] * 8, *[1] * 8))


def batch_sizes(lengths: Lengths) -> Tensor | None:
    """[T]: the number of rows that reach each step, for sorted lengths."""
    if lengths is None:
        return None
    steps = range(max(lengths, default=0))
    return torch.tensor([sum(n > t for n in lengths) for t in steps], dtype=torch.int64)


def layer_arguments(
    make: Make,
    sizes: tuple[int, int, int, int],
    *,
    cell: str = "lltm",
    directions: int = 1,
    lengths: Lengths = None,
    bias: bool = True,
    state: torch.dtype | None = None,
    to: dict[str, layouts.Layout] | None = None,
    no_directions: bool = False,
) -> Call:
    """Arguments of a call, with weights as large as in a trained net. `lengths`, unless it is None,
    determines T and B."""
    t, b, i, h = sizes
    d, width, layout = directions, BLOCKS[cell] * h, to or {}
    rows = (t, b)
    if lengths is not None:
        b, rows = len(lengths), (sum(lengths),)
    shapes: dict[str, tuple[int, ...]] = {
        "input": (*rows, i),
        "h0": (d, b, h),
        "c0": (d, b, C_PARTS.get(cell, 1) * h),
        "weight_ih": (d, width, i),
        "weight_hh": (d, width, h),
        "bias_ih": (d, width),
        "bias_hh": (d, width),
    }
    if no_directions:
        shapes |= {name: shape[1:] for name, shape in shapes.items() if name[0] in "wb"}
    scales: dict[str, float | Tensor] = dict.fromkeys(shapes, 1.0)
    scales["weight_ih"] = scales["weight_hh"] = max(1, i + h) ** -0.5
    # Near 0, rounding decides whether relu has a gradient. So all summands of a unit have the same
    # sign, which is negative in every second unit.
    steep = cell in WITH_RELU
    if steep:
        signs = (1.0 - 2.0 * (torch.arange(h) % 2)).double().repeat(BLOCKS[cell])
        scales["weight_ih"], scales["bias_ih"] = scales["weight_ih"] * signs.view(-1, 1), signs
        scales["weight_hh"] = signs.view(-1, 1) / max(1, i + h)
        scales["bias_hh"] = signs
    made: dict[str, Any] = {
        name: make(
            *shape,
            by=scales[name],
            to=layout.get(name),
            dtype=state if name == "c0" else None,
            positive=steep,
        )
        for name, shape in shapes.items()
    }
    if cell in CHANGES:
        CHANGES[cell](made)
    if not bias:
        made["bias_ih"] = made["bias_hh"] = None
    if cell == "lltm":
        made["bias_hh"] = None
    made["lengths"] = lengths
    return Call(tuple(made[name] for name in NAMES), {"cell": cell})


def layer(
    input: Tensor, lengths: Lengths, *rest: Tensor | None, cell: str = "lltm", **options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Calls recurrent_layer; missing biases become None."""
    given = (*rest, *[None] * (len(NAMES) - 2 - len(rest)))
    return torch.ops.treadle.recurrent_layer(  # type: ignore[no-any-return]
        input, batch_sizes(lengths), *given, cell=cell, **options
    )


def layer_reference(
    input: Tensor, lengths: Lengths, *rest: Any, cell: str = "lltm", **_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    given = [*rest, *[None] * (len(NAMES) - 2 - len(rest))]
    if given[2].dim() == 2:
        given[2:] = [t if t is None else t.unsqueeze(0) for t in given[2:]]
    results = reference.recurrent_layer(
        input, batch_sizes(lengths), *given, cell=FORMULAS.get(cell, cell)
    )
    if len(input) and lengths != ():
        return results
    # Even without steps the results must depend on every argument.
    nothing = 0 * sum(t.double().sum() for t in (input, *rest) if t is not None)
    output, h_n, c_n = (t + nothing.to(t.dtype) for t in results)
    return output, h_n, c_n


def layer_cases(cell: str) -> tuple[Case, ...]:
    found: list[Case] = []

    def add(
        name: str,
        sizes: tuple[int, int, int, int],
        dtypes: tuple[torch.dtype, ...] = FLOATING,
        recompute: bool = False,
        **options: Any,
    ) -> None:
        def build(make: Make) -> Call:
            call = layer_arguments(make, sizes, cell=cell, **options)
            return call.with_options(recompute=True) if recompute else call

        t, b, _, h = sizes
        # LLTM accumulates errors. In its longest cases with a single row, about one seed in thirty
        # exceeds the tolerance of tests/support/rule.py by a third. So LLTM keeps the names, and
        # thereby the seeds, of the kernels' first tests.
        drawn = f"lltm_layer {name}" if cell == "lltm" else ""
        big = t * b * h > 200
        found.append(Case(f"recurrent_layer {cell} {name}", build, dtypes, big, drawn))

    def add_each(name: str, sizes: tuple[int, int, int, int], **options: Any) -> None:
        add(name, sizes, **options)
        add(f"{name}, D2", sizes, directions=2, **options)

    for sizes in SIZES:
        add_each("T{} B{} I{} H{}".format(*sizes), sizes)
    for sizes in LONG:
        add_each("T{} B{} I{} H{}".format(*sizes), sizes, dtypes=WIDE)
    for lengths in LENGTHS:
        reach = max(lengths)
        name = "lengths " + ",".join(map(str, lengths[:5])) + (",..." if len(lengths) > 5 else "")
        wide = 33 if reach > 5 else 2
        add_each(name, (reach, len(lengths), 2, wide), lengths=lengths)
    add_each("no lengths", (0, 0, 2, 3), lengths=())
    add_each("lengths 257,129,2", (257, 3, 5, 4), dtypes=WIDE, lengths=(257, 129, 2))
    add_each("no bias", (3, 2, 2, 2), bias=False)
    add_each("no bias, wide", (3, 17, 64, 33), bias=False)
    add_each("no bias, packed", (3, 3, 2, 2), bias=False, lengths=(3, 2, 1))
    # There are no smaller sizes, because with few numbers all errors can be small by chance.
    for sizes in ((2, 5, 3, 7), (17, 17, 64, 33)):
        add_each(f"fp32 cell T{sizes[0]}", sizes, dtypes=HALVES, state=torch.float32)
    packed: dict[str, Any] = {"dtypes": HALVES, "state": torch.float32, "lengths": (3, 3, 2, 1)}
    add_each("fp32 cell packed", (3, 4, 3, 7), **packed)
    for layout in (strided, transposed, padded_rows, misaligned):
        names = [NAMES[i] for i in ARGUMENTS[cell]]
        add_each(layout.__name__, (3, 2, 2, 3), to=dict.fromkeys(names, layout))
    add("strided, packed", (3, 2, 2, 3), lengths=(3, 1), to={"input": strided, "c0": strided})
    one = {"weight_hh": transposed, "c0": strided}
    add("one dense among strided", (3, 3, 2, 4), to=one)
    rows = dict.fromkeys(("input", "h0", "c0"), expanded)
    add_each("expanded", (3, 3, 2, 4), to=rows)
    for sizes in ((3, 2, 2, 3), (3, 17, 64, 33), (0, 2, 3, 2)):
        add("no directions T{} B{} I{} H{}".format(*sizes), sizes, no_directions=True)
    one_direction: dict[str, Any] = {"no_directions": True, "lengths": (3, 1, 1)}
    add("no directions, packed", (3, 3, 2, 3), **one_direction)
    add("no directions, no bias", (3, 2, 2, 3), bias=False, no_directions=True)
    add("no directions, recompute", (3, 2, 2, 3), recompute=True, no_directions=True)
    transposes = {"weight_ih": transposed, "weight_hh": transposed, "bias_ih": strided}
    add("no directions, strided", (3, 2, 2, 3), to=transposes, no_directions=True)
    add_each("recompute", (3, 2, 2, 3), recompute=True)
    add_each("recompute, wide", (17, 17, 5, 33), recompute=True)
    add_each("recompute, packed", (3, 3, 2, 3), recompute=True, lengths=(3, 1, 1))
    return tuple(found)


def layer_op(cell: str) -> Op:
    return Op(
        f"recurrent_layer {cell}",
        partial(layer, cell=cell),
        partial(layer_reference, cell=cell),
        ("recurrent_layer",),
        ARGUMENTS[cell],
        layer_cases(cell),
        saved=ARGUMENTS[cell],
    )


def ops() -> tuple[Op, ...]:
    return tuple(layer_op(cell) for cell in CELLS)
