"""Tests how treadle.nn.LSTM with proj_size behaves as a module: parameter names, sizes, copies,
files, error texts, replace and restore."""

from __future__ import annotations

import copy
import io
import pickle
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import treadle
from tests.recurrent.nn.test_nn_projections import EACH_DEVICE, FORMS, B, H, I, P, T, pair, states
from tests.recurrent.nn.test_nn_rnn import close, flat, results
from tests.support.compare import attempt
from treadle.nn import Replaced, replace, restore


@FORMS
def test_is_torchs_module(form: dict[str, Any]) -> None:
    made = []
    for kind in (treadle.nn.LSTM, nn.LSTM):
        torch.manual_seed(2)
        made.append(kind(I, H, **form, proj_size=P))
    ours, theirs = made
    assert isinstance(ours, nn.LSTM) and repr(ours) == repr(theirs)
    pairs = zip(ours.named_parameters(), theirs.named_parameters(), strict=True)
    for (name, p), (other, q) in pairs:
        assert name == other and torch.equal(p, q)
    assert [len(w) for w in ours.all_weights] == [len(w) for w in theirs.all_weights]
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(T, B, I)
    torch.testing.assert_close(flat(ours(x)), flat(theirs(x)))


def test_positional_and_numpys_sizes() -> None:
    for layer in (
        treadle.nn.LSTM(I, H, 1, True, False, 0.0, False, P),
        treadle.nn.LSTM(I, H, proj_size=np.int64(P)),
    ):
        assert layer.weight_hr_l0.shape == (P, H) and type(layer.proj_size) is int


@pytest.mark.parametrize("size", [H, H + 1, -1, "a", 2.0, None])
def test_sizes_that_torch_refuses(size: Any) -> None:
    ours, theirs = (
        attempt(lambda cls=cls: cls(I, H, proj_size=size))[1] for cls in (treadle.nn.LSTM, nn.LSTM)
    )
    assert isinstance(ours, type(theirs)) and theirs is not None
    if isinstance(size, int):
        assert str(ours) == str(theirs)


def zeros(*shape: int, dtype: torch.dtype | None = None) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


X, H0, C0 = zeros(T, B, I), zeros(1, B, P), zeros(1, B, H)
CALLS: dict[str, tuple[tuple[Any, ...], str]] = {
    "features": ((zeros(T, B, 7),), "LSTM: input must have shape [T, B, I] or [T, I] with I = 5"),
    "float64 input": ((X.double(),), "LSTM: RNN input dtype (torch.float64) does not match"),
    "h0 of size H": (
        (X, (C0, C0)),
        "LSTM: h0 must have shape [num_layers * D, B, P] = [1, 4, 3], got [1, 4, 7]",
    ),
    "c0 of size P": (
        (X, (H0, H0)),
        "LSTM: c0 must have shape [num_layers * D, B, H] = [1, 4, 7], got [1, 4, 3]",
    ),
    "batch of h0": (
        (X, (zeros(1, 7, P), C0)),
        "LSTM: h0 must have shape [num_layers * D, B, P] = [1, 4, 3], got [1, 7, 3]",
    ),
    "h0 without a batch": (
        (X, (zeros(1, P), zeros(1, H))),
        "LSTM: h0 must have shape [num_layers * D, B, P] = [1, 4, 3], got [1, 3]",
    ),
    "one tensor": ((X, H0), "LSTM: hx must be a pair of tensors (h0, c0), got Tensor"),
    "one tensor [2, ...]": (
        (X, zeros(2, 1, B, P)),
        "LSTM: hx must be a pair of tensors (h0, c0), got Tensor",
    ),
    "one tensor [2, ..., H]": (
        (X, zeros(2, 1, B, H)),
        "LSTM: hx must be a pair of tensors (h0, c0), got Tensor",
    ),
    "float64 h0": ((X, (H0.double(), C0)), "lstm: h0 must have the dtype of input, float32, got "),
    "float64 c0": ((X, (H0, C0.double())), "lstm: c0 must have the dtype of input, float32"),
    "bfloat16 h0": ((X, (H0.bfloat16(), C0)), "lstm: h0 must have the dtype of input, float32"),
}


@pytest.mark.parametrize("case", CALLS)
def test_errors_are_torchs(case: str) -> None:
    args, words = CALLS[case]
    for steps in (T, 1):
        given = (args[0][:steps], *args[1:])
        ours, theirs = (
            attempt(lambda c=cls, g=given: c(I, H, proj_size=P)(*g))[1]
            for cls in (treadle.nn.LSTM, nn.LSTM)
        )
        assert isinstance(ours, type(theirs)) and theirs is not None, (ours, theirs)
        assert str(ours).startswith(words), ours


MARKS = torch.zeros(T, B, dtype=torch.bool)
RESETS: dict[str, tuple[dict[str, Any], str]] = {
    "marks of another batch": (
        {"reset": MARKS[:, :2]},
        "lstm: reset must have shape [T, B] = [4, 4], got [4, 2]",
    ),
    "marks of one step": (
        {"reset": MARKS[0]},
        "lstm: reset must have shape [T, B] = [4, 4], got [4]",
    ),
    "batch_first": (
        {"reset": MARKS[:, :2], "batch_first": True},
        "lstm: reset must have shape [B, T] = [4, 4], got [4, 2]",
    ),
    "float marks": (
        {"reset": MARKS.float()},
        "lstm: reset must have dtype bool, got float32: call reset.bool()",
    ),
    "reset_h of size H": (
        {"reset": MARKS, "reset_hx": (C0, C0)},
        "lstm: reset_hx[0] must have shape [L*D, B, P] = [1, 4, 3], or, with one state for each "
        "step, [1, 4, 4, 3], got [1, 4, 7]",
    ),
    "reset_c of size P": (
        {"reset": MARKS, "reset_hx": (H0, H0)},
        "lstm: reset_hx[1] must have shape [L*D, B, H] = [1, 4, 7], or, with one state for each "
        "step, [1, 4, 4, 7], got [1, 4, 3]",
    ),
    "float64 reset_h": (
        {"reset": MARKS, "reset_hx": (H0.double(), C0)},
        "lstm: reset_hx[0] must have the dtype of input, float32, got float64",
    ),
}


@pytest.mark.parametrize("case", RESETS)
def test_errors_of_resets(case: str) -> None:
    options, words = RESETS[case]
    options = dict(options)
    layer = treadle.nn.LSTM(I, H, proj_size=P, batch_first=options.pop("batch_first", False))
    with pytest.raises(RuntimeError, match=f"^{re.escape(words)}$"):
        layer(X, **options)


def test_copies_and_files_keep_everything() -> None:
    layer, _ = pair(I, H, 2, bidirectional=True)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    loaded, _ = pair(I, H, 2, bidirectional=True)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    x = torch.randn(T, B, I, dtype=torch.float64)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), loaded):
        assert type(other) is type(layer) and repr(other) == repr(layer)
        assert all(map(torch.equal, flat(other(x)), flat(layer(x))))


def test_another_cells_state_dict() -> None:
    gru = nn.GRU(I, H)
    with pytest.raises(RuntimeError, match="LSTM: the state dict must be an LSTM's, got a GRU's"):
        treadle.nn.LSTM(I, H, proj_size=P).load_state_dict(gru.state_dict())


def test_meta_device() -> None:
    layer = treadle.nn.LSTM(I, H, 2, bidirectional=True, proj_size=P, device="meta")
    for steps in (1, T):
        output, (h_n, c_n) = layer(torch.empty(steps, B, I, device="meta"))
        assert output.is_meta and output.shape == (steps, B, 2 * P)
        assert (h_n.shape, c_n.shape) == ((4, B, P), (4, B, H))


@EACH_DEVICE
def test_recompute(device: str) -> None:
    ours, theirs = pair(I, H, 2, bidirectional=True, device=device)
    ours.recompute = True
    x = torch.randn(T, B, I, dtype=torch.float64, device=device)
    close(results(ours, x, None), results(theirs, x, None))


def test_replace_and_restore() -> None:
    model = nn.ModuleDict({"rnn": nn.LSTM(I, H, 2, proj_size=P, bidirectional=True)})
    x, hx = torch.randn(T, B, I), states(model["rnn"], B)
    expected = results(model["rnn"], x, hx)
    assert replace(model) == Replaced(["rnn"], {})
    assert isinstance(model["rnn"], treadle.nn.LSTM) and type(model["rnn"]) is nn.LSTM
    torch.testing.assert_close(results(model["rnn"], x, hx), expected)
    lengths = torch.tensor([4, 0, 1, 3])
    assert model["rnn"](x, lengths=lengths)[0].shape == (T, B, 2 * P)
    assert restore(model) == Replaced(["rnn"], {})
    torch.testing.assert_close(results(model["rnn"], x, hx), expected)
    made = nn.ModuleList([treadle.nn.LSTM(I, H, proj_size=P)])
    assert restore(made) == Replaced(["0"], {}) and type(made[0]) is nn.LSTM
    made[0](x)
