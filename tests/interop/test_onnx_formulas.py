"""Layers of formulas, and layers with groups, in ONNX: onnxruntime gives the same results, also for
sizes that differ from the exported ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import treadle
from tests.interop.test_onnx_layers import OPTIONS_DYNAMIC, SIZES, TIMES_ROWS, calls_with_options
from tests.interop.with_onnx import INPUTS, H, agrees, exported, nodes
from tests.recurrent.formula import cells
from tests.recurrent.formula.test_formula_functions import CALLS, POINTS, cell_of
from treadle import Cell

# In GRU, some gates use only one of the two products. The others have one, three and no states
# besides h, and the last one has learned values.
EACH_CELL = pytest.mark.parametrize(
    "cell",
    [cells.GRU, cells.COUPLED, cells.SLSTM, cells.LIGRU, cells.PEEPHOLE],
    ids=lambda cell: cell.name,
)


class Layers(nn.Module):
    """Layers of a cell with different options, in float32 and float64."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        torch.manual_seed(0)
        made = treadle.nn.Recurrent
        both: dict[str, Any] = {"bidirectional": True}
        self.stack = made(cell, INPUTS, H, 2, batch_first=True, bias=False, **both)
        self.given = made(cell, INPUTS, H, groups=2, **both)
        self.of_double = made(cell, INPUTS, H, **both, dtype=torch.float64)

    def forward(
        self, x: Tensor, reset: Tensor, lengths: Tensor, h: Tensor, each: Tensor
    ) -> list[Any]:
        count = len(self.given.cell.states)
        hx = (h, *[h.abs() + 0.5] * count) if count else h
        starts = (each, *[each.abs() + 0.5] * count) if count else each
        return [
            self.stack(x.transpose(0, 1)),
            self.given(x, hx),
            self.given(x, hx, lengths=lengths),
            self.given(x, hx, reset=reset, reset_hx=starts),
            self.of_double(x.double()),
        ]


@EACH_CELL
def test_layers(cell: Cell) -> None:
    model = Layers(cell)
    calls = calls_with_options(2)
    program = exported(model, calls[0], OPTIONS_DYNAMIC)
    assert nodes(program)["Scan"] == 12
    agrees(program, model, calls, atol=1e-5, rtol=1e-4)


@EACH_CELL
def test_float16(cell: Cell) -> None:
    model = treadle.nn.Recurrent(cell, INPUTS, H, dtype=torch.float16)
    calls = [(torch.randn(5, 3, INPUTS, dtype=torch.float16),)]
    agrees(exported(model, calls[0]), model, calls, atol=0.02, rtol=0.02)


# onnxruntime computes some functions with an absolute error of 1e-7. treadle.onnx composes expm1
# and log1p of other functions, with a small relative error.
@pytest.mark.parametrize(("names", "atol"), [(list(CALLS), 2e-7), (["expm1", "log1p"], 0.0)])
def test_each_function(names: list[str], atol: float) -> None:
    """Arguments include numbers so small that 1 + x rounds, and so large that exp is infinite."""
    layer = treadle.nn.Recurrent(cell_of(names), 3, 1, bias=False)
    with torch.no_grad():
        layer.weight_ih_l0.copy_(torch.eye(3))
        layer.weight_hh_l0.zero_()
    points = torch.tensor([*POINTS, 1e-9, -1e-7, 1e-3])
    x = torch.cartesian_prod(points, points, torch.arange(float(len(names))))[None]
    program = exported(layer, (x,))
    agrees(program, layer, [(x,)], atol=atol, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_groups(kind: str) -> None:
    torch.manual_seed(0)
    model = getattr(treadle.nn, kind)(INPUTS, H, 2, groups=2, bidirectional=True)
    calls = [(torch.randn(t, b, INPUTS),) for t, b in SIZES]
    program = exported(model, calls[0], (TIMES_ROWS,))
    assert nodes(program)[kind] == 2
    agrees(program, model, calls)


def test_numbers_and_arguments_as_results() -> None:
    """A formula may return a number, a gate, or a state."""
    for forward in (
        lambda a, c: (a, 0.5),
        lambda a, c: (1.0, c),
        lambda a, c: (F.relu(c), a),
    ):
        model = treadle.nn.Recurrent(
            Cell("odd", gates=("a",), states=("c",), forward=forward), INPUTS, H
        )
        x = torch.randn(4, 2, INPUTS)
        agrees(exported(model, (x,)), model, [(x,)])
