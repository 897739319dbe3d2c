"""Invalid values of `lengths` and `return_cells`, and their error texts."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import treadle
from tests.recurrent.support.layer_cases import EACH_CELL
from tests.recurrent.support.length_calls import INPUTS, B, Given, H, T, lengths
from tests.support.inputs import other_device

SHAPE = "lstm: lengths must have shape [B] = [5], got "
CALL = torch.randn(T, B, INPUTS)
BAD: tuple[tuple[Any, str], ...] = (
    (torch.ones(B), "lstm: lengths must have dtype int64 or int32, got float32"),
    (torch.ones(B, dtype=torch.bool), "lstm: lengths must have dtype int64 or int32, got bool"),
    (torch.ones(B + 1, dtype=torch.int64), SHAPE + "[6]"),
    (torch.ones(B, 1, dtype=torch.int64), SHAPE + "[5, 1]"),
    (torch.tensor(3), SHAPE + "[]"),
)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(("wrong", "message"), BAD, ids=[str(n) for n in range(len(BAD))])
def test_bad_lengths(wrong: torch.Tensor, message: str, device: str) -> None:
    given = Given("lstm", device=device)
    with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
        given.run(lengths=wrong.to(device))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_lengths_on_another_device(device: str) -> None:
    given, other = Given("gru", device=device), other_device(device)
    message = f"gru: lengths must be on input's device, {device}, got {other}"
    with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
        given.run(lengths=lengths(other))


@EACH_CELL
def test_other_arguments_are_refused_in_the_same_words(cell: str) -> None:
    """The errors are the same as in a call without lengths."""
    given = Given(cell)
    for wrong in (0, 1, given.count + 1, given.count + 2):
        tensors = given.tensors()
        tensors[wrong] = torch.cat([tensors[wrong]] * 2, dim=-1)
        messages = []
        for options in ({}, {"lengths": lengths()}):
            with pytest.raises(RuntimeError) as raised:
                given.run(tensors, **options)
            messages.append(str(raised.value))
        assert messages[0] == messages[1]


@EACH_CELL
def test_values_are_checked_if_asked_for(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = Given(cell)
    monkeypatch.setenv("TREADLE_CHECK_LENGTHS", "1")
    given.run(lengths=lengths())
    for value in (-1, T + 1):
        steps = lengths()
        steps[2] = value
        message = f"{cell}: lengths must be from 0 to T = 7, got {value}"
        with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
            given.run(lengths=steps)
        with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
            torch.func.vmap(lambda s: given.run(lengths=s))(torch.stack([lengths(), steps]))
    monkeypatch.setenv("TREADLE_CHECK_LENGTHS", "0")
    given.run(lengths=steps)


def test_packed_batches_have_lengths_of_their_own() -> None:
    given = Given("lstm")
    x, h0, c0, *params = given.tensors()
    message = "lstm: lengths must come with a padded input, got batch_sizes"
    with pytest.raises(RuntimeError, match=f"^{message}$"):
        treadle.lstm(  # type: ignore[call-overload]
            x[:, 0], torch.ones(T, dtype=torch.int64), (h0, c0), params, *given.rest,
            lengths=lengths(),
        )  # fmt: skip
    packed = torch.nn.utils.rnn.pack_sequence([torch.randn(3, INPUTS)])
    with pytest.raises(
        TypeError, match="^LSTM: lengths must come with a padded input, got a PackedSequence$"
    ):
        treadle.nn.LSTM(INPUTS, H)(packed, lengths=torch.tensor([3]))  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("LSTM", {"lengths": [3]}, "LSTM: lengths must be a tensor or None, got list"),
        ("LLTM", {"return_cells": 1}, "LLTM: return_cells must be a bool, got int"),
        (
            "GRU",
            {"return_cells": True},
            "GRU: return_cells must be False, got True: the output is the state of every step",
        ),
    ],
)
def test_modules(kind: str, options: dict[str, Any], message: str) -> None:
    net = getattr(treadle.nn, kind)(INPUTS, H)
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(message)}$"):
        net(CALL, **options)


def test_cells_of_a_gru_and_of_no_bool() -> None:
    message = "gru: return_cells must be False, got True: the output is the state of every step"
    with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
        Given("gru").run(return_cells=True)
    with pytest.raises(TypeError, match="^lstm: return_cells must be a bool, got int$"):
        Given("lstm").run(return_cells=1)


def test_rows_of_states_under_autocast() -> None:
    """The shape of reset_hx is checked before some of its rows are selected. The selection would
    hide a wrong number of rows."""
    layer = treadle.nn.RNN(3, 4, nonlinearity="relu")
    x, marks = torch.randn(5, 4, 3), torch.ones(5, 4, dtype=torch.bool)
    lengths = torch.tensor([5, 3, 0, 1])
    for rows in (1, 6):
        with (
            torch.autocast("cpu", torch.bfloat16),
            pytest.raises(RuntimeError, match="reset_hx must have shape"),
        ):
            layer(x, lengths=lengths, reset=marks, reset_hx=torch.zeros(1, rows, 4))
