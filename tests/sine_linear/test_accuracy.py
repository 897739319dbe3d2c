"""Accuracy of the sine layer: cosines in float32, saved phases of half types, and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import treadle
from tests.support.cases import DEVICES, HALVES
from tests.support.inputs import Make
from tests.support.rule import worst
from treadle import reference

forward = torch.ops.treadle.sine_linear_forward


def of_phases(u: Tensor, omega: float = 1.0) -> tuple[Tensor, Tensor]:
    """sin(omega u) and its derivative with respect to u, from a layer whose only weight is 1."""
    column = u.reshape(-1, 1).detach().requires_grad_()
    y = treadle.sine_linear(column, torch.ones(1, 1, dtype=u.dtype, device=u.device), None, omega)
    (grad,) = torch.autograd.grad(y, column, torch.ones_like(y))
    return y.detach().flatten(), grad.flatten()


def phases(reach: float, count: int, device: str) -> Tensor:
    generator = torch.Generator().manual_seed(int(reach) % 2**31)
    return ((torch.rand(count, generator=generator) * 2 - 1) * reach).to(device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reach", [0.1, 4.0, 30.0, 1e4, 1e6, 1e30])
def test_cosine_of_floats(reach: float, device: str) -> None:
    """The error of the cosine, which is computed from the sine and 16 saved bits, is below 1e-7.
    That of torch's cosine is below 4e-8."""
    u = phases(reach, 1 << 20, device)
    y, cosine = of_phases(u)
    assert worst(y.double() - u.double().sin()) < 1e-7
    assert worst(cosine.double() - u.double().cos()) < 1e-7


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("turns", [0, 1, 1000])
def test_cosine_of_floats_near_its_zeros(turns: int, device: str) -> None:
    """Cosines near 0, which the sine barely determines, on both sides of the switch to another
    encoding."""
    near = math.pi / 2 + turns * math.pi
    distance = torch.logspace(-9, -1, 1 << 18, dtype=torch.float64)
    u = torch.cat([near - distance, near + distance]).float().to(device)
    exact = u.double().cos()
    error = (of_phases(u)[1].double() - exact).abs()
    small = exact.abs() < 0.95 * 2**-9
    assert bool(small.any()) and float(error[small].max()) <= 2**-25 + 1e-9
    close = exact.abs() < 0.05
    assert float(error[close].max()) <= 2**-25 + 1e-8
    assert worst(error) < 1e-7


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", HALVES)
def test_turns_of_halves(dtype: torch.dtype, device: str) -> None:
    u = phases(1000, 1 << 18, device).to(dtype)
    phase = forward(u[:, None], torch.ones(1, 1, dtype=dtype, device=device), None, 1.0)[1]
    assert phase.dtype == torch.int16
    off = phase.flatten().double() / 2**16 - u.double() / (2 * math.pi)
    # A phase is stored as a multiple of 2^-16 turn, so rounding changes it by up to half a unit.
    # Next to half a turn it may change by one and a half units, because the nearest code means NaN.
    apart = (off - off.round()).abs()
    assert float(apart.max()) <= 1.51 / 2**16
    assert float(apart[phase.flatten().abs() < 2**15 - 1].max()) <= 0.51 / 2**16
    assert int(phase.min()) > -(2**15)


def siren_arguments(
    dtype: torch.dtype, inputs: int, reach: float, device: str
) -> tuple[list[Tensor], float]:
    """Arguments of a layer of width 64 and omega 30, whose phases are about as large as `reach`."""
    make = Make(f"accuracy {inputs} {reach}", device, torch.float64)
    bound = reach / (30 * inputs**0.5)
    args = (make(700, inputs), make(64, inputs, by=bound), make(64, by=0.1))
    return [t.to(dtype) for t in args], 30.0


def errors(
    function: Callable[..., Tensor], tensors: list[Tensor], omega: float, exact: Any
) -> list[float]:
    leaves = [t.detach().requires_grad_() for t in tensors]
    y = function(*leaves, omega)
    grad = Make("grad", y.device.type, torch.float64)(*y.shape).bfloat16().to(y.dtype)
    results = [y.detach(), *torch.autograd.grad(y, leaves, grad)]
    if exact is None:
        return results  # type: ignore[return-value]
    return [
        float((r.double() - e).square().mean().sqrt()) for r, e in zip(results, exact, strict=True)
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("inputs", [2, 64])
@pytest.mark.parametrize("reach", [3.0, 100.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_at_least_as_accurate_as_the_composition(
    dtype: torch.dtype, reach: float, inputs: int, device: str
) -> None:
    """Compares root mean square errors against float64. For half types our errors are clearly
    smaller."""
    if dtype == torch.float16:
        reach = min(reach, 1e3)  # with larger phases the composition overflows
    tensors, omega = siren_arguments(dtype, inputs, reach, device)
    exact = errors(reference.sine_linear, [t.double() for t in tensors], omega, None)
    ours = errors(treadle.sine_linear, tensors, omega, exact)
    theirs = errors(reference.sine_linear, tensors, omega, exact)
    # In float32 the layer and the composition round equally often, but in another order.
    room = 1.25 if dtype == torch.float32 else 0.8
    assert all(a <= room * b for a, b in zip(ours, theirs, strict=True)), (ours, theirs)


def test_a_wrong_cosine_is_noticed() -> None:
    u = phases(30, 1 << 16, "cpu")
    wrong = u.double().cos() * (1 + 2e-7)
    assert worst(wrong - u.double().cos()) > 1e-7
