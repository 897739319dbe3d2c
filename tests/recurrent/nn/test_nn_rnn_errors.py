"""Wrong calls of treadle.nn.LSTM, GRU and RNN raise errors whose classes are those of torch.nn's
errors or derive from them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from tests.recurrent.nn.test_nn_rnn import EACH, KINDS
from tests.support.compare import attempt
from treadle.nn import _errors

T, B, I, H = 6, 4, 3, 5  # noqa: E741
Make = Callable[..., Any]


def zeros(*shape: int, dtype: torch.dtype | None = None) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def packed(*lengths: int, features: int = I, dtype: torch.dtype | None = None) -> PackedSequence:
    x = zeros(max(lengths), len(lengths), features, dtype=dtype)
    return pack_padded_sequence(x, list(lengths), enforce_sorted=False)


X, ROW, SORTED = zeros(T, B, I), zeros(T, I), packed(6, 3, 2, 1)
SORTED = SORTED._replace(sorted_indices=None, unsorted_indices=None)
STATE, HALF = zeros(1, B, H), torch.bfloat16

# Arguments of a call. For an LSTM, a single state here means h0 and c0 with the same value.
CALLS: dict[str, tuple[Any, ...]] = {
    "features": (zeros(T, B, 7),),
    "features without a batch": (zeros(T, 7),),
    "batch of h0": (X, zeros(1, 7, H)),
    "hidden size of h0": (X, zeros(1, B, 7)),
    "layers of h0": (X, zeros(2, B, H)),
    "2-D h0 of a batch": (X, zeros(1, H)),
    "3-D h0 without a batch": (ROW, STATE),
    "4-D input": (zeros(1, T, B, I),),
    "1-D input": (zeros(I),),
    "float64 input": (X.double(),),
    "float64 h0": (X, STATE.double()),
    "bfloat16 h0": (X, STATE.to(HALF)),
    "int64 input": (X.long(),),
    "bool input without a batch": (ROW.bool(),),
    "complex64 input": (X.to(torch.complex64),),
    "no rows": (zeros(T, 0, I),),
    "input is a list": ([[1.0]],),
    "input is None": (None,),
    "input of NumPy": (X.numpy(),),
    "input on meta": (X.to("meta"),),
    "packed, features": (packed(6, 3, 2, 1, features=7),),
    "packed, batch of h0": (SORTED, zeros(1, 7, H)),
    "packed, 1-D data": (SORTED._replace(data=zeros(12)),),
    "packed, float64": (packed(6, 3, 2, 1, dtype=torch.float64),),
    "packed and sorted, float64": (SORTED._replace(data=SORTED.data.double()),),
}
# Invalid values of hx. torch's module checks some of them. The others reach its op, which raises
# errors of another class.
STATES: dict[str, tuple[Any, Any]] = {
    "list of one": (X, [STATE]),
    "tuple of three": (X, (STATE,) * 3),
    "no states": (X, ()),
    "number": (X, 1.0),
    "string": (X, "hc"),
    "list of one, packed": (SORTED, [STATE]),
    "list of one, packed in another order": (packed(1, 3, 6, 2), [STATE]),
}
STATES_OF_LSTM: dict[str, tuple[Any, Any]] = {
    "one tensor": (X, STATE),
    "one tensor [2, ...]": (X, zeros(2, 1, B, H)),
    "one tensor of two layers": (X, zeros(2, B, H)),
    "one number": (X, zeros()),
    "c0 of another batch": (X, (STATE, zeros(1, 7, H))),
    "c0 is None": (X, (STATE, None)),
    "h0 is a list": (X, ([0.0], STATE)),
    "one tensor, packed": (SORTED, STATE),
}
SIZES: dict[str, dict[str, Any]] = {
    "hidden_size=0": {"hidden_size": 0},
    "hidden_size=-1": {"hidden_size": -1},
    "hidden_size='a'": {"hidden_size": "a"},
    "hidden_size=2.0": {"hidden_size": 2.0},
    "input_size=0": {"input_size": 0},
    "num_layers=0": {"num_layers": 0},
    "dropout=2": {"num_layers": 2, "dropout": 2},
    "dropout='a'": {"num_layers": 2, "dropout": "a"},
    "dropout=True": {"num_layers": 2, "dropout": True},
    "bias=0": {"bias": 0},
    "batch_first=1": {"batch_first": 1},
    "bidirectional=1": {"bidirectional": 1},
    "bidirectional=np.True_": {"bidirectional": np.True_},
    "proj_size=9": {"proj_size": 9},
    "proj_size=-1": {"proj_size": -1},
    "proj_size='a'": {"proj_size": "a"},
    "dtype=int64": {"dtype": torch.int64},
    "dtype='float32'": {"dtype": "float32"},
    "device='nowhere'": {"device": "nowhere"},
    "unknown keyword": {"wrong": 1},
}


# Cases in which the error classes may have different names.
NAMED_OTHERWISE = {"number", "list of one, packed", "one tensor, packed"}


def same_class(make: Make, kind: str, named: bool = True) -> Exception | None:
    """treadle's error, or None if there is none. Checks that its class derives from that of torch's
    error and, if ``named``, has the same name."""
    ours, theirs = (attempt(lambda c=cls: make(c))[1] for cls in KINDS[kind])
    if theirs is None:
        assert ours is None, repr(ours)
        return None
    assert isinstance(ours, type(theirs)), (ours, theirs)
    assert not named or type(ours).__name__ == type(theirs).__name__, (ours, theirs)
    return ours


@EACH
@pytest.mark.parametrize("case", CALLS)
def test_calls(kind: str, case: str) -> None:
    x, *h0 = CALLS[case]
    hx = [(h, h) if kind == "LSTM" else h for h in h0]
    error = same_class(lambda cls: cls(I, H)(x, *hx), kind)
    assert (error is None) == (case == "no rows")
    assert error is None or str(error).lower().startswith((f"{kind.lower()}: ", "rnn_tanh: ")), (
        error
    )


@EACH
@pytest.mark.parametrize("case", [*STATES, *STATES_OF_LSTM])
def test_states(kind: str, case: str) -> None:
    if case in STATES_OF_LSTM and kind != "LSTM":
        return
    x, hx = {**STATES, **STATES_OF_LSTM}[case]
    error = same_class(lambda cls: cls(I, H)(x, hx), kind, case not in NAMED_OTHERWISE)
    assert str(error).startswith(f"{kind}: ") and isinstance(error, (TypeError, ValueError)), error


@EACH
@pytest.mark.parametrize("case", SIZES)
def test_construction(kind: str, case: str) -> None:
    """torch's layer and treadle's raise, at construction or in the first call."""
    options = {"input_size": I, "hidden_size": H, **SIZES[case]}
    assert same_class(lambda cls: cls(**options)(X), kind) is not None


def test_errors_travel_between_processes() -> None:
    """DataLoader and multiprocessing can pickle both the exception classes and instances."""
    kinds = {k for k in vars(_errors).values() if isinstance(k, type)}
    assert len(kinds) == 6
    for kind in kinds:
        assert pickle.loads(pickle.dumps(kind)) is kind
        error = pickle.loads(pickle.dumps(kind("words")))
        assert type(error) is kind and str(error) == "words"
