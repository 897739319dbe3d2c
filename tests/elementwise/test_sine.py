"""sine and cosine are as accurate as promised for finite arguments, and NaN where torch's results
are NaN.

CUDA is tested on all float32 numbers, and the CPU on one of every 256 bit patterns, because testing
all 2^32 would take a minute on two cores. Both are also tested on the hardest arguments, which
tools/hard_arguments.py finds.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

import treadle
from tests.elementwise.waves import (
    EACH_WAVE,
    MISROUNDED,
    ULPS,
    WAVES,
    Exact,
    Function,
    as_promised,
    both_signs,
    doubles,
    every_half,
    float_pieces,
    hard_doubles,
    hard_floats,
    rounded_correctly,
)
from tests.support.compare import ulp, within_ulps
from tests.support.inputs import DEVICES, FLOATING, GPU, HALVES, Make

PIECE = 2**25  # floats at a time on CUDA; checking them in float64 needs 5 GiB


@EACH_WAVE
def test_floats_of_every_exponent(name: str) -> None:
    ours, theirs = WAVES[name]
    for x in float_pieces(2**24, 2**21):
        as_promised(name, ours(x), theirs(x.double()))


@GPU
@EACH_WAVE
def test_every_float(name: str) -> None:
    ours, theirs = WAVES[name]
    for x in float_pieces(2**32, PIECE, "cuda"):
        as_promised(name, ours(x), theirs(x.double()))


@EACH_WAVE
@pytest.mark.parametrize("device", DEVICES)
def test_hard_floats(name: str, device: str) -> None:
    """The exact values are computed on the CPU, not on the GPU under test."""
    ours, theirs = WAVES[name]
    multiples = both_signs(torch.arange(1, 200_000, dtype=torch.float64) * (torch.pi / 2)).float()
    for x in (hard_floats(), multiples):
        as_promised(name, ours(x.to(device)), theirs(x.double()))


@cache
def easy_and_hard_doubles() -> Exact:
    hardest = torch.tensor([6381956970095103 * 2.0**797], dtype=torch.float64)
    # Instruction sets switch to another argument reduction at these limits.
    limits = torch.tensor([2.0**-10, 3e6, 2.0**40], dtype=torch.float64).unsqueeze(1)
    around = (limits * (1 + torch.linspace(-1e-6, 1e-6, 501, dtype=torch.float64))).view(-1)
    usual = Make("usual", "cpu", torch.float64)(10_000, by=30)
    return Exact(torch.cat([doubles(100_000), hard_doubles(), hardest, both_signs(around), usual]))


@EACH_WAVE
@pytest.mark.parametrize("device", DEVICES)
def test_float64(name: str, device: str) -> None:
    exact = easy_and_hard_doubles()
    exact.check(name, WAVES[name][0](exact.x.to(device)))


@EACH_WAVE
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", HALVES)
def test_every_half(name: str, dtype: torch.dtype, device: str) -> None:
    x = every_half(dtype)
    rounded_correctly(name, x, WAVES[name][0](x.to(device)))


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
    backward = getattr(torch.ops.treadle, f"{name}_backward")
    for by in (30, 1e5, 1e30):
        x, grad = make(4099, by=by).nan_to_num(), make(4099)
        ours = backward(grad, x).double().cpu()
        truth = grad.double().cpu() * SLOPES[name](x.double().cpu())
        # This is the slope's error plus the product's rounding. If the product is subnormal, its
        # rounding is larger.
        error = (ours - truth).abs() / ulp(truth, dtype)
        # If the slope is just above a power of two, its error may be twice as many ulp of the
        # product.
        bound = 0.56 if dtype in HALVES else 2 * ULPS[dtype] + 0.5
        assert error.max() <= bound, (by, float(error.max()))


@EACH_WAVE
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64])
def test_integers_give_the_default_dtype(name: str, dtype: torch.dtype) -> None:
    ours, theirs = WAVES[name]
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
    for dtype, bound in ULPS.items():
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
    with pytest.raises(AssertionError, match="beyond 1"):
        as_promised("sine", zero + 1 + 2**-23, zero.double() + 1)


def moved(x: Tensor, at: int) -> Tensor:
    """A copy in which the element `at` is the next larger number of its dtype."""
    bits = {2: torch.int16, 8: torch.int64}[x.element_size()]
    y = x.clone()
    y.view(bits)[at] += 1
    return y


@EACH_WAVE
def test_one_wrong_number_is_noticed(name: str) -> None:
    ours = WAVES[name][0]
    for dtype in HALVES:
        x = every_half(dtype)
        # Changes the result at 0.5, which is not near a midpoint, then a result that is listed as
        # misrounded.
        with pytest.raises(AssertionError, match="ulp where|not correctly rounded"):
            rounded_correctly(name, x, moved(ours(x), int((x == 0.5).nonzero())))
        for bits in sorted(MISROUNDED[name, dtype])[:1]:
            y = ours(x)
            other = torch.stack([moved(y, bits)[bits], -moved(-y, bits)[bits]])
            exact = WAVES[name][1](x[bits].double())
            y[bits] = other[(other.double() - exact).abs().argmin()]
            with pytest.raises(AssertionError, match="not correctly rounded"):
                rounded_correctly(name, x, y)
    exact64 = Exact(hard_doubles()[-50:])
    right = ours(exact64.x)
    exact64.check(name, right)
    with pytest.raises(AssertionError, match="ulp"):
        exact64.check(name, moved(moved(moved(right, 7), 7), 7))
    with pytest.raises(AssertionError, match="ulp"):
        exact64.check(name, right * torch.nan)
