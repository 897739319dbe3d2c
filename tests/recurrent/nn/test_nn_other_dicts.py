"""State dicts of other recurrent modules: compatible ones load, and incompatible ones raise an
error that gives the reason."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

import treadle.nn as ours
from treadle.nn import GRU, LLTM, LSTM, RNN, LLTMCell

I, H = 5, 7  # noqa: E741

GATES = {
    "RNN": "an RNN has no gates and 2 biases",
    "GRU": "a GRU has 3 gates (r, z, n) and 2 biases",
    "LSTM": "an LSTM has 4 gates (i, f, g, o) and 2 biases",
    "LLTM": "an LLTM has 3 gates (i, o, z) and 1 bias",
}
OWN = {
    "RNN": "an RNN has no gates and 2 biases",
    "GRU": "a GRU has 3 gates (r, z, n) and 2 biases",
    "LSTM": "an LSTM has 4 gates (i, f, g, o) and 2 biases",
    "LLTM": "an LLTM has 3 gates (i, o, z) and 1 bias",
}


def reason(into: str, of: str, module: str = "") -> str:
    article = {"GRU": "a", "LSTM": "an", "LLTM": "an", "RNN": "an"}
    return (
        f"{module or into}: the state dict must be {article[into]} {into}'s, got {article[of]} "
        f"{of}'s: {GATES[of]}, but {OWN[into]}, so the weights cannot be converted"
    )


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("into", OWN)
@pytest.mark.parametrize("of", GATES)
def test_another_cells_weights_raise_with_the_reason(
    of: str, into: str, bias: bool, strict: bool
) -> None:
    """A GRU and an LLTM without biases also refuse each other's weights, although names and shapes
    are the same."""
    other = getattr(nn, of, None) or getattr(ours, of)
    saved = other(I, H, bias=bias, num_layers=2, bidirectional=True).state_dict()
    layer = getattr(ours, into)(I, H, bias=bias, num_layers=2, bidirectional=True)
    if of == into:
        layer.load_state_dict(saved, strict=strict)
        assert all(torch.equal(p, saved[name]) for name, p in layer.named_parameters())
        return
    before = [p.clone() for p in layer.parameters()]
    with pytest.raises(RuntimeError, match=re.escape(reason(into, of))) as raised:
        layer.load_state_dict(saved, strict=strict)
    assert "Missing" not in str(raised.value)
    assert all(map(torch.equal, layer.parameters(), before))
    with pytest.raises(RuntimeError, match=re.escape(reason(into, of))):
        nn.ModuleDict({"rnn": layer}).load_state_dict(
            nn.ModuleDict({"rnn": other(I, H, bias=bias)}).state_dict()
        )


def test_between_ours_as_between_torchs() -> None:
    for a, b in ((GRU, LSTM), (LSTM, GRU)):
        with pytest.raises(RuntimeError, match="the weights cannot be converted"):
            a(I, H).load_state_dict(b(I, H).state_dict())


def test_a_dict_that_does_not_say_whose_it_is_loads() -> None:
    """safetensors files and dictionaries made by hand have no metadata."""
    layer = LLTM(I, H, bias=False)
    saved = {name: value.clone() + 1 for name, value in layer.state_dict().items()}
    layer.load_state_dict(saved)
    assert torch.equal(layer.weight_hh_l0, saved["weight_hh_l0"])


def test_sizes_are_still_torchs_to_report() -> None:
    for kind in (LLTM, LSTM, GRU, RNN):
        with pytest.raises(RuntimeError, match="size mismatch for weight_ih_l0"):
            kind(I, H).load_state_dict(kind(I + 1, H).state_dict())
        with pytest.raises(RuntimeError, match="Missing key.*weight_hh_l1"):
            kind(I, H, num_layers=2).load_state_dict(kind(I, H).state_dict())


# ---- LLTM and LLTMCell


@pytest.mark.parametrize("assign", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_and_a_cell_load_each_other(bias: bool, assign: bool) -> None:
    layer, cell, x = LLTM(I, H, bias=bias), LLTMCell(I, H, bias=bias), torch.randn(1, 3, I)
    keys = list(cell.state_dict())
    layer.load_state_dict(cell.state_dict(), assign=assign)
    again = LLTMCell(I, H, bias=bias)
    outer = nn.ModuleDict({"cell": again})
    saved = nn.ModuleDict({"cell": layer}).state_dict()
    outer.load_state_dict(saved, assign=assign)
    for step in (cell, again):
        for ours_, theirs in zip(layer(x)[1], step(x[0]), strict=True):
            torch.testing.assert_close(ours_[0], theirs)
    assert all(map(torch.equal, again.parameters(), cell.parameters()))
    assert list(again.state_dict()) == keys
    assert all(p.is_leaf and p.is_contiguous() for p in (*layer.parameters(), *again.parameters()))


def test_the_tutorials_weights_load_into_a_layer() -> None:
    """The bias of PyTorch's tutorial has shape [1, 3H]."""
    cell, layer = LLTMCell(I, H), LLTM(I, H)
    layer.load_state_dict({"weights": cell.weights.detach(), "bias": cell.bias.detach()[None]})
    assert torch.equal(layer.bias_l0, cell.bias)


@pytest.mark.parametrize("form", [{"num_layers": 2}, {"bidirectional": True}])
def test_more_than_a_layer_is_no_cell(form: dict[str, Any]) -> None:
    words = "LLTM: num_layers must be 1 and bidirectional False for the state dict of an LLTMCell"
    with pytest.raises(RuntimeError, match=f"{words}, got "):
        LLTM(I, H, **form).load_state_dict(LLTMCell(I, H).state_dict())
    words = "LLTMCell: the state dict of an LLTM must be of one layer in one direction, got more"
    with pytest.raises(RuntimeError, match=words):
        LLTMCell(I, H).load_state_dict(LLTM(I, H, **form).state_dict())


def test_cells_that_do_not_fit() -> None:
    with pytest.raises(RuntimeError, match="(?s)Missing key.*weight_ih_l0.*Unexpected.*weights"):
        LLTM(I, H).load_state_dict(LLTMCell(I + 1, H).state_dict())
    with pytest.raises(RuntimeError, match="size mismatch for weights"):
        LLTMCell(I, H).load_state_dict(LLTM(I + 1, H).state_dict())
    for of in ("LSTM", "GRU", "RNN"):
        for other in (getattr(nn, of)(I, H), getattr(nn, f"{of}Cell")(I, H)):
            words = re.escape(reason("LLTM", of, "LLTMCell"))
            with pytest.raises(RuntimeError, match=words):
                LLTMCell(I, H).load_state_dict(other.state_dict())


# ---- dtypes


@pytest.mark.parametrize("kind", [LSTM, GRU, RNN, LLTM, LLTMCell])
def test_parameters_have_a_dtype_of_the_ops(kind: type[nn.Module]) -> None:
    rule = f"{kind.__name__}: dtype must be float64, float32, float16 or bfloat16, got"
    refused = (torch.int32, torch.bool, *((torch.complex64,) if "LLTM" in kind.__name__ else ()))
    for dtype in refused:
        with pytest.raises(ValueError, match=f"^{rule} {str(dtype)[6:]}$"):
            kind(I, H, dtype=dtype)
    with pytest.raises(TypeError, match=f"^{rule} 'float32'$"):
        kind(I, H, dtype="float32")


def said_of_float64(kind: type[nn.Module]) -> str:
    if kind in (LSTM, GRU, RNN):  # torch's message
        return (
            "RNN input dtype (torch.float64) does not match weight dtype (torch.float32). Convert "
            "input: input.to(torch.float32), or convert model: model.to(torch.float64)"
        )
    return "input must have the dtype of the parameters, float32, got float64: call input.float()"


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("kind", [LSTM, GRU, RNN, LLTM, LLTMCell])
def test_the_input_has_the_dtype_of_the_parameters(kind: type[nn.Module], device: str) -> None:
    """Inputs made from NumPy arrays are often float64."""
    layer = kind(I, H, device=device)
    words = "must have the dtype of the parameters, float32, got float64: call"
    shape = (4, I) if kind is LLTMCell else (3, 4, I)
    x = torch.zeros(shape, dtype=torch.float64, device=device)
    name = kind.__name__
    error = re.escape(f"{name}: {said_of_float64(kind)}")
    with pytest.raises(RuntimeError, match=f"^{error}$"):
        layer(x)
    if kind is not LLTMCell and device == "cpu":
        packed = nn.utils.rnn.pack_sequence([x[:, 0], x[:2, 1]])
        with pytest.raises(
            RuntimeError, match=rf"^{name}: input\.data {words} input\.data\.float\(\)$"
        ):
            layer(packed)
    with torch.autocast("cpu", torch.bfloat16):
        kind(I, H)(torch.zeros(shape, dtype=torch.float16))


@pytest.mark.parametrize("register", ["register", "_register"])
@pytest.mark.parametrize("kind", [LSTM, GRU, RNN, LLTM])
def test_hooks_convert_before_anything_is_checked(kind: Any, register: str) -> None:
    layer, gates = kind(I, H), {LSTM: 4, GRU: 3, RNN: 1, LLTM: 3}[kind]
    calls = []

    def convert(*args: Any) -> None:
        entries = args[1] if register == "register" else args[0]
        calls.append(len(entries))
        for key in list(entries):
            value = entries[key]
            entries[key] = value.repeat(gates, *[1] * (value.dim() - 1))
        if kind is LLTM:
            entries["bias_l0"] = entries.pop("bias_ih_l0") + entries.pop("bias_hh_l0")

    hook = getattr(layer, f"{register}_load_state_dict_pre_hook")(convert)
    of_rnn = nn.RNN(I, H).state_dict()
    layer.load_state_dict(of_rnn)
    assert calls == [4]
    assert torch.equal(layer.weight_hh_l0[:H], of_rnn["weight_hh_l0"])
    hook.remove()
    if kind is RNN:
        return
    with pytest.raises(RuntimeError, match="got an RNN's"):
        layer.load_state_dict(of_rnn)


def test_hooks_of_a_cell_and_of_a_sine_net_convert_first() -> None:
    def strip(entries: Any, prefix: str, *_: Any) -> None:
        for key in [key for key in entries if key.startswith("old.")]:
            entries[key.removeprefix("old.")] = entries.pop(key)

    layer, cell = LLTM(I, H), LLTMCell(I, H)
    for into, of in ((cell, layer), (layer, cell)):
        into._register_load_state_dict_pre_hook(strip)
        into.load_state_dict({f"old.{key}": value for key, value in of.state_dict().items()})
    net, paper = ours.Siren(2, 4, 1, 1, True), ours.Siren(2, 4, 1, 1, True)
    net._register_load_state_dict_pre_hook(strip)
    renamed = {f"old.{key}": value for key, value in paper.to_paper_state_dict().items()}
    net.load_state_dict(renamed)
    assert torch.equal(net.net[0].weight, paper.net[0].weight)


@pytest.mark.parametrize("kind", [LSTM, GRU, RNN, LLTM, LLTMCell])
def test_float64_is_not_cast_by_autocast(kind: Any) -> None:
    module = kind(I, H)
    x = torch.zeros(*([2] if kind is LLTMCell else [3, 2]), I, dtype=torch.float64)
    words = re.escape(f"{kind.__name__}: {said_of_float64(kind)}")
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(RuntimeError, match=words):
        module(x)
