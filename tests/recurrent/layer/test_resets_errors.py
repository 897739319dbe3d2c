"""Invalid values of `reset` and `reset_hx`, and their error texts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

import treadle
from tests.recurrent.layer.test_resets import INPUTS, MARKS, B, H, T, given, module, run
from tests.support.compare import attempt

BAD = (
    (
        {"reset": torch.ones(T, B)},
        "lstm: reset must have dtype bool, got float32: call reset.bool()",
    ),
    (
        {"reset": MARKS.unsqueeze(-1)},
        "lstm: reset must have shape [T, B] = [7, 3], got [7, 3, 1]: call reset.squeeze(-1)",
    ),
    (
        {"reset": MARKS.unsqueeze(-1).float()},
        "lstm: reset must have shape [T, B] = [7, 3], got [7, 3, 1]: call reset.squeeze(-1).bool()",
    ),
    (
        {"reset": MARKS.float(), "lengths": torch.full((B,), T)},
        "lstm: reset must have dtype bool, got float32: call reset.bool()",
    ),
    (
        {"reset": torch.ones(B, T, dtype=torch.bool)},
        "lstm: reset must have shape [T, B] = [7, 3], got [3, 7]",
    ),
    (
        {"reset_hx": (torch.zeros(1, B, H), torch.zeros(1, B, H))},
        "lstm: reset_hx must be given together with reset, got only reset_hx",
    ),
    (
        {"reset": MARKS, "reset_hx": (torch.zeros(1, B, H),)},
        "lstm: reset_hx must have a tensor for h and, if the cell has c, one for c, got 1",
    ),
    (
        {"reset": MARKS, "reset_hx": (torch.zeros(B, H), torch.zeros(B, H))},
        "lstm: reset_hx[0] must have shape [L*D, B, H], or [L*D, T, B, H] with a state for each "
        "step, with L*D = 1, got [3, 5]",
    ),
    (
        {"reset": MARKS, "reset_hx": (torch.zeros(1, T, H), torch.zeros(1, T, H))},
        "lstm: reset_hx must have shape [D, B, H] or [D, T, B, H], here [1, 3, 5] or [1, 7, 3, 5], "
        "got [1, 7, 5]",
    ),
    (
        {"reset": MARKS, "reset_hx": (torch.zeros(1, B, H), torch.zeros(1, T, B, H))},
        "lstm: reset_c must have shape [1, 3, 5], as reset_h and c0, got [1, 7, 3, 5]",
    ),
    (
        {"reset": MARKS, "reset_hx": (torch.zeros(1, B, H).double(), torch.zeros(1, B, H))},
        "lstm: reset_h must have the dtype of input, float32, got float64",
    ),
)


@pytest.mark.parametrize("meta", [False, True])
@pytest.mark.parametrize(("options", "message"), BAD, ids=[str(n) for n in range(len(BAD))])
def test_bad_input(options: dict[str, Any], message: str, meta: bool) -> None:
    one = given("lstm", "meta" if meta else "cpu", dtype=torch.float32)

    def moved(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(moved(v) for v in value)
        return value.to("meta") if meta else value

    placed = {name: moved(value) for name, value in options.items()}
    _, error = attempt(lambda: run("lstm", **one, **placed))
    assert isinstance(error, RuntimeError), error
    assert str(error).startswith(message)
    assert ("call" in str(error)) == ("call" in message)


STEPS = torch.full((B,), T)
FORMS: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "batch_first": (lambda t: t.transpose(0, 1), "[B, T] = [3, 7], got [3, 7, 1]"),
    "packed": (lambda t: pack_padded_sequence(t, STEPS), "[S] = [21], got [21, 1]"),
    "no batch": (lambda t: t[:, 0], "[T, B] = [7, 1], got [7, 1, 1]"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("floats", [False, True])
def test_marks_of_simulators(form: str, floats: bool) -> None:
    """For marks of shape [..., 1] or of dtype float32, as simulators return them, the error shows
    the call that converts them."""
    layer = treadle.nn.GRU(INPUTS, H, batch_first=form == "batch_first")
    put, shapes = FORMS[form]
    x, wrong = torch.randn(T, B, INPUTS), MARKS.unsqueeze(-1)
    how = "reset.squeeze(-1)" + (".bool()" if floats else "")
    words = f"gru: reset must have shape {shapes}: call {how}"
    _, error = attempt(lambda: layer(put(x), reset=put(wrong.float() if floats else wrong)))
    assert isinstance(error, RuntimeError) and str(error).splitlines()[0] == words
    layer(put(x), reset=put(MARKS))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reset": [True]}, "GRU: reset must be a tensor, a PackedSequence or None, got list"),
        (
            {"reset_hx": torch.zeros(2, B, H)},
            "GRU: reset_hx must be given together with reset, got only reset_hx",
        ),
        ({"reset": MARKS, "reset_hx": "h"}, "GRU: reset_hx must hold tensors, got str"),
    ],
)
def test_wrong_kinds(options: dict[str, Any], message: str) -> None:
    ours, _ = module("GRU")
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        ours(torch.randn(T, B, INPUTS).double(), **options)
