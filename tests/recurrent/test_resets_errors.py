"""What is refused of `reset` and `reset_hx`, and in which words."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from tests.recurrent.test_resets import INPUTS, MARKS, B, H, T, given, module, run
from tests.support.compare import attempt

BAD = (
    (
        {"reset": torch.ones(T, B)},
        "lstm: reset must have dtype bool, got float32",
    ),
    (
        {"reset": torch.ones(B, T, dtype=torch.bool)},
        "lstm: reset must have shape [T, B] = [7, 3], got [3, 7]",
    ),
    (
        {"reset_hx": (torch.zeros(1, B, H), torch.zeros(1, B, H))},
        "lstm: reset_hx must come with reset, got it alone",
    ),
    (
        {"reset": MARKS, "reset_hx": (torch.zeros(1, B, H),)},
        "lstm: reset_hx must be two tensors, of h and of c, got 1",
    ),
    (
        {"reset": MARKS, "reset_hx": (torch.zeros(B, H), torch.zeros(B, H))},
        "lstm: reset_hx[0] must have shape [L*D, B, H], or [L*D, T, B, H] with one for each step, "
        "with L*D = 1, got [3, 5]",
    ),
    (
        {"reset": MARKS, "reset_hx": (torch.zeros(1, T, H), torch.zeros(1, T, H))},
        "lstm: reset_hx must have shape [D, B, H] or [D, T, B, H], here [1, 3, 5] or [1, 7, 3, 5], "
        "got [1, 7, 5]",
    ),
    (
        {"reset": MARKS, "reset_hx": (torch.zeros(1, B, H), torch.zeros(1, T, B, H))},
        "lstm: reset_c must have shape that of reset_h = [1, 3, 5], got [1, 7, 3, 5]",
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
    assert message in str(error)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reset": [True]}, "GRU: reset must be a tensor, a PackedSequence or None, got list"),
        ({"reset_hx": torch.zeros(2, B, H)}, "GRU: reset_hx must come with reset, got it alone"),
        ({"reset": MARKS, "reset_hx": "h"}, "GRU: reset_hx must hold tensors, got str"),
    ],
)
def test_wrong_kinds(options: dict[str, Any], message: str) -> None:
    ours, _ = module("GRU")
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        ours(torch.randn(T, B, INPUTS).double(), **options)
