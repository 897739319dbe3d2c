"""What the sine layer keeps and how accurate it is: phases, cosines, NaN and inf, saved bytes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import treadle
from treadle import reference

from .cases import DEVICES, FLOATING, HALVES
from .inputs import Make
from .rule import worst
from .sine_linear_cases import sine_arguments

INF, NAN = math.inf, math.nan
SPECIAL = (0.0, -0.0, 1.0, -1.0, math.pi, -math.pi, 2e3, -900.0, INF, -INF, NAN, 0.1, 7.0)
forward = torch.ops.treadle.sine_linear_forward


def of_phases(u: Tensor, omega: float = 1.0) -> tuple[Tensor, Tensor]:
    """sin(omega u) and its derivative by u, of a layer whose only weight is 1."""
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
    """Made of the sine and 16 bits: within 1e-7, where torch's is within 4e-8."""
    u = phases(reach, 1 << 20, device)
    y, cosine = of_phases(u)
    assert worst(y.double() - u.double().sin()) < 1e-7
    assert worst(cosine.double() - u.double().cos()) < 1e-7


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("turns", [0, 1, 1000])
def test_cosine_of_floats_near_its_zeros(turns: int, device: str) -> None:
    """Where the sine says little: on both sides of where the bits change their meaning."""
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
    # Half a unit; next to half a turn, whose own number is that of NaN, one and a half.
    apart = (off - off.round()).abs()
    assert float(apart.max()) <= 1.51 / 2**16
    assert float(apart[phase.flatten().abs() < 2**15 - 1].max()) <= 0.51 / 2**16
    assert int(phase.min()) > -(2**15)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("omega", [1.0, 30.0, -2.0, 0.0, NAN, INF])
@pytest.mark.parametrize("repeat", [1, 40_000])
@pytest.mark.parametrize("dtype", FLOATING)
def test_nan_and_inf_as_in_the_composition(
    dtype: torch.dtype, repeat: int, omega: float, device: str
) -> None:
    """First and second derivatives; of few numbers, and of as many as vectors are used for."""
    if repeat > 1 and device == "cpu":
        repeat = 500
    found = []
    for function in (treadle.sine_linear, reference.sine_linear):
        u = torch.tensor(SPECIAL * repeat, dtype=dtype, device=device)[:, None].requires_grad_()
        y = function(u, torch.ones(1, 1, dtype=dtype, device=device), None, omega)
        (first,) = torch.autograd.grad(y, u, torch.ones_like(y), create_graph=True)
        (second,) = torch.autograd.grad(first, u, torch.ones_like(first))
        found.append([y.detach(), first.detach(), second])
    for n, (ours, theirs) in enumerate(zip(*found, strict=True)):
        same = ours.isnan() == theirs.isnan()
        assert bool(same.all()), f"result {n}: {torch.tensor(SPECIAL)[~same[: len(SPECIAL), 0]]}"
    zeros = slice(0, 2)
    assert torch.equal(found[0][0][zeros].signbit(), found[1][0][zeros].signbit()) or omega != omega


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("grad", [INF, -INF, NAN])
@pytest.mark.parametrize("dtype", FLOATING)
def test_gradients_that_are_not_finite(dtype: torch.dtype, grad: float, device: str) -> None:
    u = torch.tensor([0.3, 2.0, -1.0], dtype=dtype, device=device)
    for omega in (0.0, 2.0):
        found = []
        for function in (treadle.sine_linear, reference.sine_linear):
            column = u[:, None].clone().requires_grad_()
            y = function(column, torch.ones(1, 1, dtype=dtype, device=device), None, omega)
            found.append(torch.autograd.grad(y, column, torch.full_like(y, grad))[0])
        assert torch.equal(found[0].isnan(), found[1].isnan())
        assert torch.equal(found[0].isinf(), found[1].isinf())


def siren_arguments(
    dtype: torch.dtype, inputs: int, reach: float, device: str
) -> tuple[list[Tensor], float]:
    """A layer of 64 at omega 30, whose phases reach about so far."""
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
    """Root mean squares of the errors against float64. Of half types clearly smaller."""
    if dtype == torch.float16:
        reach = min(reach, 1e3)  # beyond it the composition overflows
    tensors, omega = siren_arguments(dtype, inputs, reach, device)
    exact = errors(reference.sine_linear, [t.double() for t in tensors], omega, None)
    ours = errors(treadle.sine_linear, tensors, omega, exact)
    theirs = errors(reference.sine_linear, tensors, omega, exact)
    # float32: both are the same roundings in another order.
    room = 1.25 if dtype == torch.float32 else 0.8
    assert all(a <= room * b for a, b in zip(ours, theirs, strict=True)), (ours, theirs)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("inputs", [3, 64])
@pytest.mark.parametrize("dtype", FLOATING)
def test_saved_bytes(dtype: torch.dtype, inputs: int, device: str) -> None:
    """Beside arguments and result, 2 bytes an element; 8 of float64."""
    call = sine_arguments(Make("saved", device, dtype), (4, 50), (inputs, 32))
    leaves = [t.requires_grad_() for t in call.args[:3]]
    kept: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = treadle.sine_linear(*call.args)
    for t in (*leaves, y):
        kept.pop(t.untyped_storage().data_ptr(), None)
    assert sum(kept.values()) == y.numel() * (8 if dtype == torch.float64 else 2)


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_is_kept_without_gradients(device: str) -> None:
    call = sine_arguments(Make("saved", device, torch.float32), (4,), (5, 3))
    ops = []

    class Ops(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            ops.extend([str(f)] if f.namespace == "treadle" else [])
            return f(*args, **(kwargs or {}))

    with Ops():
        call.run(treadle.sine_linear)
        with torch.no_grad():
            call.map(lambda t: t.requires_grad_()).run(treadle.sine_linear)
        call.map(lambda t: t.requires_grad_()).run(treadle.sine_linear)
    assert ops == ["treadle.sine_linear.default"] * 2 + ["treadle.sine_linear_forward.default"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATING)
def test_with_and_without_gradients_alike(dtype: torch.dtype, device: str) -> None:
    for sizes in ((3, 64), (64, 33)):
        call = sine_arguments(Make("alike", device, dtype), (4100,), sizes)
        plain = call.run(treadle.sine_linear)
        kept = call.map(lambda t: t.requires_grad_()).run(treadle.sine_linear)
        assert torch.equal(plain, kept)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("inputs", [1, 2, 3, 4])
@pytest.mark.parametrize("outputs", [1, 3, 8, 64, 257])
def test_coordinates_and_products_agree(inputs: int, outputs: int, device: str) -> None:
    """The same layer with inputs of zeros beside the coordinates, which ATen multiplies."""
    make = Make(f"widths {inputs} {outputs}", device, torch.float64)
    call = sine_arguments(make, (600,), (inputs, outputs))
    input, weight, bias, omega = call.args
    wide = [torch.nn.functional.pad(t, (0, 8)) for t in (input, weight)]
    torch.testing.assert_close(
        treadle.sine_linear(input, weight, bias, omega),
        treadle.sine_linear(*wide, bias, omega),
        rtol=1e-12,
        atol=1e-12,
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATING)
def test_more_rows_than_one_product_takes(dtype: torch.dtype, device: str) -> None:
    """Products are made a part of the rows at a time; results and phases lie one behind another."""
    args = sine_arguments(Make("rows", device, dtype), (9001,), (8, 1024)).args
    y, phase = forward(*args)
    # From where the second part is on at the latest, in any dtype, and what ends the last.
    for part in (slice(0, 100), slice(4000, 4900), slice(-100, None)):
        alone, alone_phase = forward(args[0][part], *args[1:])
        torch.testing.assert_close(alone, y[part])
        one = torch.ones_like(alone)
        rest = (args[0][part], *args[1:3])
        slopes = [
            torch.ops.treadle.sine_linear_slope(one, None, *rest, kept, turns, args[3], 1)
            for kept, turns in ((alone, alone_phase), (y[part], phase[part]))
        ]
        torch.testing.assert_close(*slopes, rtol=1e-2, atol=1e-2 if dtype in HALVES else 1e-4)


def test_a_wrong_cosine_is_noticed() -> None:
    u = phases(30, 1 << 16, "cpu")
    wrong = u.double().cos() * (1 + 2e-7)
    assert worst(wrong - u.double().cos()) > 1e-7
