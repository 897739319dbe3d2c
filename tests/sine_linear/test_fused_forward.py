"""Tests the kernels that compute both the layer's product and its sines, with full and partial
tiles. sm_90 has one, for half types and TF32, and most other GPUs from sm_80 on have another, for
half types. On other devices the same tests run other kernels."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import treadle
from tests.laws.test_launches import BINDINGS
from tests.sine_linear.cases import sine_arguments
from tests.support.cases import DEVICES, HALVES
from tests.support.inputs import FUSED_SINES, Make, on_hopper
from tests.support.layouts import padded_rows

# Rows, columns, inputs. Tiles are [128, 128]. On sm_90, a cluster computes two, each stage of the
# pipeline loads 128 bytes of every row, and six stages are in flight. Elsewhere, a stage loads 64
# bytes of every row, and three are in flight.
SIZES = (
    (128, 32, 8),
    (130, 48, 12),
    (129, 96, 72),
    (300, 128, 64),
    (1000, 160, 200),
    (257, 128, 512),
    (700, 416, 1032),
    (40_000, 256, 64),
    (50_000, 128, 448),
)
DTYPES = (*HALVES, torch.float32)
forward = torch.ops.treadle.sine_linear_forward


@pytest.fixture(autouse=True)
def tf32(allow_tf32: Callable[[bool], None]) -> None:
    """Allows TF32 for float32. Only GPUs support TF32."""
    allow_tf32(True)


def as_multiplied(t: Tensor) -> Tensor:
    """Rounds float32 on a GPU to TF32's 10 bits of mantissa; the result is float64."""
    if t.dtype != torch.float32 or not t.is_cuda:
        return t.double()
    exact = t.double()
    kept = torch.frexp(exact).exponent - 11
    rounded = torch.ldexp(torch.ldexp(exact, -kept).round(), kept)
    return torch.where(exact.isfinite(), rounded, exact)


def exact_phase(x: Tensor, weight: Tensor, bias: Tensor | None, omega: float) -> Tensor:
    z = as_multiplied(x) @ as_multiplied(weight).T
    return omega * (z if bias is None else z + bias.double())


def check(y: Tensor, phase: Tensor, u: Tensor, room: float = 2e-5) -> None:
    """Allows for rounding of y, half a unit of the phase, and `room` for the float32 sum."""
    exact = u.sin()
    error = (y.double() - exact).abs()
    assert bool((error <= 0.5 * torch.finfo(y.dtype).eps * exact.abs() + room).all())
    if y.dtype == torch.float32:
        nothing = torch.empty(y.shape[-1], 0, device=y.device)
        cosine = torch.ops.treadle.sine_linear_slope(
            torch.ones_like(y), None, y[..., :0], nothing, None, y, phase, 1.0, 1
        )
        assert float((cosine.double() - u.cos()).abs().max()) <= 2e-7 + room
        return
    assert int(phase.min()) > -(2**15)  # the code of NaN, which is next to codes of phases
    turns = phase.double() / 2**16 - u / (2 * math.pi)
    assert float((turns - turns.round()).abs().max()) <= 1.51 / 2**16 + room


def padded(x: Tensor) -> Tensor:
    """Rows padded with eight NaN elements."""
    return torch.nn.functional.pad(x, (0, 8), value=math.nan)[..., : x.shape[-1]]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values(dtype: torch.dtype, size: tuple[int, int, int], bias: bool, device: str) -> None:
    rows, columns, inputs = size
    if device == "cpu":
        rows = min(rows, 1000)
    make = Make(f"product {size}", device, dtype)
    args = sine_arguments(make, (rows,), (inputs, columns), bias=bias).args
    y, phase = forward(*args)
    check(y, phase, exact_phase(*args))
    again, phase_again = forward(*args)
    assert torch.equal(y, again) and torch.equal(phase, phase_again)
    assert torch.equal(y, treadle.sine_linear(*args))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_around_it(dtype: torch.dtype, device: str) -> None:
    """Tests NaN as padding, padding that breaks alignment, and a part of a larger batch."""
    make = Make("around", device, dtype)
    for layout in (padded, padded_rows):
        args = sine_arguments(make, (300,), (72, 96), to={"input": layout}).args
        check(*forward(*args), exact_phase(*args))
    x, *rest = sine_arguments(make, (2, 300), (72, 96)).args
    x = x[1, 3:]
    check(*forward(x, *rest), exact_phase(x, *rest))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_large_and_no_numbers_keep_to_themselves(dtype: torch.dtype, device: str) -> None:
    """Phases that are too large for the short path, inf and NaN, next to small phases."""
    make = Make("far", device, dtype)
    x, weight, bias, _ = sine_arguments(make, (500,), (64, 64)).args
    x[7, 3], x[130, 5], x[131, 6] = math.nan, math.inf, -math.inf
    y, phase = forward(x, weight, bias, 3.0)
    bad = torch.zeros(500, dtype=torch.bool, device=device)
    bad[[7, 130, 131]] = True
    assert bool(y[bad].isnan().all())
    assert dtype == torch.float32 or bool((phase[bad] == -(2**15)).all())
    check(y[~bad], phase[~bad], exact_phase(x[~bad], weight, bias, 3.0), 5e-5)
    # With powers of two and few inputs nothing is rounded before the sine.
    x = torch.zeros(256, 8, dtype=dtype, device=device)
    x[:, 0] = 2.0 ** torch.randint(-3, 4, (256,), generator=make.generator).to(device)
    weight = torch.zeros(64, 8, dtype=dtype, device=device)
    weight[:, 0] = (torch.arange(64, device=device) % 8 + 1).to(dtype)
    for omega in (2.0**10, 2.0**20, 2.0**60):
        check(*forward(x, weight, None, omega), exact_phase(x, weight, None, omega), 1e-6)


@BINDINGS
@FUSED_SINES
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_one_launch_cuda(dtype: torch.dtype, allow_tf32: Callable[[bool], None]) -> None:
    """Few rows, odd sizes, unaligned memory and float32 without TF32 need two kernels."""
    fused = "sine_linear_fused_forward" if on_hopper() else "sine_linear_mma_forward"
    if dtype == torch.float32 and not on_hopper():
        pytest.skip("only sm_90 has such a kernel for float32")

    def kernels(rows: int, inputs: int, columns: int, first: int = 0) -> list[str]:
        make = Make("launches", "cuda", dtype)
        x, *rest = sine_arguments(make, (rows,), (inputs + first, columns)).args
        rest[0] = rest[0][:, first:].contiguous()
        found = treadle.launch_info("sine_linear", x[:, first:], *rest)
        return [str(launch["kernel"]) for launch in found]

    (only,) = kernels(128, 64, 32)
    assert fused in only
    for sizes in ((127, 64, 32), (128, 65, 32), (128, 64, 33), (128, 64, 32, 1)):
        assert not any(fused in name for name in kernels(*sizes))
    if not on_hopper():
        assert fused in kernels(128, 512, 32)[0]
        assert not any(fused in name for name in kernels(128, 520, 32))
    allow_tf32(False)
    assert any(fused in name for name in kernels(128, 64, 32)) == (dtype != torch.float32)
