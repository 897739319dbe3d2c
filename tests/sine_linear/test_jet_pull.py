"""Siren.jet without second derivatives, for networks with few outputs. In eager mode, one autograd
Node computes the value and the gradient. This Node saves few values for the backward pass, and
recomputes the others for a chunk of points at a time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint

from tests.sine_linear.jets import points, siren
from tests.sine_linear.test_memory import most
from tests.support.inputs import DEVICES
from treadle import reference
from treadle.nn import Siren, _siren_jet, _siren_pull

Results = tuple[Tensor, Tensor]


def pulled(net: Siren, x: Tensor) -> Results:
    value, gradient, _, _ = net.jet(x, laplacian=False)
    assert gradient is not None
    return value, gradient


@pytest.fixture(params=[0, 3])
def few_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All points in one chunk, or 7 points in chunks of 3, 3 and 1."""
    if request.param:
        monkeypatch.setattr(_siren_pull, "_LEAST", request.param)
        monkeypatch.setattr(_siren_pull, "_AT_ONCE", 0)


def both_ways(run: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """The results of the Node, and those of torch.func."""
    found = run()
    monkeypatch.setattr(_siren_jet, "is_plain", lambda *_: False)
    return found, run()


LOSSES: dict[str, Callable[..., Tensor]] = {
    "both": lambda value, gradient: value.sin().sum() + gradient.cos().sum(),
    "value": lambda value, _: value.sin().sum(),
    "gradient": lambda _, gradient: gradient.cos().sum(),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("options", [{}, {"bias": False, "out_features": 2}, {"hidden_layers": 0}])
@pytest.mark.usefixtures("few_at_once")
def test_like_torch_func(
    options: dict[str, Any],
    loss: str,
    dtype: torch.dtype,
    device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = siren(3, dtype=dtype, **{"out_features": 1, **options}).to(device)
    x = points(inputs=3, dtype=dtype).to(device).requires_grad_()
    leaves = [x, *net.parameters()]

    def run() -> list[Tensor | None]:
        results = pulled(net, x)
        grads = torch.autograd.grad(LOSSES[loss](*results), leaves, allow_unused=True)
        return [*(t.detach() for t in results), *grads]

    ours, theirs = both_ways(run, monkeypatch)
    eps = torch.finfo(dtype).eps
    for one, other in zip(ours, theirs, strict=True):
        if one is None or other is None:
            assert one is other
            continue
        scale = float(other.abs().max())
        torch.testing.assert_close(one, other, rtol=0, atol=16 * eps * scale + 1e-12)


@pytest.mark.parametrize("shape", [(3,), (0, 3), (2, 1, 4, 3)])
@pytest.mark.parametrize("grad", [False, True])
def test_any_points(shape: tuple[int, ...], grad: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = siren(3, out_features=2), torch.rand(shape, dtype=torch.float64)

    def run() -> list[Tensor]:
        with torch.set_grad_enabled(grad):
            value, gradient = pulled(net, x)
            assert value.requires_grad == gradient.requires_grad == grad
            assert (value.shape, gradient.shape) == ((*shape[:-1], 2), (*shape[:-1], 2, 3))
            loss = value.sin().sum() + gradient.cos().sum()
            return [value, gradient, *(torch.autograd.grad(loss, net.parameters()) if grad else ())]

    torch.testing.assert_close(*both_ways(run, monkeypatch))


def test_derivatives_of_every_kind() -> None:
    """First, second and third derivatives, forward mode, and batches of cotangents."""
    net = siren(3, out_features=1, hidden_features=4, hidden_layers=1)
    x = points(2, inputs=3).requires_grad_()
    names = [f"net.{name}" for name, _ in net.named_parameters()]

    class Pulled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> Results:
            return pulled(self.net, x)

    def call(x: Tensor, *params: Tensor) -> Results:
        given = dict(zip(names, params, strict=True))
        return torch.func.functional_call(Pulled(), given, (x,))  # type: ignore[no-any-return]

    leaves = (x, *net.parameters())
    assert gradcheck(call, leaves, check_batched_grad=True, check_forward_ad=True)
    assert gradgradcheck(call, leaves, check_batched_grad=True)
    value, gradient = pulled(net, x)
    (twice,) = torch.autograd.grad(gradient[:, 0, 0].sum(), x, create_graph=True)
    (thrice,) = torch.autograd.grad(twice[:, 1].sum(), x)
    expected = torch.func.hessian(torch.func.grad(lambda p: net(p)[0]))
    torch.testing.assert_close(thrice, torch.vmap(expected)(x.detach())[:, 0, 1])


@pytest.mark.parametrize("way", ["checkpoint", "hooks", "autocast", "kept"])
def test_what_else_a_step_may_do(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Node supports saved-tensor hooks, which checkpointing needs, whereas torch.func does
    not."""
    net, x = siren(3, out_features=1), points(inputs=3)
    wanted = torch.autograd.grad(pulled(net, x)[1].cos().sum(), net.parameters(), allow_unused=True)
    hooks: Any = torch.autograd.graph.save_on_cpu() if way == "hooks" else nullcontext()
    with hooks:
        call = (
            pulled
            if way != "checkpoint"
            else lambda *a: checkpoint(pulled, *a, use_reentrant=False)
        )
        loss = call(net, x)[1].cos().sum()
    if way == "kept":
        torch.autograd.grad(loss, list(net.parameters())[0], retain_graph=True)
    # Autocast does not change the backward pass, which keeps the dtype of the layers.
    with torch.autocast("cpu", torch.bfloat16) if way == "autocast" else nullcontext():
        found = torch.autograd.grad(loss, net.parameters(), allow_unused=True)
    assert wanted[-1] is None
    torch.testing.assert_close(found, wanted)


def test_a_frozen_net_and_frozen_layers() -> None:
    net, x = siren(3, out_features=1).requires_grad_(False), points(inputs=3).requires_grad_()
    full = torch.autograd.grad(pulled(siren(3, out_features=1), x)[1].square().sum(), x)
    torch.testing.assert_close(torch.autograd.grad(pulled(net, x)[1].square().sum(), x), full)
    net.net[1].weight.requires_grad_()
    pulled(net, x.detach())[1].square().sum().backward()
    assert net.net[1].weight.grad is not None and net.net[0].weight.grad is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_takes_half_of_autograds_memory(dtype: torch.dtype) -> None:
    count, width, found = 1 << 14, 64, []
    net = Siren(3, width, 3, 1, True, dtype=dtype)
    x = torch.rand(count, 3).to(dtype)

    def plain(x: Tensor) -> Tensor:
        h = x.requires_grad_()
        for layer in list(net.net)[:-1]:
            h = reference.sine_linear(h, layer.weight, layer.bias, layer.omega_0)  # type: ignore[arg-type]
        y = F.linear(h, net.net[-1].weight, net.net[-1].bias)  # type: ignore[arg-type]
        return torch.autograd.grad(y.sum(), x, create_graph=True)[0]

    for slope in (lambda x: pulled(net, x)[1].squeeze(1), plain):

        def step(x: Tensor, slope: Callable[[Tensor], Tensor] = slope) -> None:
            (slope(x).norm(dim=-1) - 1).square().mean().backward()

        step(x.clone())  # allocates the parameters' gradients
        found.append(most(lambda: x.clone(), step, "cpu"))
    assert found[0] <= 0.5 * found[1], found
