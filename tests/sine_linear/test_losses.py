"""Losses that contain derivatives, with which SIRENs are trained: eikonal, Poisson, Helmholtz."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, jacrev, vmap

import treadle
from tests.support.cases import DEVICES
from tests.support.inputs import Make
from tests.support.rule import within_rule
from treadle import reference

Layer = Callable[..., Tensor]
OMEGA = 6.0
HIDDEN = 16


def net(dtype: torch.dtype, device: str, outputs: int = 1) -> list[Tensor]:
    """Weights and biases of two sine layers and a linear one, scaled as in SIREN."""
    make = Make("net", device, torch.float64)
    found = []
    for i, o, first in ((2, HIDDEN, True), (HIDDEN, HIDDEN, False), (HIDDEN, outputs, False)):
        bound = 1 / i if first else (6 / i) ** 0.5 / OMEGA
        found += [make(o, i, by=bound / 2), make(o, by=bound / 2)]
    return [t.to(dtype).requires_grad_() for t in found]


def field(layer: Layer, parameters: list[Tensor], x: Tensor) -> Tensor:
    h = layer(x, parameters[0], parameters[1], OMEGA)
    h = layer(h, parameters[2], parameters[3], OMEGA)
    return torch.nn.functional.linear(h, parameters[4], parameters[5])


def gradient(y: Tensor, x: Tensor) -> Tensor:
    return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]


def laplacian(y: Tensor, x: Tensor) -> Tensor:
    first = gradient(y, x)
    return sum(gradient(first[..., i], x)[..., i] for i in range(x.shape[-1]))  # type: ignore[return-value]


def eikonal(y: Tensor, x: Tensor) -> Tensor:
    return (gradient(y, x).norm(dim=-1) - 1).square().mean() + 0.1 * y.abs().mean()


def poisson(y: Tensor, x: Tensor) -> Tensor:
    return (laplacian(y, x) - x.sin().sum(-1)).square().mean()


def helmholtz(y: Tensor, x: Tensor) -> Tensor:
    residual = laplacian(y, x) + 9 * y[..., 0] - (-x.square().sum(-1)).exp()
    return residual.abs().mean()


LOSSES = {"eikonal": eikonal, "poisson": poisson, "helmholtz": helmholtz}


def trained(
    loss: Callable[[Tensor, Tensor], Tensor], layer: Layer, dtype: torch.dtype, device: str
) -> list[Tensor]:
    """The loss, and its gradients with respect to the parameters and the points."""
    parameters = net(dtype, device)
    x = Make("points", device, torch.float64)(3, 11, 2, by=0.5).to(dtype).requires_grad_()
    value = loss(field(layer, parameters, x), x)
    return [value.detach(), *torch.autograd.grad(value, [*parameters[:-1], x])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", LOSSES)
def test_as_plain_pytorch_in_float64(name: str, device: str) -> None:
    ours, theirs = (
        trained(LOSSES[name], layer, torch.float64, device)
        for layer in (treadle.sine_linear, reference.sine_linear)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_by_the_rule(name: str, dtype: torch.dtype, device: str) -> None:
    """Parameters and points are rounded to the dtype first, even for the float64 reference."""
    runs = []
    for layer, cast in (
        (treadle.sine_linear, dtype),
        (reference.sine_linear, torch.float64),
        (reference.sine_linear, dtype),
    ):
        parameters = [t.detach().to(cast).requires_grad_() for t in net(dtype, device)]
        x = Make("points", device, torch.float64)(64, 2, by=0.5).to(dtype)
        x = x.to(cast).requires_grad_()
        value = LOSSES[name](field(layer, parameters, x), x)
        runs.append([value.detach(), *torch.autograd.grad(value, parameters[:-1])])
    for n, (actual, truth, composition) in enumerate(zip(*runs, strict=True)):
        within_rule(actual, truth, composition, gradient=True, what=f"{name} {n}")


@pytest.mark.parametrize("device", DEVICES)
def test_derivatives_by_torch_func(device: str) -> None:
    """Computes gradients by torch.func.grad and Hessians by hessian, for each point under vmap."""
    x = Make("points", device, torch.float64)(7, 2, by=0.5)
    found = []
    for layer in (treadle.sine_linear, reference.sine_linear):
        parameters = net(torch.float64, device)

        def at(point: Tensor, layer: Layer = layer, p: list[Tensor] = parameters) -> Tensor:
            return field(layer, p, point)[0]

        second = vmap(hessian(at))(x)
        value = second.square().sum() + vmap(grad(at))(x).sin().sum()
        jacobian = vmap(jacrev(at))(x)
        found.append([second.detach(), jacobian.detach()])
        found[-1] += torch.autograd.grad(value, parameters[:-1])
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("device", DEVICES)
def test_ensemble_of_networks(device: str) -> None:
    """The gradients of four networks, by vmap over their weights."""
    x = Make("points", device, torch.float64)(7, 2, by=0.5)
    stacked = {
        str(n): torch.stack([t.detach() * k for k in (1.0, 0.5, -1.0, 2.0)])
        for n, t in enumerate(net(torch.float64, device))
    }
    found = []
    for layer in (treadle.sine_linear, reference.sine_linear):

        def loss(p: dict[str, Tensor], layer: Layer = layer) -> Tensor:
            return field(layer, list(p.values()), x).square().sum()

        found.append(vmap(grad(loss))(stacked))
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)


def products(run: Callable[[], Any]) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    return sum(e.count for e in profile.key_averages() if e.key in ("aten::mm", "aten::addmm"))


@pytest.mark.parametrize("name", LOSSES)
def test_no_more_products_than_plain_pytorch(name: str) -> None:
    """Gradients with respect to x W^T + b are added before they are multiplied."""
    counts = [
        products(lambda layer=layer: trained(LOSSES[name], layer, torch.float32, "cpu"))
        for layer in (treadle.sine_linear, reference.sine_linear)
    ]
    # Our kernel itself computes the products of the first layer, which has two coordinates.
    assert counts[0] <= counts[1]


def test_checkpointed_layers_have_the_same_derivatives() -> None:
    from torch.utils.checkpoint import checkpoint

    found = []
    for again in (False, True):
        parameters = net(torch.float64, "cpu")
        x = Make("points", "cpu", torch.float64)(7, 2, by=0.5).requires_grad_()

        def run(x: Tensor, p: list[Tensor] = parameters) -> Tensor:
            return field(treadle.sine_linear, p, x)

        y = checkpoint(run, x, use_reentrant=False) if again else run(x)
        value = eikonal(y, x)
        found.append(torch.autograd.grad(value, parameters[:-1]))
    torch.testing.assert_close(*found)


def test_saved_tensors_may_be_moved() -> None:
    """Hooks may replace saved tensors, as CPU offloading does."""
    found = []
    for packed in (False, True):
        parameters = net(torch.float64, "cpu")
        x = Make("points", "cpu", torch.float64)(7, 2, by=0.5).requires_grad_()
        if packed:
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
                value = eikonal(field(treadle.sine_linear, parameters, x), x)
        else:
            value = eikonal(field(treadle.sine_linear, parameters, x), x)
        found.append(torch.autograd.grad(value, parameters[:-1]))
    torch.testing.assert_close(*found)


def test_a_missing_second_derivative_is_noticed() -> None:
    def broken(x: Tensor, w: Tensor, b: Tensor, omega: float) -> Tensor:
        return treadle.sine_linear(x, w.detach(), b, omega) + 0 * w.sum()

    theirs = trained(eikonal, reference.sine_linear, torch.float64, "cpu")
    with pytest.raises(AssertionError):
        torch.testing.assert_close(trained(eikonal, broken, torch.float64, "cpu"), theirs)
