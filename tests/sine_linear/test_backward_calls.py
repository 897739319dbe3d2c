"""Calls of sine_linear_backward: a backward pass calls it once, and higher derivatives never."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode

import treadle
from tests.sine_linear.cases import OMEGA, sine_arguments
from tests.sine_linear.gradients import ALL, backward, backward_arguments, ops
from tests.support.cases import DEVICES, FLOATING
from tests.support.compare import same_bits
from tests.support.inputs import Make


def called(run: Callable[[], Any]) -> list[tuple[str, Any]]:
    """treadle's ops and ATen's products and sums, in order, and the shapes of their tensors."""
    found: list[tuple[str, Any]] = []
    plain = ("sum", "mm", "bmm", "matmul")

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = f.name().split("::")[1].split(".")[0]
            if f.namespace == "treadle" or name in plain:
                found.append((name, [tuple(a.shape) for a in args if isinstance(a, Tensor)]))
            return f(*args, **(kwargs or {}))

    with Calls():
        run()
    return found


def names(run: Callable[[], Any]) -> list[str]:
    return [name for name, _ in called(run)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layers", [(), (2,)], ids=str)
@pytest.mark.parametrize("needs", [(0, 1, 2), (2,), (0, 1), (0,)], ids=str)
def test_a_backward_pass_is_one_op(
    needs: tuple[int, ...], layers: tuple[int, ...], device: str
) -> None:
    """The op computes any subset of gradients, without further products or sums."""
    *tensors, omega = sine_arguments(
        Make("sums", device, torch.float64), (7,), (3, 4), layers=layers
    ).args
    leaves = [tensors[i].requires_grad_() for i in needs]
    y = treadle.sine_linear(*tensors, omega)
    grad = torch.ones_like(y)
    assert names(lambda: torch.autograd.grad(y, leaves, grad)) == ["sine_linear_backward"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_large_gradient_is_gone_when_its_slope_is_multiplied(
    dtype: torch.dtype, device: str
) -> None:
    """The slope replaces the gradient, so the products run without a further tensor of this
    size."""
    rows = (1 << 24) // (512 * dtype.itemsize)
    *tensors, omega = sine_arguments(Make("large", device, dtype), (rows,), (8, 512)).args
    leaves = [t.requires_grad_() for t in tensors]
    y = treadle.sine_linear(*leaves, omega)
    grads: list[weakref.ref[Tensor]] = []
    kept: list[Tensor] = []
    y.register_hook(lambda g: grads.append(weakref.ref(g)))
    y.register_hook(lambda g: kept.append(g.clone()))
    alive: list[tuple[str, bool]] = []

    class Alive(TorchDispatchMode):
        def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if grads and f.name() in ("treadle::sine_linear_backward", "aten::mm"):
                alive.append((f.name().split("::")[1], grads[0]() is not None))
            return f(*args, **(kwargs or {}))

    z = y * torch.arange(512, dtype=dtype, device=device)
    with Alive():
        found = torch.autograd.grad(z.sum(), leaves)
    assert alive == [("sine_linear_backward", True), ("mm", False), ("mm", False)]
    with torch.no_grad():
        saved = ops.sine_linear_forward(*leaves, omega)
        for t, like in zip(found, backward((kept[0], *leaves, *saved, omega)), strict=True):
            same_bits(t, like)


@pytest.mark.parametrize("needs", [(0, 1, 2), (0,)], ids=str)
def test_vmap_of_rows_is_one_call(needs: tuple[int, ...]) -> None:
    """A batch becomes N layers if gradients of weight or bias are requested. For the input's
    gradient it becomes more rows."""
    make = Make("sums", "cpu", torch.float64)
    *tensors, omega = sine_arguments(make, (7,), (3, 4)).args
    leaves = [tensors[i].requires_grad_() for i in needs]
    y = treadle.sine_linear(*tensors, omega)

    def run(v: Tensor) -> Any:
        return torch.autograd.grad(y, leaves, v, retain_graph=True)

    grads = make(5, *y.shape)
    ((name, shapes),) = called(lambda: vmap(run)(grads))
    assert name == "sine_linear_backward" and shapes[0] == (5, 7, 4)
    assert shapes[2] == ((4, 3) if needs == (0,) else (5, 4, 3))
    torch.testing.assert_close([t[2] for t in vmap(run)(grads)], list(run(grads[2])))


@pytest.mark.parametrize("device", DEVICES)
def test_derivatives_of_derivatives_are_made_of_slopes(device: str) -> None:
    """Gradients with respect to x W^T + b are added before any product or sum."""
    *tensors, omega = sine_arguments(Make("sums", device, torch.float64), (7,), (3, 4)).args
    leaves = [t.requires_grad_() for t in tensors]
    y = treadle.sine_linear(*tensors, omega)
    grad = torch.ones_like(y).requires_grad_()
    first: list[Tensor] = []
    found = names(lambda: first.extend(torch.autograd.grad(y, leaves, grad, create_graph=True)))
    assert found == ["sine_linear_slope", "mm", "mm", "sum"]
    value = torch.stack([t.sin().sum() for t in first]).sum()
    found = names(lambda: torch.autograd.grad(value, [*leaves, grad]))
    assert "sine_linear_backward" not in found and "sine_linear_slope_backward" in found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layers", [(), (2,)], ids=str)
@pytest.mark.parametrize("mask", [ALL, (True, False, False), (False, True, True)], ids=str)
def test_gradgradcheck_and_forward_ad(
    mask: tuple[bool, ...], layers: tuple[int, ...], device: str
) -> None:
    grad, *tensors, output, phase, omega = backward_arguments(
        Make("sums", device, torch.float64), (5,), 3, inputs=2, layers=layers
    )
    leaves = [t.requires_grad_() for t in (grad, *tensors)]

    def run(grad: Tensor, *tensors: Tensor) -> Any:
        # Saved values have no gradients, so they are recomputed from the inputs.
        with torch.no_grad():
            kept = ops.sine_linear_forward(*(t.detach() for t in tensors), omega)
        return backward((grad, *tensors, *kept, omega), mask)

    assert torch.autograd.gradcheck(run, leaves, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(run, leaves)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATING)
def test_the_layer_has_the_gradients_of_the_op(dtype: torch.dtype, device: str) -> None:
    """Autocast around the backward pass does not change the bits of the gradients."""
    for rows, outputs in ((3, 5), (3000, 128)):
        *tensors, omega = sine_arguments(Make("sums", device, dtype), (rows,), (2, outputs)).args
        leaves = [t.requires_grad_() for t in tensors]
        y = treadle.sine_linear(*tensors, omega)
        grad = Make("grad", device, dtype)(*y.shape)
        found = [torch.autograd.grad(y, leaves, grad, retain_graph=True)]
        with torch.autocast(device, torch.bfloat16):
            found.append(torch.autograd.grad(y, leaves, grad))
        with torch.no_grad():
            kept = ops.sine_linear_forward(*leaves, OMEGA)
            expected = backward((grad, *leaves, *kept, OMEGA))
        for gradients in found:
            for ours, theirs in zip(gradients, expected, strict=True):
                same_bits(ours, theirs)
