"""Helpers for tests of recurrent layers with rows of variable length. They call lltm, lstm, gru or
rnn_*, and compare the results and gradients with those of treadle.reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import treadle
from tests.recurrent.support.layer_cases import BLOCKS
from tests.support.inputs import DEVICES
from tests.support.rule import within_rule
from treadle import reference

T, B, INPUTS, H = 7, 5, 4, 6
LENGTHS = (3, 7, 0, 1, 6)
EACH_DEVICE = pytest.mark.parametrize("device", DEVICES)
BOTH_WAYS = pytest.mark.parametrize("bidirectional", [False, True])
# Marks of resets at various steps, some of them in the padding. Row 1 has none.
MARKS = torch.tensor([[b != 1 and (t * 3 + b) % 4 == 0 for b in range(B)] for t in range(T)])


def lengths(device: str = "cpu", dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(LENGTHS, dtype=dtype, device=device)


def padding(like: Tensor) -> Tensor:
    """[T, B] bool: true in the padding."""
    steps = torch.arange(T, device=like.device).unsqueeze(1)
    return steps >= lengths(str(like.device))


class Given:
    """The tensors of a call: x, the states, and the parameters of each layer and direction."""

    def __init__(
        self,
        cell: str,
        bidirectional: bool = False,
        num_layers: int = 1,
        device: str = "cpu",
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.generator = torch.Generator().manual_seed(4)
        self.cell, self.device, self.dtype = cell, device, dtype
        directions = 2 if bidirectional else 1
        self.rest = True, num_layers, 0.0, False, bidirectional
        self.x = self.draw(T, B, INPUTS)
        self.states = [self.draw(num_layers * directions, B, H) for _ in range(self.count)]
        width, self.params = BLOCKS[cell] * H, []
        for layer in range(num_layers):
            columns = directions * H if layer else INPUTS
            for _ in range(directions):
                self.params += [self.draw(width, columns, by=0.4), self.draw(width, H, by=0.4)]
                self.params += [self.draw(width) for _ in range(1 if cell == "lltm" else 2)]

    @property
    def count(self) -> int:
        """The number of states."""
        return 1 if self.cell not in ("lltm", "lstm") else 2

    def draw(self, *shape: int, by: float = 1.0) -> Tensor:
        values = torch.randn(shape, generator=self.generator, dtype=torch.float64) * by
        return values.to(self.device, self.dtype)

    def starts(self, form: str) -> list[Tensor]:
        """Draws the states to which rows reset (`reset_hx`): none, one for each row, or one for
        each step and row."""
        count, b, h = self.states[0].shape
        shape = {"none": None, "rows": (count, b, h), "steps": (count, T, b, h)}[form]
        return [self.draw(*shape) for _ in range(self.count)] if shape else []

    def tensors(self) -> list[Tensor]:
        return [self.x, *self.states, *self.params]

    def run(
        self,
        tensors: list[Tensor] | None = None,
        starts: list[Tensor] | None = None,
        module: Any = treadle,
        batch_first: bool = False,
        **options: Any,
    ) -> tuple[Tensor, ...]:
        """Calls the op with `tensors` or, if they are not given, with `self.tensors()`."""
        x, *others = self.tensors() if tensors is None else tensors
        states, params = others[: self.count], others[self.count :]

        def form(given: list[Tensor]) -> Any:
            return given[0] if self.cell not in ("lltm", "lstm") else tuple(given)

        if starts:
            options["reset_hx"] = form(starts)
        op: Callable[..., Any] = getattr(module, self.cell)
        found = op(x, form(states), params, *self.rest, batch_first, **options)
        return tuple(found)


def with_gradients(
    given: Given, dtype: torch.dtype, starts: list[Tensor], **options: Any
) -> list[Tensor]:
    """Runs the call in `dtype`. Returns the results and the gradients of all tensors. The
    cotangents are numbers that every dtype can represent."""
    leaves = [t.detach().to(dtype).requires_grad_() for t in given.tensors()]
    others = [t.detach().to(dtype).requires_grad_() for t in starts]
    results = given.run(leaves, others, **options)
    generator = torch.Generator().manual_seed(5)
    cotangents = [
        torch.randn(r.shape, generator=generator).bfloat16().to(r.device, r.dtype) for r in results
    ]
    grads = torch.autograd.grad(results, [*leaves, *others], cotangents, allow_unused=True)
    return [
        *(r.detach() for r in results),
        *(
            torch.zeros_like(t) if g is None else g
            for t, g in zip([*leaves, *others], grads, strict=True)
        ),
    ]


def against_reference(given: Given, starts: list[Tensor], **options: Any) -> None:
    """Checks results and gradients with the reference, by the rule of tests/support/rule.py."""
    ours = with_gradients(given, given.dtype, starts, **options)
    truth = with_gradients(given, torch.float64, starts, module=reference, **options)
    plain = with_gradients(given, given.dtype, starts, module=reference, **options)
    results = len(ours) - len(given.tensors()) - len(starts)
    for n, found in enumerate(zip(ours, truth, plain, strict=True)):
        within_rule(*found, gradient=n >= results, what=f"{n}")
