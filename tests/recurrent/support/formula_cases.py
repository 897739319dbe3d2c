"""Cells defined by formulas, as ops for the tests of all ops: the cells of treadle.nn's formula
layers, and two that differ more from LSTM and GRU. layer_cases.py has the cells that are compiled
into treadle."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from tests.recurrent.support import layer_cases
from tests.recurrent.support.layer_cases import BLOCKS, C_PARTS, GATES
from tests.support.inputs import FLOATING, HALVES, Call, Case, Make, Op
from tests.support.layouts import strided, transposed
from treadle import Cell
from treadle.nn import formulas


def squashed(a: Any, b: Any, c: Any) -> Any:
    """A cell whose new c is not affine in c, and whose new h depends on the old c."""
    new_c = 0.75 * torch.tanh(c) + torch.sigmoid(b) * torch.tanh(a)
    return torch.tanh(new_c + 0.5 * c) * torch.sigmoid(b - c), new_c


def leaky(a: Any, b: Any, c: Any, n: Any) -> Any:
    """A cell with two states besides h. The new n depends on both states. h is small, so that
    rounding errors do not grow over the steps."""
    new_c = torch.sigmoid(b) * c + torch.tanh(a)
    new_n = 0.5 * n + 0.5 * torch.tanh(c) * torch.sigmoid(a)
    return 0.25 * torch.tanh(new_c + new_n), new_c, new_n


def away_from_ties(made: dict[str, Any]) -> None:
    """Moves arguments of an sLSTM to where its derivatives are continuous. h is o * c / n, so n is
    moved away from 0. m is a maximum, and near a tie, the rounding of half types decides which of
    its arguments has a gradient. One argument comes from the gate i, the other from the gate f. So
    i is made much larger in every second unit, and much smaller in the other units."""
    made["c0"].chunk(3, -1)[1].abs_().add_(0.5)
    bias = made["bias_ih"]
    if bias is not None and bias.dtype in HALVES:
        i, f, _, _ = bias.chunk(4, -1)
        signs = 1 - 2 * (torch.arange(i.shape[-1], device=i.device) % 2)
        i.add_(16 * signs)
        f.sub_(8 * signs)


def small_peepholes(made: dict[str, Any]) -> None:
    """Makes the weights of c in a peephole LSTM small. They are the last three parts of c0. With
    weights of about 1, each step multiplies a rounding error of c, also that of the reference."""
    for weights in made["c0"].chunk(4, -1)[1:]:
        weights.mul_(0.25)


SQUASHED = Cell("squashed", gates=("a", "b"), states=("c",), forward=squashed)
LEAKY = Cell("leaky", gates=("a", "b"), states=("c", "n"), forward=leaky)
CELLS = (*formulas.CELLS.values(), SQUASHED, LEAKY)
ARGUMENTS = (*layer_cases.TENSORS, 7)
for _cell in CELLS:
    GATES[_cell.key], BLOCKS[_cell.key] = len(_cell.gates), _cell.state_gates
    C_PARTS[_cell.key] = len(_cell.parts)
    layer_cases.ARGUMENTS[_cell.key], layer_cases.FORMULAS[_cell.key] = ARGUMENTS, _cell
layer_cases.WITH_RELU.add(formulas.CELLS["LiGRU"].key)
layer_cases.CHANGES[formulas.CELLS["SLSTM"].key] = away_from_ties
layer_cases.CHANGES[formulas.CELLS["PeepholeLSTM"].key] = small_peepholes

# T, B, I, H
SIZES = ((2, 2, 2, 2), (0, 3, 5, 4), (3, 0, 5, 4), (1, 3, 5, 31), (17, 17, 5, 33))


def formula_cases(cell: Cell) -> tuple[Case, ...]:
    found: list[Case] = []

    def add(name: str, sizes: tuple[int, int, int, int], **options: Any) -> None:
        dtypes, recompute = options.pop("dtypes", FLOATING), options.pop("recompute", False)

        def build(make: Make) -> Call:
            call = layer_cases.layer_arguments(make, sizes, cell=cell.key, **options)
            return call.with_options(recompute=True) if recompute else call

        t, b, _, h = sizes
        found.append(Case(f"recurrent_layer {cell.name} {name}", build, dtypes, t * b * h > 200))

    for sizes in SIZES:
        add("T{} B{} I{} H{}".format(*sizes), sizes, directions=1 + sizes[0] % 2)
    add("lengths", (5, 5, 2, 7), lengths=(5, 4, 3, 2, 1), directions=2)
    add("no bias", (3, 2, 2, 2), bias=False)
    add("fp32 cell", (2, 5, 3, 7), dtypes=HALVES, state=torch.float32)
    add("strided", (3, 3, 2, 4), to={"weight_hh": transposed, "c0": strided, "input": strided})
    add("no directions", (3, 2, 2, 3), no_directions=True)
    add("recompute", (3, 2, 2, 3), recompute=True, directions=2)
    return tuple(found)


def ops() -> tuple[Op, ...]:
    return tuple(
        Op(
            f"recurrent_layer {cell.key}",
            partial(layer_cases.layer, cell=cell.key),
            partial(layer_cases.layer_reference, cell=cell.key),
            ("recurrent_layer",),
            ARGUMENTS,
            formula_cases(cell),
            saved=ARGUMENTS,
        )
        for cell in CELLS
    )
