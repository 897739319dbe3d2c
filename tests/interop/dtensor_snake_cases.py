"""snake on DTensors, sharded along rows, channels or samples. dtensor_cases.py runs the cases."""

from __future__ import annotations

from torch import Tensor

import treadle
from tests.interop.with_processes import SUM, R, add_equal, s


def snake(x: Tensor, *parameters: Tensor) -> Tensor:
    return treadle.snake(x, *parameters, eps=9.0)


def limit(x: Tensor, alpha: Tensor) -> Tensor:
    return treadle.snake(x, alpha * 0)


def logscale(x: Tensor, *parameters: Tensor) -> Tensor:
    return treadle.snake(x, *parameters, logscale=True)


AUDIO = (5, 3, 4)
add_equal("snake of rows", snake, [(AUDIO, s(0)), ((3,), R)], [s(0)], [s(0), SUM])
add_equal("snake of channels", snake, [(AUDIO, s(1)), ((3,), s(0))], [s(1)], [s(1), s(0)])
add_equal("snake of one alpha", snake, [(AUDIO, s(1)), ((1,), R)], [s(1)], [s(1), SUM])
add_equal(
    "snake of samples, with beta",
    snake,
    [(AUDIO, s(2)), ((3,), R), ((3,), R)],
    [s(2)],
    [s(2), SUM, SUM],
)
add_equal("snake at 0", limit, [(AUDIO, s(0)), ((3,), R)], [s(0)], [s(0), SUM])
add_equal(
    "snake of logarithms", logscale, [(AUDIO, s(0)), ((3,), R), ((3,), R)], [s(0)], [s(0), SUM, SUM]
)
