"""Tests the fused sm_90 kernel, which computes the products and sines of all parts of a jet, with
partial tiles and any width."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.sine_linear_jet.cases import jet_arguments
from tests.support.cases import OPS
from tests.support.compare import same_bits
from tests.support.inputs import HALVES, HOPPER, Call, Make
from tests.support.layouts import padded_rows
from tests.support.rule import obeys

pytestmark = [HOPPER, pytest.mark.usefixtures("tf32")]
OP = OPS["sine_linear_jet"]
DTYPES = (torch.float32, *HALVES)
# Points, I, O.
SIZES = (
    (128, 8, 32),
    (129, 64, 64),
    (1000, 72, 96),
    (5000, 256, 256),
    (300, 264, 160),
    (20_001, 128, 320),
)


@pytest.fixture
def tf32(allow_tf32: Callable[[bool], None]) -> None:
    """Allows TF32, without which this kernel does not support float32."""
    allow_tf32(True)


def fuses(call: Call) -> bool:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call.run(OP.function)
        torch.cuda.synchronize()
    names = [event.key for event in profile.key_averages()]
    assert any("sine_jet" in name for name in names)
    return any("sine_jet_fused_forward" in name for name in names)


@pytest.mark.parametrize("second", ["none", "laplacian"])
@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_by_the_rule(dtype: torch.dtype, sizes: tuple[int, int, int], d: int, second: str) -> None:
    points, *widths = sizes
    make = Make(f"fused {sizes} {d}", "cuda", dtype)
    for bias in (True, False):
        call = jet_arguments(
            make, (points,), (widths[0], widths[1]), coordinates=d, second=second, bias=bias
        )
        assert sizes != SIZES[1] or fuses(call)
        obeys(OP, call)
        same_bits(call.run(OP.function), call.run(OP.function))


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_phases_and_nan(dtype: torch.dtype) -> None:
    """Compares the fused kernel with the kernels for padded rows. Each sum has one nonzero product,
    because in TF32 the kernels round sums differently."""
    call = jet_arguments(Make("far", "cuda", dtype), (700,), (64, 64), omega=3e4, bias=False)
    call.args[1].zero_()[:, 3] = 1
    call.args[0].copy_(call.args[0].bfloat16())
    jet = call.args[0]
    jet[0, ::7] *= 128
    jet[0, 5, 3], jet[1, 77, 3] = torch.nan, torch.inf
    strided = call.with_args({0: padded_rows(jet)})
    assert not fuses(strided)
    fused, other = call.run(OP.function), strided.run(OP.function)
    assert torch.equal(fused.isnan(), other.isnan())
    values = [t[0].nan_to_num().float() for t in (fused, other)]
    torch.testing.assert_close(*values, rtol=0, atol=2 * torch.finfo(dtype).eps)
