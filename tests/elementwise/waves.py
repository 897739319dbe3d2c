"""Easy and hard arguments of sine and cosine, exact results, and the guaranteed accuracy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import mpmath
import pytest
import torch
from torch import Tensor

import treadle
from tests.support.compare import ulp, within_ulps
from tools.hard_arguments import FLOAT32, FLOAT64, hard

Function = Callable[[Tensor], Tensor]
ULPS = {torch.float32: 1.6, torch.float64: 2.0, torch.float16: 0.56, torch.bfloat16: 0.56}
WAVES: dict[str, tuple[Function, Function]] = {
    "sine": (treadle.sine, torch.sin),
    "cosine": (treadle.cosine, torch.cos),
}
EACH_WAVE = pytest.mark.parametrize("name", WAVES)

# The bits of all half-precision arguments whose results are not correctly rounded. The true results
# are within 2e-5 ulp of the midpoint between two numbers.
MISROUNDED = {
    ("sine", torch.float16): {0x32B3, 0xB2B3},  # +-0.2093505859375
    ("cosine", torch.float16): {0x2B7C, 0xAB7C},  # +-0.0584716796875
    ("sine", torch.bfloat16): set(),
    ("cosine", torch.bfloat16): set(),
}


def with_ones(op: Callable[[Tensor, Tensor], Tensor], sign: float = 1.0) -> Function:
    return lambda x: op(torch.full_like(x, sign), x)


# For each wave, its op, and the backward op that multiplies the gradient by this wave.
OPS_OF: dict[str, tuple[Function, Function]] = {
    "sine": (treadle.sine, with_ones(torch.ops.treadle.cosine_backward, -1.0)),
    "cosine": (treadle.cosine, with_ones(torch.ops.treadle.sine_backward)),
}


def every_half(dtype: torch.dtype, device: str = "cpu") -> Tensor:
    """All positive, then all negative numbers, each sorted by magnitude, with NaN at the end."""
    return torch.arange(2**16, device=device).short().view(dtype)


def floats(first: int, count: int, step: int = 1, device: str = "cpu") -> Tensor:
    """Floats of every step-th bit pattern from `first` on, plus a pseudo-random offset below
    step."""
    index = torch.arange(count, device=device)
    bits = first + index * step
    if step > 1:
        bits += (index * 2654435761 >> 7) % step
    return bits.int().view(torch.float32)


def float_pieces(count: int, piece: int, device: str = "cpu") -> Iterator[Tensor]:
    """`count` floats in pieces, spread evenly over all bit patterns, including NaN."""
    step = 2**32 // count
    for first in range(0, 2**32, piece * step):
        yield floats(first, piece, step, device)


def both_signs(x: Tensor) -> Tensor:
    return torch.cat([x, -x])


@cache
def hard_floats() -> Tensor:
    return both_signs(torch.tensor(hard(FLOAT32, 8), dtype=torch.float32))


@cache
def hard_doubles() -> Tensor:
    """Hard doubles of every exponent from that of 1.0 up, and those nearest to the first multiples
    of pi / 2."""
    multiples = torch.arange(1, 2000, dtype=torch.float64) * (torch.pi / 2)
    hardest = torch.tensor(hard(FLOAT64, 4), dtype=torch.float64)
    return both_signs(torch.cat([hardest, multiples]))


def doubles(count: int) -> Tensor:
    """Doubles of both signs with random mantissas and every exponent, including subnormal ones."""
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(0, 2**52, (count,), generator=generator)
    bits += torch.arange(count) % 2047 << 52
    sign = torch.randint(0, 2, (count,), generator=generator) * 2.0 - 1
    return bits.view(torch.float64) * sign


class Exact:
    """mpmath's sin and cos of float64 values, each as a sum of two float64."""

    def __init__(self, x: Tensor) -> None:
        self.x = x
        columns: list[tuple[float, float, float, float]] = []
        # mpmath itself adds digits if the argument is large or the result small.
        with mpmath.workprec(120):
            for value in x.tolist():
                cosine, sine = mpmath.mp.cos_sin(mpmath.mpf(value))
                s, c = float(sine), float(cosine)
                columns.append((s, float(sine - s), c, float(cosine - c)))
        s, s_rest, c, c_rest = torch.tensor(columns, dtype=torch.float64).unbind(1)
        self.values = {"sine": (s, s_rest), "cosine": (c, c_rest)}

    def check(self, name: str, actual: Tensor) -> None:
        """Checks that `actual`, which is float64, is as accurate as promised."""
        high, rest = self.values[name]
        ours = actual.cpu()
        error = ((ours - high) - rest).abs() / ulp(high, torch.float64)
        worst = int(error.nan_to_num(torch.inf).argmax())
        bound = ULPS[torch.float64]
        assert error[worst] <= bound, f"{name}({self.x[worst]!r}): {error[worst]} ulp"
        zero = high == 0
        assert torch.equal(ours[zero].signbit(), high[zero].signbit()), f"{name}: sign of zero"
        assert (ours.abs() <= 1).all(), f"{name}: beyond 1"


def as_promised(name: str, actual: Tensor, exact: Tensor) -> None:
    """Checks accuracy in all dtypes but float64. `exact` is float64, on the device of `actual`."""
    within_ulps(actual, exact, ULPS[actual.dtype], name)
    assert not (actual.abs() > 1).any(), f"{name}: beyond 1"


def rounded_correctly(name: str, x: Tensor, actual: Tensor) -> None:
    """Checks that results of a half type are correctly rounded, except those in MISROUNDED.

    The check does not round `exact`, because torch rounds float64 to float32 first, and may then
    round a tie wrongly.
    """
    exact = WAVES[name][1](x.cpu().double())
    as_promised(name, actual, exact)
    error = (actual.cpu().double() - exact).abs() / ulp(exact, actual.dtype)
    wrong = x.cpu()[error > 0.5].view(torch.int16).int() & 0xFFFF
    found = {f"{bits:#06x}" for bits in wrong.tolist()}
    listed = {f"{bits:#06x}" for bits in MISROUNDED[name, actual.dtype]}
    assert found == listed, f"{name}: not correctly rounded at {sorted(found)}, not {listed}"
