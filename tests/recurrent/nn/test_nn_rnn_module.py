"""Tests how treadle.nn.LSTM, GRU and RNN behave as modules: parameter names, copies, files, dtypes,
memory, errors."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal import common_modules

import treadle
from tests.recurrent.nn.test_nn_rnn import (
    EACH,
    FORMS,
    KINDS,
    B,
    H,
    I,
    T,
    close,
    flat,
    forms,
    module_info,
    pair,
    results,
    states,
)
from tests.support.compare import attempt
from tests.support.inputs import DEVICES, FLOATING, HALVES

# ---- parameters, copies, files


@pytest.mark.parametrize("device", DEVICES)
@EACH
def test_parameters_stay_where_they_are(
    kind: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each parameter has separate memory, which safetensors needs. torch's parameters share memory
    on a GPU."""
    theirs = KINDS[kind][1](I, H)
    flattened: list[nn.Module] = []
    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", lambda self: flattened.append(self))
    for layer in (KINDS[kind][0](I, H), theirs):
        if layer is theirs:
            treadle.nn.replace(theirs)
        layer.to(device).double()
        assert layer.flatten_parameters() is None and flattened == []
        for p in layer.parameters():
            assert p.untyped_storage().nbytes() == p.numel() * p.element_size()
    treadle.nn.restore(theirs)
    assert flattened == [theirs]


@EACH
@FORMS
def test_is_torchs_module(kind: str, form: dict[str, Any]) -> None:
    torch.manual_seed(2)
    ours = KINDS[kind][0](I, H, **form)
    torch.manual_seed(2)
    theirs = KINDS[kind][1](I, H, **form)
    assert isinstance(ours, KINDS[kind][1]) and repr(ours) == repr(theirs)
    assert ours.mode == theirs.mode
    pairs = zip(ours.named_parameters(), theirs.named_parameters(), strict=True)
    for (name, p), (other, q) in pairs:
        assert name == other and torch.equal(p, q)
    assert [len(w) for w in ours.all_weights] == [len(w) for w in theirs.all_weights]
    theirs.load_state_dict(KINDS[kind][0](I, H, **form).state_dict())
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(T, B, I)
    torch.testing.assert_close(flat(ours(x)), flat(theirs(x)))


@EACH
def test_recompute(kind: str) -> None:
    ours, theirs = pair(kind, I, H, 2, bidirectional=True, dtype=torch.float64)
    ours.recompute = True
    assert repr(ours) == repr(theirs)[:-1] + ", recompute=True)"
    assert KINDS[kind][0](I, H, recompute=True).recompute
    x = torch.randn(T, B, I, dtype=torch.float64)
    close(results(ours, x, None), results(theirs, x, None))
    with pytest.raises(TypeError, match=f"^{kind}: recompute must be a bool, got int$"):
        KINDS[kind][0](I, H, recompute=1)


@EACH
def test_bytes_kept_are_those_of_the_docstring(kind: str) -> None:
    gates = 1 if kind == "RNN" else 4
    for dtype, recompute in itertools.product(FLOATING, (False, True)):
        layer = KINDS[kind][0](I, H, dtype=dtype, recompute=recompute)
        kept = []
        for steps in (20, 10):
            storages: dict[int, int] = {}

            def pack(t: Tensor, storages: dict[int, int] = storages) -> Tensor:
                storages[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
                return t

            x = torch.randn(steps, B, I, dtype=dtype)
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
                result = layer(x)
            storages.pop(x.untyped_storage().data_ptr(), None)
            kept.append(sum(storages.values()))
            del result
        assert kept[0] - kept[1] == H * (1 if recompute else 1 + gates) * dtype.itemsize * 10 * B


@EACH
def test_copies_and_files_keep_everything(kind: str) -> None:
    for form in forms():
        layer = KINDS[kind][0](I, H, **form, recompute=True)
        file = io.BytesIO()
        torch.save(layer.state_dict(), file)
        file.seek(0)
        loaded = KINDS[kind][0](I, H, **form, recompute=True)
        loaded.load_state_dict(torch.load(file, weights_only=True))
        x = torch.randn(T, B, I)
        for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), loaded):
            assert type(other) is type(layer) and repr(other) == repr(layer)
            assert other.weight_hh_l0 is not layer.weight_hh_l0
            assert all(map(torch.equal, flat(other(x)), flat(layer(x))))


@EACH
def test_tied_weights(kind: str) -> None:
    """The two directions of a layer may share parameters."""
    ours, theirs = pair(kind, I, H, bidirectional=True, dtype=torch.float64)
    for layer in (ours, theirs):
        layer.weight_hh_l0_reverse = layer.weight_hh_l0
        layer.bias_ih_l0_reverse = layer.bias_hh_l0
    x = torch.randn(T, B, I, dtype=torch.float64)
    close(results(ours, x, None), results(theirs, x, None))


@EACH
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", HALVES)
def test_states_of_halves(kind: str, dtype: torch.dtype, device: str) -> None:
    """States have the dtype of the input. An LSTM's c may be float32, and then stays float32."""
    layer = KINDS[kind][0](I, H, 2, device=device, dtype=dtype)
    x = torch.randn(T, B, I, device=device, dtype=dtype)
    assert {t.dtype for t in flat(layer(x))} == {dtype}
    if kind == "LSTM":
        h0, c0 = states(layer, B)
        output, (h_n, c_n) = layer(x, (h0, c0.float()))
        assert (output.dtype, h_n.dtype, c_n.dtype) == (dtype, dtype, torch.float32)


@pytest.mark.parametrize("device", DEVICES)
def test_a_gru_carries_h_unrounded(device: str) -> None:
    """Changes of h accumulate even if each step changes h by less than half an ulp of bfloat16."""
    layer = treadle.nn.GRU(1, 1, bias=True, device=device, dtype=torch.bfloat16)
    with torch.no_grad():
        for p in layer.parameters():
            p.zero_()
        layer.bias_ih_l0[1] = 9  # z = 0.99988, so h decays slowly to n = 0
        output, h = layer(
            torch.zeros(4000, 1, 1, device=device, dtype=torch.bfloat16),
            torch.ones(1, 1, 1, device=device, dtype=torch.bfloat16),
        )
    z = torch.tensor(9.0, dtype=torch.float64).sigmoid()
    assert abs(h.item() - float(z**4000)) < 0.004 and output[0].item() == 1


@EACH
def test_meta_device(kind: str) -> None:
    with torch.device("meta"):
        inside = KINDS[kind][0](I, H)
    layer = KINDS[kind][0](I, H, 2, bidirectional=True, device="meta", dtype=torch.bfloat16)
    assert all(p.is_meta for p in (*inside.parameters(), *layer.parameters()))
    output, *last = flat(layer(torch.empty(T, B, I, device="meta", dtype=torch.bfloat16)))
    assert output.is_meta and output.shape == (T, B, 2 * H)
    assert {t.shape for t in last} == {(4, B, H)}
    layer.to_empty(device="cpu").reset_parameters()
    assert layer(torch.randn(T, B, I).bfloat16())[0].isfinite().all()


# ---- errors


@EACH
def test_module_error_samples(kind: str) -> None:
    """Samples that torch refuses raise the same exception type: torch's own error at construction,
    treadle's in calls."""
    info, calls = module_info(kind), 0
    for error in info.module_error_inputs_func(info, "cpu", torch.float32, False, training=True):
        made, called = (
            error.module_error_input.constructor_input,
            error.module_error_input.forward_input,
        )
        if error.error_on is common_modules.ModuleErrorEnum.CONSTRUCTION_ERROR:
            with pytest.raises(error.error_type, match=error.error_regex):
                KINDS[kind][0](*made.args, **made.kwargs)
            continue
        with pytest.raises(error.error_type, match=f"^{kind}: {error.error_regex}$"):
            KINDS[kind][0](*made.args, **made.kwargs)(*called.args)
        calls += 1
    assert calls > 0


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape)


RULE = "input must have shape [T, B, I] or [T, I] with I = 5, got "
STATE = "h0 must have shape [num_layers * D, "
CALLS: dict[str, tuple[Any, Tensor | None, str]] = {
    "features": (zeros(3, 4, 6), None, f"{RULE}[3, 4, 6]"),
    "1-D": (zeros(5), None, f"{RULE}[5]"),
    "4-D": (zeros(1, 3, 4, 5), None, f"{RULE}[1, 3, 4, 5]"),
    "no tensor": ([1.0], None, "input must be a tensor or a PackedSequence, got list"),
    "layers": (zeros(3, 4, 5), zeros(1, 4, 7), f"{STATE}B, H] = [2, 4, 7], got [1, 4, 7]"),
    "no batch in hx": (zeros(3, 4, 5), zeros(2, 7), f"{STATE}B, H] = [2, 4, 7], got [2, 7]"),
    "no batch but in hx": (zeros(3, 5), zeros(2, 1, 7), f"{STATE}H] = [2, 7], got [2, 1, 7]"),
}


@EACH
@pytest.mark.parametrize("case", CALLS)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_errors(kind: str, case: str, device: str) -> None:
    x, h0, message = CALLS[case]
    x = x.to(device) if isinstance(x, Tensor) else x
    h0 = None if h0 is None else h0.to(device)
    ours, theirs = (each(I, H, num_layers=2, device=device) for each in KINDS[kind])
    error = TypeError if "tensor" in message else ValueError
    hx = (h0, h0) if h0 is not None and kind == "LSTM" else h0
    with pytest.raises(error, match=f"^{re.escape(f'{kind}: {message}')}$"):
        ours(x, hx)
    assert attempt(lambda: theirs(x, hx))[1] is not None


def test_errors_of_states() -> None:
    x, h = zeros(3, 4, 5), zeros(2, 4, 7)
    lstm, gru = treadle.nn.LSTM(I, H, 2), treadle.nn.GRU(I, H, 2)
    words = "LSTM: hx must be a pair of tensors (h0, c0), got "
    for hx, fact in ((h, "Tensor"), ((h,) * 3, "tuple of length 3")):
        with pytest.raises(TypeError, match=f"^{re.escape(words + fact)}$"):
            lstm(x, hx)
    with pytest.raises(TypeError, match="^GRU: h0 must be a tensor, got tuple$"):
        gru(x, (h, h))
    with pytest.raises(TypeError, match="^LSTM: c0 must be a tensor, got NoneType$"):
        lstm(x, (h, None))


def test_a_gru_has_no_projections() -> None:
    words = "GRU: proj_size argument is only supported for LSTM, not RNN or GRU, got 3"
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        treadle.nn.GRU(I, H, proj_size=3)


@EACH
def test_in_the_place_of_torchs_class(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = KINDS[kind][0]
    monkeypatch.setattr(nn, kind, ours)
    layer = getattr(nn, kind)(I, H)
    assert type(layer) is ours and layer(torch.zeros(2, 3, I))[0].shape == (2, 3, H)
