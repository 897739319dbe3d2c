"""sine and cosine are as accurate as they promise for every finite argument; NaN as in torch."""

from __future__ import annotations

from collections.abc import Callable

import mpmath
import pytest
import torch
from torch import Tensor

import treadle

from .compare import ulp, within_ulps
from .inputs import DEVICES, FLOATING, HALVES, Make

ULPS = {torch.float32: 1.6, torch.float64: 2.0}
Function = Callable[[Tensor], Tensor]
TWINS = [(treadle.sine, torch.sin), (treadle.cosine, torch.cos)]
EACH = pytest.mark.parametrize(("ours", "theirs"), TWINS, ids=["sine", "cosine"])


def every_half(dtype: torch.dtype) -> Tensor:
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)


def of_every_size(dtype: torch.dtype, count: int) -> Tensor:
    """Random mantissas at every exponent, both signs, and what lies near multiples of pi."""
    info = torch.finfo(dtype)
    generator = torch.Generator().manual_seed(0)
    low, high = torch.tensor([info.smallest_normal, info.max], dtype=torch.float64).log2().tolist()
    uniform = torch.rand(count, generator=generator, dtype=torch.float64)
    size = torch.exp2(low + (high - low) * uniform).clamp(max=info.max)
    usual = torch.randn(count, generator=generator, dtype=torch.float64) * 30
    turns = torch.arange(-500, 501, dtype=torch.float64) * (torch.pi / 2)
    sign = torch.randint(0, 2, (count,), generator=generator) * 2 - 1
    return torch.cat([size * sign, usual, turns]).to(dtype)


def exact(function: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """mpmath's sin or cos of float64 values as a sum of two float64."""
    with mpmath.workprec(1400):
        values = [getattr(mpmath, function)(mpmath.mpf(v)) for v in x.tolist()]
        high = [float(v) for v in values]
        low = [float(v - mpmath.mpf(h)) for v, h in zip(values, high, strict=True)]
    return torch.tensor(high, dtype=torch.float64), torch.tensor(low, dtype=torch.float64)


@EACH
@pytest.mark.parametrize("device", DEVICES)
def test_float32(ours: Function, theirs: Function, device: str) -> None:
    x = of_every_size(torch.float32, 500_000)
    within_ulps(ours(x.to(device)), theirs(x.double()), ULPS[torch.float32])


@EACH
@pytest.mark.parametrize("device", DEVICES)
def test_float64(ours: Function, theirs: Function, device: str) -> None:
    x = of_every_size(torch.float64, 1000)
    high, low = exact(theirs.__name__, x)
    error = ((ours(x.to(device)).cpu() - high) - low).abs() / ulp(high, torch.float64)
    assert float(error.max()) <= ULPS[torch.float64]


@EACH
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", HALVES)
def test_every_half(ours: Function, theirs: Function, dtype: torch.dtype, device: str) -> None:
    x = every_half(dtype)
    y = ours(x.to(device)).cpu()
    within_ulps(y, theirs(x.double()), 0.56)
    correct = theirs(x.double()).to(dtype)
    wrong = (y != correct) & ~correct.isnan()
    assert int(wrong.sum()) <= 8, x[wrong].tolist()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATING)
def test_special_values(dtype: torch.dtype, device: str) -> None:
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([inf, -inf, nan, 0.0, -0.0], dtype=dtype, device=device)
    y = treadle.sine(x)
    assert y[:3].isnan().all()
    assert (y[3:] == 0).all() and y[3:].signbit().tolist() == [False, True]
    tiny = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    assert treadle.sine(torch.full_like(x, tiny)).eq(tiny).all()
    assert treadle.cosine(x)[:3].isnan().all() and treadle.cosine(x)[3:].eq(1).all()
    assert treadle.cosine(torch.full_like(x, tiny)).eq(1).all()
    for function in (treadle.sine, treadle.cosine):
        assert function(torch.full_like(x, torch.finfo(dtype).max)).isfinite().all()


SLOPES: dict[str, Function] = {"sine": torch.cos, "cosine": lambda x: -x.sin()}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("name", SLOPES)
def test_backward_is_grad_times_the_slope(name: str, dtype: torch.dtype, device: str) -> None:
    make = Make("slope", device, dtype)
    x, grad = make(4099, by=30), make(4099)
    ours = getattr(torch.ops.treadle, f"{name}_backward")(grad, x).double()
    truth = grad.double() * SLOPES[name](x.double())
    # The slope's error, and the product's rounding.
    bound = (3 if dtype in ULPS else 0.51) * torch.finfo(dtype).eps * truth.abs().clamp(min=2**-14)
    if dtype == torch.float64:
        bound = 4 * bound
    assert ((ours - truth).abs() <= bound).all()


@EACH
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64])
def test_integers_give_the_default_dtype(
    ours: Function, theirs: Function, dtype: torch.dtype
) -> None:
    x = torch.tensor([0, 1, 1, 77]).to(dtype)
    for default in (torch.float32, torch.float64):
        torch.set_default_dtype(default)
        try:
            y = ours(x)
        finally:
            torch.set_default_dtype(torch.float32)
        assert y.dtype == default
        within_ulps(y, theirs(x.double()), 2)


def test_one_ulp_more_is_noticed() -> None:
    for dtype, bound in {**ULPS, **dict.fromkeys(HALVES, 0.56)}.items():
        x = Make("ulp", "cpu", dtype)(1000, by=3)
        exact = x.double().sin()
        off = (exact + (bound + 0.6) * ulp(exact, dtype)).to(dtype)
        with pytest.raises(AssertionError, match="ulp where"):
            within_ulps(off, exact, bound)
    zero = torch.zeros(3)
    with pytest.raises(AssertionError, match="sign of zero"):
        within_ulps(zero, -zero.double(), 1.6)
    with pytest.raises(AssertionError, match="NaN"):
        within_ulps(zero, zero.double() * torch.nan, 1.6)
