"""Compares treadle.nn.LSTM, GRU and RNN with groups with torch's modules, whose weight_hh contains
the groups' blocks and zeros."""

from __future__ import annotations

import copy
import io
import re
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import treadle.onnx
from tests.recurrent.formula.test_formula_layers import agree
from tests.recurrent.layer.test_groups import blocks_of, whole
from tests.support.cases import DEVICES

EACH_DEVICE = pytest.mark.parametrize("device", DEVICES)
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
EACH_KIND = pytest.mark.parametrize("kind", GATES)
DOUBLE: dict[str, Any] = {"dtype": torch.float64}


def pair(kind: str, groups: int, **made: Any) -> tuple[Any, Any]:
    """treadle's layer with groups, and torch's layer with the same weights and with zeros in all
    other blocks of W_hh."""
    ours = getattr(treadle.nn, kind)(3, 12, groups=groups, **made)
    theirs = getattr(nn, kind)(3, 12, **made)
    state = ours.state_dict()
    for name, value in state.items():
        if name.startswith("weight_hh"):
            state[name] = whole(value[None], GATES[kind])[0]
    theirs.load_state_dict(state)
    return ours, theirs


def results(found: Any) -> list[Tensor]:
    tensors = [t for t in torch.utils._pytree.tree_leaves(found) if isinstance(t, Tensor)]
    return [t for t in tensors if t.is_floating_point()]  # excludes batch_sizes


@EACH_DEVICE
@EACH_KIND
@pytest.mark.parametrize("groups", [2, 12])
def test_values_and_gradients(kind: str, groups: int, device: str) -> None:
    made = {"num_layers": 2, "bidirectional": True, "batch_first": True, "device": device}
    ours, theirs = pair(kind, groups, **made, **DOUBLE)
    x = torch.randn(4, 5, 3, device=device, **DOUBLE)
    packed = pack_padded_sequence(x, torch.tensor([5, 3, 3, 1]), batch_first=True)
    for input in (x, packed, x[0]):
        found, expected = results(ours(input)), results(theirs(input))
        agree(found, expected, 1e-12)
        grads = [
            torch.autograd.grad(sum((t * t).sum() for t in each), [*layer.parameters()])
            for each, layer in ((found, ours), (expected, theirs))
        ]
        for (name, _), a, b in zip(ours.named_parameters(), *grads, strict=True):
            if name.startswith("weight_hh"):
                b = blocks_of(b[None], GATES[kind], groups)[0]
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@EACH_DEVICE
@EACH_KIND
def test_with_the_options_of_a_call(kind: str, device: str) -> None:
    ours, theirs = pair(kind, 3, device=device, **DOUBLE)
    replaced = copy.deepcopy(theirs)
    treadle.nn.replace(replaced)
    x = torch.randn(5, 4, 3, device=device, **DOUBLE)
    options: dict[str, Any] = {
        "reset": torch.rand(5, 4, device=device) < 0.3,
        "lengths": torch.tensor([5, 0, 2, 4], device=device),
    }
    if kind == "LSTM":
        options["return_cells"] = True
    agree(results(ours(x, **options)), results(replaced(x, **options)), 1e-12)


@EACH_KIND
def test_copies_and_state_dicts(kind: str) -> None:
    """The RNN with 4 groups has a weight_hh of shape [12, 3], like an LSTM with 3 units, but its
    state dict must not be taken for an LSTM's."""
    layer = getattr(treadle.nn, kind)(3, 12, groups=4)
    assert layer.weight_hh_l0.shape == (GATES[kind] * 12, 3)
    assert float(layer.weight_hh_l0.detach().abs().max()) <= 12**-0.5 and "groups=4" in repr(layer)
    file, x = io.BytesIO(), torch.randn(5, 2, 3)
    torch.save(layer, file)
    file.seek(0)
    fresh = getattr(treadle.nn, kind)(3, 12, groups=4)
    fresh.load_state_dict(layer.state_dict())
    for twin in (copy.deepcopy(layer), torch.load(file, weights_only=False), fresh):
        assert twin.groups == 4 and torch.equal(twin(x)[0], layer(x)[0])
    with pytest.raises(RuntimeError, match=rf"\[{GATES[kind] * 12}, 3\]"):
        getattr(nn, kind)(3, 12).load_state_dict(layer.state_dict())


@EACH_KIND
def test_compile_export_and_step(kind: str, fresh_compile: None) -> None:
    layer = getattr(treadle.nn, kind)(3, 12, groups=3)
    x = torch.randn(5, 2, 3)
    expected = layer(x)[0]
    exported = torch.export.export(layer, (x,), strict=False).module()
    agree([exported(x)[0]], [expected], 1e-6)
    step = treadle.nn.make_step(layer, 2)
    agree([torch.stack([step(row).clone() for row in x])], [expected], 1e-6)


def test_tools_that_know_no_groups() -> None:
    model = nn.Sequential(treadle.nn.LSTM(3, 12, groups=3))
    assert treadle.nn.restore(model).left == {"0": "torch has no layers with groups"}
    assert type(model[0]) is treadle.nn.LSTM
    assert treadle.nn.replace(model).replaced == []
    with pytest.raises(RuntimeError, match="got torch.jit.script") as caught:
        torch.jit.script(model)
    assert "restore" not in str(caught.value)
    message = r"LSTM: a layer with groups must be exported by torch.onnx.export\(..., dynamo=True"
    with warnings.catch_warnings(), pytest.raises(RuntimeError, match=message):
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (torch.randn(5, 2, 3),), io.BytesIO(), dynamo=False)


def test_errors() -> None:
    for arguments, error, message in (
        ({"groups": 5}, ValueError, "groups must divide hidden_size, 12, got 5"),
        ({"groups": 0}, ValueError, "groups must be an integer of at least 1, got 0"),
        ({"groups": 2.0}, TypeError, "groups must be an integer of at least 1, got 2.0"),
        ({"groups": True}, TypeError, "groups must be an integer of at least 1, got True"),
        ({"groups": 2, "proj_size": 4}, ValueError, "groups must be 1 with proj_size, got 2"),
    ):
        with pytest.raises(error, match=re.escape(f"LSTM: {message}")):
            treadle.nn.LSTM(3, 12, **arguments)
    layer = treadle.nn.GRU(3, 12, groups=3, dtype=torch.complex64)
    with pytest.raises(ValueError, match="GRU: groups must be 1 in a layer of complex64"):
        layer(torch.randn(5, 2, 3, dtype=torch.complex64))
