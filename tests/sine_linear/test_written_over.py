"""The sine layer's result may be overwritten (`y *= factor`), like the result of torch.sin.
Gradients are bitwise equal to those of `y = y * factor`; higher derivatives are summed in a
different order."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import treadle
from tests.support.inputs import DEVICES, FLOATING
from treadle.nn import SineLinear

B, I, O = 6, 3, 8  # noqa: E741

Write = Callable[[Tensor, Tensor], Tensor]


def times(y: Tensor, factor: Tensor) -> Tensor:
    return y * factor


def times_(y: Tensor, factor: Tensor) -> Tensor:
    y *= factor
    return y


def zeroed(y: Tensor, factor: Tensor) -> Tensor:
    return zeroed_(y.clone(), factor)


def zeroed_(y: Tensor, factor: Tensor) -> Tensor:
    y[..., 1:3] = 0
    return y


class Net(nn.Module):
    """siren-pytorch's network with a modulator, which multiplies each layer's result."""

    def __init__(self, write: Write, device: str, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        made = {"device": device, "dtype": dtype}
        self.first = SineLinear(I, O, is_first=True, omega_0=3, **made)
        self.second = SineLinear(O, O, omega_0=3, **made)
        self.last = nn.Linear(O, 1, **made)
        self.factor = nn.Parameter(torch.randn(O, **made))
        self.x = torch.rand(B, I, **made).mul(2).sub(1).requires_grad_()
        self.write = write

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.first, self.second):
            x = self.write(layer(x), self.factor)
        return self.last(x)

    def derivatives(self, order: int) -> list[Tensor]:
        """A value or derivative of the net, and the gradients of a loss that uses it."""
        value = self(self.x)
        for _ in range(order - 1):
            (slope,) = torch.autograd.grad(value.sum(), self.x, create_graph=True)
            value = slope.sum(-1)
        leaves = [self.x, *(p for name, p in self.named_parameters() if name != "last.bias")]
        # A parameter that is not used has no gradient.
        found = torch.autograd.grad(value.square().sum(), leaves, allow_unused=True)
        return [value, *(grad for grad in found if grad is not None)]


def same(actual: list[Tensor], expected: list[Tensor]) -> None:
    assert len(actual) == len(expected) >= 6
    for a, b in zip(actual, expected, strict=True):
        assert b.abs().max() > 0
        assert torch.equal(a, b)


def near(actual: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected, strict=True):
        assert (a - b).double().norm() <= tolerance * b.double().norm()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("plain, write", [(times, times_), (zeroed, zeroed_)])
def test_derivatives(
    device: str, dtype: torch.dtype, order: int, plain: Write, write: Write
) -> None:
    actual, expected = (Net(way, device, dtype).derivatives(order) for way in (write, plain))
    if order == 1:
        same(actual, expected)
    near(actual, expected, 64 * torch.finfo(dtype).eps)


def test_written_over_between_two_derivatives() -> None:
    """Tensors that the first derivative saved are overwritten before the second derivative."""
    found = []
    for write in (times_, times):
        net = Net(write, "cpu")
        y = net.first(net.x)
        (slope,) = torch.autograd.grad(y.sum(), net.x, create_graph=True)
        loss = slope.square().sum() + write(y, net.factor).sum()
        found.append([slope, *torch.autograd.grad(loss, [net.x, net.first.weight, net.factor] * 2)])
    same(*found)


def test_a_kept_graph_runs_twice() -> None:
    net = Net(times_, "cpu")
    loss = net(net.x).sum()
    grads = [torch.autograd.grad(loss, net.first.weight, retain_graph=k == 0)[0] for k in (0, 1)]
    assert torch.equal(*grads)
    with pytest.raises(RuntimeError, match="a second time"):
        loss.backward()


def test_within_autocast() -> None:
    """The output is recomputed in its original dtype, even if autocast is on during backward."""
    found = []
    for write in (times_, times):
        net = Net(write, "cpu")
        y = write(net.first(net.x), net.factor)
        with torch.autocast("cpu", torch.bfloat16):
            found.append(torch.autograd.grad(y.sum(), [net.x, net.first.weight, net.factor] * 2))
    same(*map(list, found))


@pytest.mark.parametrize("layers", [False, True])
def test_func_transforms(layers: bool) -> None:
    """Forward-over-reverse derivatives under vmap, over rows or over the weights of N layers."""
    found = []
    for write in (times_, times):
        net = Net(write, "cpu")
        weight = torch.stack([net.first.weight, -net.first.weight]).detach()

        def value(x: Tensor, w: Tensor, write: Write = write, net: Net = net) -> Tensor:
            y = treadle.sine_linear(x, w, net.first.bias, 3.0)
            return net.last(write(y, net.factor)).sum()

        hessian = torch.func.jacfwd(torch.func.grad(value))
        if layers:
            found.append(torch.func.vmap(hessian, (None, 0))(net.x[0], weight))
        else:
            found.append(torch.func.vmap(hessian, (0, None))(net.x, weight[0]))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)
    assert found[0].abs().max() > 0.1


@pytest.mark.parametrize("way", ["checkpoint", "saved on the CPU", "hooks that keep", "compile"])
def test_programs(way: str) -> None:
    found = []
    for write in (times_, times):
        net = Net(write, "cpu")
        if way == "saved on the CPU":
            with torch.autograd.graph.save_on_cpu():
                found.append(net.derivatives(1))
        elif way == "hooks that keep":
            # With hooks torch does not compare versions, so its own ops would use the overwritten
            # values of y.
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
                found.append(net.derivatives(1))
        else:
            call = functools.partial(checkpoint, net.forward, use_reentrant=False)
            if way == "compile":
                call = torch.compile(net.forward, backend="aot_eager", fullgraph=True)
            net.forward = call
            found.append(net.derivatives(1))
    same(*found)


def test_compiled_autograd() -> None:
    found = []
    for write in (times_, times):
        net = Net(write, "cpu")
        loss = net(net.x).sum()
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            loss.backward()
        found.append([p.grad for p in (net.x, *net.parameters())])
    same(*found)


def test_an_argument_that_was_written_over_still_raises() -> None:
    """An overwritten argument raises, as in torch's own ops, because the output would be recomputed
    from it."""
    net = Net(times, "cpu")
    x = net.x * 1
    y = net.first(x)
    x *= 2
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_memory_is_that_of_one_result_more() -> None:
    peaks = []
    for write in (times_, times):
        layer, x = SineLinear(64, 64, device="cuda"), torch.rand(1 << 16, 64, device="cuda")
        factor = torch.rand(64, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        write(layer(x), factor).sum().backward()
        peaks.append(torch.cuda.max_memory_allocated() - before)
    result = (1 << 16) * 64 * 4
    assert peaks[0] <= peaks[1] + result
