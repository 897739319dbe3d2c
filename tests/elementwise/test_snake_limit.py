"""Tests snake with an alpha at or near 0, or with logscale.

Training of RAVE failed with such an alpha (acids-ircam/RAVE#351). Exact values are computed with
power series.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, jacrev, jvp, vmap

import treadle
from tests.support.compare import same_bits
from tests.support.inputs import DEVICES, FLOATING, HALVES, Make

X = (-3.0, -1.0, -1e-3, 0.0, 0.1, 2.0, 3.0)
ALPHAS = (1e-3, 1e-6, 1e-8, 1e-9, 0.0, -1e-9, -2e-9, -1e-8, -1e-6, 1e-20, -1e-30, 1e-310)


def near_zero(dtype: torch.dtype) -> list[float]:
    """Returns ALPHAS and the smallest numbers of the dtype."""
    info = torch.finfo(dtype)
    least = info.smallest_normal * info.eps
    return [*ALPHAS, info.smallest_normal, -info.smallest_normal / 2, least, -least]


def grid(dtype: torch.dtype, device: str, x: Sequence[float] = X) -> tuple[Tensor, Tensor]:
    """Returns x [1, C, 1] and alpha [C], with one channel for every pair of their values."""
    table = torch.tensor(list(itertools.product(x, near_zero(dtype))), dtype=torch.float64)
    x_, alpha = table.to(device, dtype).unbind(1)
    return x_.view(1, -1, 1), alpha


def of_phase(coefficient: Callable[[int], float], t: Tensor) -> Tensor:
    """Returns the sum of coefficient(k) (-1)^k t^2k over all k, for |t| up to 3."""
    total = torch.zeros_like(t)
    for k in reversed(range(30)):
        total = total * -(t * t) + coefficient(k)
    return total


# Coefficients for of_phase. SQUARE gives sin(t)^2 / t^2. SLOPE gives the derivative of snake with
# respect to alpha, divided by x^2. BEND gives the derivative of SLOPE's sum with respect to t,
# divided by t.
SQUARE: Callable[[int], float] = lambda k: 2 ** (2 * k + 1) / math.factorial(2 * k + 2)  # noqa: E731
SLOPE: Callable[[int], float] = lambda k: (2 * k + 1) * SQUARE(k)  # noqa: E731
BEND: Callable[[int], float] = lambda k: -(2 * k + 2) * SLOPE(k + 1)  # noqa: E731


def value(x: Tensor, alpha: Tensor) -> Tensor:
    return x + alpha * x * x * of_phase(SQUARE, alpha * x)


def slopes(x: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
    """The derivatives with respect to x and to alpha."""
    return 1 + (2 * alpha * x).sin(), x * x * of_phase(SLOPE, alpha * x)


def bends(x: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Second derivatives with respect to x, to x and alpha, and to alpha."""
    t = alpha * x
    return 2 * alpha * (2 * t).cos(), 2 * x * (2 * t).cos(), x**3 * t * of_phase(BEND, t)


def near(ours: Tensor, exact: Tensor, roundings: float) -> None:
    """Checks that errors are at most `roundings` times eps, relative to `exact`, plus twice the
    smallest number."""
    assert bool(ours.isfinite().all())
    info = torch.finfo(ours.dtype)
    bound = roundings * info.eps * exact.abs() + 2 * info.smallest_normal * info.eps
    off = (ours.double() - exact).abs() - bound
    assert bool((off <= 0).all()), (float(off.max()), exact.flatten()[off.argmax()].item())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATING)
def test_values_and_derivatives(dtype: torch.dtype, device: str) -> None:
    x, alpha = (t.requires_grad_() for t in grid(dtype, device))
    wide = [t.detach().double().flatten() for t in (x, alpha)]
    y = treadle.snake(x, alpha)
    near(y.detach().flatten(), value(*wide), 0.51 if dtype in HALVES else 1)
    for create_graph in (False, True):  # the fused backward pass, then the composition
        found = torch.autograd.grad(
            y.sum(), (x, alpha), retain_graph=True, create_graph=create_graph
        )
        for ours, exact in zip(found, slopes(*wide), strict=True):
            near(ours.detach().flatten(), exact, 0.51 if dtype in HALVES else 6)
    for i, exact in enumerate(slopes(*wide)):
        ones = [
            torch.ones_like(t) if i == j else torch.zeros_like(t) for j, t in enumerate((x, alpha))
        ]
        moved = jvp(treadle.snake, (x.detach(), alpha.detach()), tuple(ones))[1]
        near(moved.flatten(), exact, 0.51 if dtype in HALVES else 6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATING)
def test_second_derivatives(dtype: torch.dtype, device: str) -> None:
    x, alpha = grid(dtype, device)
    wide = [t.double().flatten() for t in (x, alpha)]

    def one(x: Tensor, alpha: Tensor) -> Tensor:
        return treadle.snake(x.view(1, 1, 1), alpha.view(1)).sum()

    by_x, by_alpha = (vmap(jacrev(grad(one, i), (0, 1)))(x.flatten(), alpha) for i in (0, 1))
    forward = vmap(
        lambda x, a: jvp(grad(one, (0, 1)), (x, a), (torch.zeros_like(x), torch.ones_like(a)))[1]
    )(x.flatten(), alpha)
    by_x_twice, mixed, by_alpha_twice = bends(*wide)
    for ours, exact in (
        (by_x[0], by_x_twice),
        (by_x[1], mixed),
        (by_alpha[0], mixed),
        (by_alpha[1], by_alpha_twice),
        (forward[0], mixed),
        (forward[1], by_alpha_twice),
    ):
        # The terms of the last derivative cancel. The largest term is x^3.
        scale = torch.finfo(dtype).eps * wide[0].abs() ** 3
        assert bool(ours.isfinite().all())
        assert bool(
            (
                (ours.double() - exact).abs()
                <= scale + 1e-30 + 4 * scale.new_tensor(torch.finfo(dtype).eps) * exact.abs()
            ).all()
        )


def test_third_derivative() -> None:
    """The limit form uses sinc, which has derivatives of every order at 0. If a constant replaced
    sinc at 0, these derivatives would be 0."""
    x = torch.tensor([0.5, 2.0], dtype=torch.float64)
    third = jacrev(jacrev(jacrev(lambda a: treadle.snake(x[None, :, None], a.expand(2)).flatten())))
    for alpha in (0.0, 1e-9, -1e-3):
        found = third(torch.tensor(alpha, dtype=torch.float64))
        torch.testing.assert_close(found, -2 * x**4, rtol=1e-4, atol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_subnormal_alpha_and_huge_x(dtype: torch.dtype, device: str) -> None:
    """The result is finite although 1 / alpha is infinite."""
    least = torch.finfo(dtype).smallest_normal
    for alpha in (least / 4, -least / 4, least * torch.finfo(dtype).eps):
        x = torch.tensor([0.5, 0.7, -0.6, 0.01], dtype=torch.float64) * (3 / least)
        x = x.to(device, dtype)
        # Divides on the CPU, because torch on CUDA multiplies by 1 / alpha, which is infinite.
        phase = x.double().cpu() * alpha
        exact = ((phase + phase.sin().square()) / alpha).to(device)
        for shape in ((1, 1, 4), (4, 1)):
            ours = treadle.snake(x.view(shape), x.new_tensor([alpha]))
            near(ours.flatten(), exact, 0.51 if dtype == torch.bfloat16 else 2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("form", ["limit", "eps", "logscale", "logscale, limit"])
def test_the_same_bits_in_every_layout(form: str, dtype: torch.dtype, device: str) -> None:
    """Long rows, short rows, columns and single elements use different loops."""
    make = Make("layouts", device, dtype)
    x, alpha, beta = make(4, 12, 300, by=3), make(12, by=3), make(12, by=0.3)
    alpha[::3], alpha[1::3] = 0, torch.finfo(dtype).smallest_normal / 2
    if form == "limit":  # subnormal alphas, for which 1 / alpha may be inf, get phases near 1
        x[:, 1::3] *= 0.05 / alpha[1::3, None]
    given: dict[str, Any] = {} if "limit" in form else {"beta": beta.abs() + 1}
    options = {"eps": 0.25} if form == "eps" else {"logscale": "logscale" in form}
    expected = treadle.snake(x, alpha, **given, **options)
    last = x.transpose(1, 2).contiguous().transpose(1, 2)
    same_bits(treadle.snake(last, alpha, **given, **options).contiguous(), expected)
    for part in (7, 1):
        rows = x[:, :, :part].contiguous()
        found = treadle.snake(rows, alpha, **given, **options)
        same_bits(found, expected[:, :, :part].contiguous())
    rows = x[..., ::2]
    same_bits(treadle.snake(rows, alpha, **given, **options), expected[..., ::2].contiguous())
    turned = x[0].mT
    same_bits(treadle.snake(turned, alpha, **given, **options), expected[0].mT)
    each = (t.repeat_interleave(300)[None] for t in (alpha, *given.values()))
    dense = treadle.snake(x[:1].reshape(1, 3600), *(t[0] for t in each), **options)
    same_bits(dense, expected[:1].reshape(1, 3600))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATING)
def test_the_bits_of_eps_0(dtype: torch.dtype, device: str) -> None:
    """Without an eps, results have the same bits as with eps=0.0 if alpha is a normal number in
    float32."""
    make = Make("eps 0", device, dtype)
    alpha = torch.tensor([3.0, -2.0, 1e-4, -1e-9, 1e-20, 1e-37], dtype=torch.float64)
    alpha = alpha.to(device, dtype)
    alpha = alpha[alpha.float().abs() >= torch.finfo(torch.float32).smallest_normal]
    x = make(3, len(alpha), 500, by=10)
    same_bits(treadle.snake(x, alpha), treadle.snake(x, alpha, eps=0.0))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(1, 40_000, 2), (2, 40_000)], ids=str)
def test_bits_do_not_go_by_another_alpha(shape: tuple[int, ...], device: str) -> None:
    """A channel with small phases has the same bits next to channels whose alpha is 0."""
    x = Make("beside", device, torch.float32)(*shape)
    alpha = torch.full((shape[1],), 1e-4, device=device)
    beside = alpha.clone()
    beside[::2] = 0
    alone, found = (treadle.snake(x, a)[:, 1::2].contiguous() for a in (alpha, beside))
    same_bits(found, alone)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("beta", [False, True])
def test_logarithms_are_not_rounded_between(beta: bool, dtype: torch.dtype, device: str) -> None:
    """Results and gradients of half types are rounded once, from float32."""
    make = Make("logarithms", device, dtype)
    act = treadle.nn.Snake(6, beta=beta, logscale=True, device=device, dtype=dtype)
    with torch.no_grad():
        for p in act.parameters():
            p.copy_(make(6, by=2).clamp(-4, 4))
    x = make(2, 6, 200).requires_grad_()
    y = act(x)
    cotangent = make(2, 6, 200)
    leaves = [x, *act.parameters()]
    once = torch.autograd.grad(y, leaves, cotangent, retain_graph=True)
    again = torch.autograd.grad(y, leaves, cotangent, create_graph=True)
    wide = [t.detach().double().requires_grad_() for t in leaves]
    eps = 1e-9 if beta else None
    exact = treadle.reference.snake(*wide, eps=eps, logscale=True)
    truth = torch.autograd.grad(exact, wide, cotangent.double())
    step = torch.finfo(dtype).eps
    for ours, true in ((y, exact), *zip(once, truth, strict=True), *zip(again, truth, strict=True)):
        # Half an ulp, plus the errors of float32 and of the half types' sines.
        bound = 0.51 * step * true.abs() + step / 8 * true.abs().max() * (1 / 16)
        assert bool(((ours.double() - true).abs() <= bound).all())


def test_a_logarithm_that_underflows() -> None:
    """exp(-200) is 0 in float32."""
    x = torch.tensor([[-2.0], [3.0]], requires_grad=True)
    log = torch.tensor([-200.0], requires_grad=True)
    y = treadle.snake(x, log, logscale=True)
    assert torch.equal(y, x)
    by_x, by_log = torch.autograd.grad(y.sum(), (x, log))
    assert torch.equal(by_x, torch.ones_like(x)) and by_log.item() == 0
