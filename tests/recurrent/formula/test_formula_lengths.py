"""Compares layers of formulas on rows of variable length (`lengths`) with calls for each row
alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

import treadle
from tests.recurrent.formula import cells
from tests.recurrent.formula.test_formula_layers import (
    DOUBLE,
    EACH_CELL,
    EACH_DEVICE,
    agree,
    gradients,
)
from treadle import Cell

LENGTHS = (6, 2, 0, 5)


def with_lengths(
    layer: treadle.nn.Recurrent, form: str, device: str
) -> tuple[list[Tensor], dict[str, Any]]:
    """Returns x, the initial states and the replacement states, and the options of the call. Values
    that must not be read are inf."""
    torch.manual_seed(5)
    empty, beyond = LENGTHS.index(0), torch.arange(6).unsqueeze(1) >= torch.tensor(LENGTHS)
    x = torch.randn(6, 4, 3, **DOUBLE).masked_fill(beyond.unsqueeze(-1), float("inf"))
    d, states = 2 if layer.bidirectional else 1, ("h", *layer.cell.states)
    given = [x, *(torch.rand(d, 4, layer.hidden_size, **DOUBLE) for _ in states)]
    options: dict[str, Any] = {"lengths": torch.tensor(LENGTHS, device=device)}
    if form:
        options["reset"] = (torch.rand(6, 4) < 0.4).to(device)
    if form in ("rows", "steps"):
        steps = (6, 4) if form == "steps" else (4,)
        starts = [torch.rand(d, *steps, layer.hidden_size, **DOUBLE) for _ in states]
        if form == "steps":
            for start in starts:
                start[:, beyond] = float("inf")
        given += starts
    for state in given[1 : 1 + len(states)]:
        state[:, empty] = float("inf")
    return [t.to(device).requires_grad_() for t in given], options


def called(layer: treadle.nn.Recurrent, tensors: list[Tensor], options: dict[str, Any]) -> Any:
    """Output and states as one list."""
    count = 1 + len(layer.cell.states)
    x, states, starts = tensors[0], tensors[1 : 1 + count], tensors[1 + count :]

    def form(states: list[Tensor]) -> Any:
        return tuple(states) if count > 1 else states[0]

    output, last = layer(x, form(states), **options, reset_hx=form(starts) if starts else None)
    return [output, *(last if count > 1 else [last])]


@EACH_DEVICE
@EACH_CELL
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("form", ["", "zeros", "rows", "steps"])
def test_lengths(cell: Cell, form: str, bidirectional: bool, device: str) -> None:
    """Values and gradients equal those of each row, run without the others."""
    layer = treadle.nn.Recurrent(cell, 3, 6, bidirectional=bidirectional, groups=2, device=device)
    layer.double()
    tensors, options = with_lengths(layer, form, device)
    found = called(layer, tensors, options)
    rows = []
    for row, n in enumerate(LENGTHS):
        one = slice(row, row + 1)
        own = [t[:, :n, one] if t.dim() == 4 else t[:, one] for t in tensors]
        own[0] = own[0][:n]
        alone = {"reset": options["reset"][:n, row : row + 1]} if form else {}
        output, *last = called(layer, own, alone)
        rows.append([torch.nn.functional.pad(output, (0, 0, 0, 0, 0, 6 - n)), *last])
    expected = [torch.cat(parts, 1) for parts in zip(*rows, strict=True)]
    agree(found, expected)
    leaves = [*tensors, *layer.parameters()]
    agree(gradients(found, leaves), gradients(expected, leaves))


@EACH_DEVICE
def test_lengths_of_a_cell_that_divides_by_its_state(device: str) -> None:
    """The cell's derivatives are not finite where g and v are both 0. That is the case in no step
    of a row, so the gradients must be those of a packed batch."""

    def divides(f: Any, g: Any, v: Any) -> Any:
        f = torch.sigmoid(f)
        v = f * v + (1 - f) * g * g
        return g / torch.sqrt(v), v

    cell = Cell("divides", gates=("f", "g"), states=("v",), forward=divides)
    layer = treadle.nn.Recurrent(cell, 3, 4, bias=False, bidirectional=True, device=device)
    x = torch.randn(6, 2, 3, device=device)
    output, _ = layer(x, lengths=torch.tensor([6, 2], device=device))
    grads = torch.autograd.grad(output.sum(), list(layer.parameters()))
    packed, _ = layer(pack_padded_sequence(x, torch.tensor([6, 2])))
    agree(grads, torch.autograd.grad(packed.data.sum(), list(layer.parameters())), 1e-4)


def root(a: Any, h: Any) -> Any:
    return 0.5 * h + torch.sqrt(torch.abs(a))


def root_of_state(a: Any, b: Any, c: Any) -> Any:
    return torch.tanh(b), 0.5 * c + torch.sqrt(torch.abs(a))


@EACH_DEVICE
@pytest.mark.parametrize("lengths", [(4, 2), (4, 0)])
def test_lengths_where_slopes_at_zero_are_infinite(lengths: tuple[int, int], device: str) -> None:
    """Tests both directions, and also a row without steps."""
    for cell in (
        Cell("root", gates=("a",), forward=root),
        Cell("root_of_state", gates=("a", "b"), states=("c",), forward=root_of_state),
    ):
        layer = treadle.nn.Recurrent(cell, 3, 2, bias=False, bidirectional=True, device=device)
        x, weights = torch.randn(4, 2, 3, device=device), list(layer.parameters())
        found = layer(x, lengths=torch.tensor(lengths, device=device))[0].sum()
        rows = [layer(x[:n, row : row + 1])[0].sum() for row, n in enumerate(lengths)]
        found, expected = (
            torch.autograd.grad(loss, weights, allow_unused=True) for loss in (found, sum(rows))
        )
        agree(found, expected, 1e-4)


@EACH_DEVICE
@EACH_CELL
def test_lengths_with_transforms(cell: Cell, device: str, fresh_compile: None) -> None:
    """Tests second derivatives, forward mode, vmap over the lengths, and torch.compile."""
    layer = treadle.nn.Recurrent(cell, 3, 4, bidirectional=True, device=device, **DOUBLE)
    tensors, options = with_lengths(layer, "steps", device)
    with torch.no_grad():
        for t in tensors:
            t.nan_to_num_(posinf=0.5)

    def run(*tensors: Tensor) -> Any:
        return tuple(called(layer, list(tensors), options))

    fast = {"fast_mode": True, "check_forward_ad": True, "check_batched_grad": True}
    assert torch.autograd.gradcheck(run, tensors, **fast)
    assert torch.autograd.gradgradcheck(run, tensors, fast_mode=True)
    several = torch.tensor([LENGTHS, (1, 6, 3, 0)], device=device)

    def of(lengths: Tensor) -> Any:
        return tuple(called(layer, tensors, options | {"lengths": lengths}))

    found = torch.vmap(of)(several)
    for n, lengths in enumerate(several):
        agree([t[n] for t in found], list(of(lengths)))
    if cell is not cells.SLSTM:
        return
    x, lengths = tensors[0].detach(), options["lengths"]
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    agree(compiled(x, lengths=lengths), layer(x, lengths=lengths))
    agree(compiled(x[:0], lengths=lengths), layer(x[:0], lengths=lengths))
