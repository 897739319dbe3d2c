"""recurrent_layer under autocast runs in the lower precision, except for c0. Where torch's layer on
a CPU promotes to float32, recurrent_layer runs in float32. test_autocast_torch.py compares with
torch's layers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from tests.recurrent.layer.test_transforms import Function, loss, of_tensors, tensors_of
from tests.recurrent.support.layer_cases import (
    ARGUMENTS,
    EACH_CELL,
    Lengths,
    layer,
    layer_arguments,
    layer_reference,
)
from tests.support.cases import DEVICES
from tests.support.inputs import HALVES, Call, Make
from tests.support.rule import within_rule

EACH = [
    pytest.param(device, dtype, id=f"{device}-{dtype}") for device in DEVICES for dtype in HALVES
]


def layer_dtype(device: str, lower: torch.dtype, cell: str, lengths: Lengths) -> torch.dtype:
    """The dtype in which autocast runs a float32 layer."""
    promotes = cell == "gru" or (cell == "lstm" and lengths is not None)
    return torch.float32 if device == "cpu" and promotes else lower


@EACH_CELL
@pytest.mark.parametrize("lengths", [None, (3, 2, 2)], ids=str)
@pytest.mark.parametrize(("device", "dtype"), EACH)
def test_autocast(device: str, dtype: torch.dtype, lengths: Lengths, cell: str) -> None:
    """Results have the bits of a call with all arguments but c0 in the layer's dtype. Gradients are
    float32."""
    runs_in = layer_dtype(device, dtype, cell, lengths)
    make = Make("autocast", device, torch.float32)
    call = layer_arguments(make, (3, 3, 7, 8), cell=cell, directions=2, lengths=lengths)
    expected = call.with_args(
        {i: call.args[i].to(runs_in) for i in ARGUMENTS[cell] if i != 3}  # c0 stays
    ).run(layer)
    leaves = call.map(lambda t: t.detach().requires_grad_())
    with torch.autocast(device, dtype):
        results = leaves.run(layer)
        under_vmap = vmap(of_tensors(layer, call))(*(torch.stack([t, t]) for t in tensors_of(call)))
    assert [r.dtype for r in results] == [runs_in, runs_in, torch.float32]
    for ours, theirs, batch in zip(results, expected, under_vmap, strict=True):
        assert torch.equal(ours, theirs) and batch.dtype == theirs.dtype
        torch.testing.assert_close(batch[1], theirs)
    grads = torch.autograd.grad(loss(lambda: results)(), tensors_of(leaves))
    assert all(g.dtype == torch.float32 for g in grads)
    unread = [2] if cell.startswith("rnn") else []  # c0 of an RNN
    assert [n for n, g in enumerate(grads) if not g.any()] == unread


@EACH_CELL
@pytest.mark.parametrize(("device", "dtype"), EACH)
def test_autocast_beside_the_composition(device: str, dtype: torch.dtype, cell: str) -> None:
    call = layer_arguments(Make("autocast", device, torch.float32), (3, 3, 7, 8), cell=cell)

    def run(function: Function, call: Call) -> list[Tensor]:
        leaves = call.map(lambda t: t.detach().requires_grad_())
        with torch.autocast(device, dtype, enabled=call.args[0].dtype == torch.float32):
            results = leaves.run(function)
        total = sum((r.double().sin() * (n + 2)).sum() for n, r in enumerate(results))
        grads = torch.autograd.grad(total, tensors_of(leaves))
        return [*(r.detach() for r in results), *grads]

    ours = run(layer, call)
    truth = run(layer_reference, call.map(Tensor.double))
    composition = run(layer_reference, call)
    assert ours[0].dtype == layer_dtype(device, dtype, cell, None)
    for n, (a, t, c) in enumerate(zip(ours, truth, composition, strict=True)):
        # Errors are those of the lower precision, whatever the dtype of the result.
        a, c = a.to(dtype), c.to(dtype)
        within_rule(a, t, c, gradient=n >= 3, what=str(n))
