"""Calls of snake and its backward that must raise, and the error texts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import treadle
from tests.support.bad_writes import elementwise, halves_of_nine, integers_refused, writing
from tests.support.inputs import Bad, Make, elsewhere, of_dtype, without_storage


def one(make: Make) -> Tensor:
    return torch.ones(1, device=make.device)


def call(m: Make, x: Tensor, **out: Tensor) -> Any:
    return treadle.snake(x, one(m), **out)


def inplace(m: Make, x: Tensor) -> Any:
    return treadle.snake_(x, one(m))


def backward(m: Make, grad: Tensor, x: Tensor, *parameters: Tensor) -> Any:
    alpha, beta = parameters or (m(3), None)
    return torch.ops.treadle.snake_backward(grad, x, alpha, beta, 0.0, [True] * 3)


def of_parameters() -> list[Bad]:
    found = []
    for name, pick in (("alpha", lambda t, m: (t, m(3))), ("beta", lambda t, m: (m(3), t))):

        def bad(
            what: str, t: Any, message: str, *more: Any, name: str = name, pick: Any = pick
        ) -> Bad:
            run = lambda m: treadle.snake(m(2, 3, 4), *pick(t(m), m))  # noqa: E731
            return Bad(f"snake {name} {what}", run, f"snake: {name} must {message}", *more)

        shape = "have shape [C] = [3] or [1], got "
        found += [
            bad("channels", lambda m: m(4), shape + "[4]"),
            bad("rank", lambda m: m(3, 1), shape + "[3, 1]"),
            bad("0-dim", lambda m: m(), shape + "[]"),
            bad(
                "device", lambda m: elsewhere(m, 3), "be on the device of x, {device}, got {other}"
            ),
            bad(
                "complex",
                lambda m: of_dtype(m, torch.complex64, 3),
                "have an integer or floating-point dtype, got complex64",
            ),
            bad(
                "bool",
                lambda m: of_dtype(m, torch.bool, 3),
                "have an integer or floating-point dtype, got bool",
            ),
            bad(
                "storage",
                lambda m: without_storage(m(3)),
                "have a storage of at least 12 bytes, got 0 bytes",
                ("cpu", "cuda"),
            ),
        ]
    return found


def snake_bad() -> list[Bad]:
    apart = "or share no memory with it, got one that partly overlaps it"
    return [
        *elementwise("snake", call, "x", "x"),
        *writing("snake", call, inplace, "x"),
        integers_refused("snake", inplace, "x"),
        *of_parameters(),
        Bad(
            "snake of a vector",
            lambda m: treadle.snake(m(4), m(4)),
            "snake: alpha must have shape [C] = [1] or [1], got [4]",
        ),
        Bad(
            "snake alpha is written",
            lambda m: treadle.snake(m(2, 8), (p := halves_of_nine(m))[0], out=p[1].expand(1, 8)),
            f"snake: out must be alpha {apart}",
        ),
        Bad(
            "snake beta is written",
            lambda m: treadle.snake_((p := halves_of_nine(m))[0].view(1, 8), m(8), p[1]),
            f"snake_: x must be beta {apart}",
        ),
        Bad(
            "snake_backward dtypes",
            lambda m: backward(m, m(2, 3, dtype=torch.float16), m(2, 3)),
            "snake_backward: grad must have the dtype of the result, float32, got float16",
        ),
        Bad(
            "snake_backward device",
            lambda m: backward(m, elsewhere(m, 2, 3), m(2, 3)),
            "snake_backward: grad must be on the device of x, {device}, got {other}",
        ),
        Bad(
            "snake_backward shapes",
            lambda m: backward(m, m(3), m(2, 3)),
            "snake_backward: grad must have the shape of x, [2, 3], got [3]",
        ),
        Bad(
            "snake_backward parameter",
            lambda m: backward(m, m(2, 3), m(2, 3), m(2), m(3)),
            "snake_backward: alpha must have shape [C] = [3] or [1], got [2]",
        ),
        Bad(
            "snake_backward storage",
            lambda m: backward(m, without_storage(m(2, 3)), m(2, 3)),
            "snake_backward: grad must have a storage of at least 24 bytes, got 0 bytes",
            ("cpu", "cuda"),
        ),
    ]
