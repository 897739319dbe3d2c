"""Errors and warnings of treadle.nn.LLTM."""

from __future__ import annotations

import math
import re
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.testing._internal import common_modules

from treadle.nn import LLTM

B, I, H = 4, 5, 7  # noqa: E741
FLAGS = ("bias", "batch_first", "bidirectional")


def test_module_error_samples_of_lstm() -> None:
    """LLTM refuses the samples that nn.LSTM refuses, with the same exception type and its own
    message."""
    found = common_modules.module_error_inputs_torch_nn_RNN_GRU(
        None, "cpu", torch.float32, False, training=True
    )
    assert len(found) > 10
    for error in found:
        sample = error.module_error_input
        made, called = sample.constructor_input, sample.forward_input
        if error.error_on is common_modules.ModuleErrorEnum.CONSTRUCTION_ERROR:
            with pytest.raises(error.error_type, match="^LLTM: .+ must .+, got "):
                LLTM(*made.args, **made.kwargs)
        else:
            layer = LLTM(*made.args, **made.kwargs)
            words = "^LLTM: input must have the dtype of the parameters, float32, got "
            with pytest.raises(RuntimeError, match=words):
                layer(*called.args)


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape)


def packed(features: int) -> PackedSequence:
    return pack_sequence([zeros(3, features), zeros(2, features)])


STATE = zeros(2, B, H)
SHAPE = "input must have shape [T, B, I] or [T, I] with I = 5, got "
CALLS: dict[str, tuple[Any, Any, str]] = {
    "features": (zeros(3, 4, 6), None, f"{SHAPE}[3, 4, 6]"),
    "1-D": (zeros(5), None, f"{SHAPE}[5]"),
    "4-D": (zeros(1, 3, 4, 5), None, f"{SHAPE}[1, 3, 4, 5]"),
    "no tensor": ([1.0], None, "input must be a tensor or a PackedSequence, got list"),
    "packed": (packed(6), None, "input.data must have shape [S, I] with I = 5, got [5, 6]"),
    "no pair": (zeros(3, 4, 5), STATE, "hx must be a pair of tensors (h0, c0), got Tensor"),
    "three": (
        zeros(3, 4, 5),
        (STATE,) * 3,
        "hx must be a pair of tensors (h0, c0), got tuple of length 3",
    ),
    "None": (zeros(3, 4, 5), (STATE, None), "c0 must be a tensor, got NoneType"),
    "h0": (
        zeros(3, 4, 5),
        (zeros(1, 4, 7), STATE),
        "h0 must have shape [num_layers * D, B, H] = [2, 4, 7], got [1, 4, 7]",
    ),
    "c0": (
        zeros(3, 4, 5),
        (STATE, zeros(2, 4, 6)),
        "c0 must have shape [num_layers * D, B, H] = [2, 4, 7], got [2, 4, 6]",
    ),
    "no batch in hx": (
        zeros(3, 4, 5),
        (zeros(2, 7),) * 2,
        "h0 must have shape [num_layers * D, B, H] = [2, 4, 7], got [2, 7]",
    ),
    "no batch but in hx": (
        zeros(3, 5),
        (zeros(2, 1, 7),) * 2,
        "h0 must have shape [num_layers * D, H] = [2, 7], got [2, 1, 7]",
    ),
    "hx of packed": (
        packed(5),
        (STATE, STATE),
        "h0 must have shape [num_layers * D, B, H] = [2, 2, 7], got [2, 4, 7]",
    ),
}


@pytest.mark.parametrize("case", CALLS)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_errors(case: str, device: str) -> None:
    x, hx, message = CALLS[case]
    x = x.to(device) if isinstance(x, (Tensor, PackedSequence)) else x
    if isinstance(hx, tuple):
        hx = tuple(t.to(device) if isinstance(t, Tensor) else t for t in hx)
    kind = TypeError if "tensor" in message else ValueError
    with pytest.raises(kind, match=f"^{re.escape('LLTM: ' + message)}$"):
        LLTM(I, H, num_layers=2, device=device)(x, hx)


def test_an_error_names_the_order_of_the_batch() -> None:
    with pytest.raises(
        ValueError, match=re.escape("[B, T, I] or [T, I] with I = 5, got [4, 3, 6]")
    ):
        LLTM(I, H, batch_first=True)(zeros(4, 3, 6))


@pytest.mark.parametrize(
    "arguments, kind, message",
    [
        *((dict(dropout=d), ValueError, "a number between 0 and 1") for d in (2, -0.1, True, "0")),
        *((dict(dropout=d), ValueError, "a number between 0 and 1") for d in (math.nan, None)),
        *((dict([(name, 1)]), TypeError, "a bool") for name in (*FLAGS, "recompute")),
        *(
            (dict([(name, value)]), kind, "an integer of at least 1")
            for name in ("input_size", "hidden_size", "num_layers")
            for value, kind in ((0, ValueError), (-1, ValueError), (2.0, TypeError))
        ),
        ({"num_layers": True}, TypeError, "an integer of at least 1"),
    ],
)
def test_errors_of_construction(
    arguments: dict[str, Any], kind: type[Exception], message: str
) -> None:
    ((name, value),) = arguments.items()
    fact = "int" if kind is TypeError and "bool" in message else repr(value)
    words = f"LLTM: {name} must be {message}, got {fact}"
    with pytest.raises(kind, match=f"^{re.escape(words)}$"):
        LLTM(**{"input_size": I, "hidden_size": H, **arguments})


def test_warns_where_dropout_does_nothing() -> None:
    words = "^LLTM: dropout acts between layers, .* got dropout=0.5 and num_layers=1$"
    with pytest.warns(UserWarning, match=words) as seen:
        LLTM(I, H, dropout=0.5)
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LLTM(I, H, num_layers=2, dropout=0.5)
