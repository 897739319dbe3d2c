"""The backward pass of the sine layer overwrites a large gradient only if nothing else references
that gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as fwAD
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import treadle
from tests.sine_linear.cases import OMEGA
from tests.sine_linear.gradients import expected, large_arguments, same
from tests.support.cases import DEVICES
from tests.support.compare import same_bits

Kept = list[Any]


def a_hook(y: Tensor, kept: Kept) -> Tensor:
    y.register_hook(lambda g: kept.append(g))
    return y


def an_alias(y: Tensor, kept: Kept) -> Tensor:
    y.register_hook(lambda g: kept.append(g.detach()))
    return y


def a_view(y: Tensor, kept: Kept) -> Tensor:
    y.register_hook(lambda g: kept.append(g[0]))
    return y


def the_base(y: Tensor, kept: Kept) -> Tensor:
    """A hook keeps the base of the gradient. The gradient itself is a view without a Python
    object."""
    return a_hook(y.view(-1), kept).view(y.shape)


def a_storage(y: Tensor, kept: Kept) -> Tensor:
    y.register_hook(lambda g: kept.append(g.untyped_storage()))
    return y


def before_the_node(y: Tensor, kept: Kept) -> Tensor:
    y.grad_fn.register_prehook(lambda gs: kept.append(gs[0]))
    return y


def after_the_node(y: Tensor, kept: Kept) -> Tensor:
    y.grad_fn.register_hook(lambda _, gs: kept.append(gs[0]))
    return y


def many_tensors(y: Tensor, kept: Kept) -> Tensor:
    x = y.grad_fn.next_functions[0][0].variable
    torch.autograd.graph.register_multi_grad_hook([y, x], lambda gs: kept.append(gs[0]))
    return y


HOLDERS = (
    a_hook,
    an_alias,
    a_view,
    the_base,
    a_storage,
    before_the_node,
    after_the_node,
    many_tensors,
)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("holder", HOLDERS, ids=lambda f: f.__name__)
def test_a_gradient_that_is_held_keeps_its_values(holder: Any, device: str) -> None:
    leaves, by = large_arguments(torch.float32, device)
    theirs, kept = expected(by, leaves), list[Any]()
    y = holder(treadle.sine_linear(*leaves, OMEGA), kept)
    (y * by).sum().backward()
    same([t.grad for t in leaves], theirs)
    (t,) = kept
    if holder is a_storage:
        t = by.new_empty(0).set_(t).view(by.shape)
    same_bits(t, by[0] if holder is a_view else by.view(t.shape))


@pytest.mark.parametrize("device", DEVICES)
def test_a_gradient_that_somebody_else_gets(device: str) -> None:
    """The gradient is also used by the caller, who passed or requested it, by another leaf, or by
    another layer."""
    leaves, by = large_arguments(torch.float32, device)
    theirs, mine = expected(by, leaves), by.clone()
    same(torch.autograd.grad(treadle.sine_linear(*leaves, OMEGA), leaves, mine), theirs)
    same_bits(mine, by)
    y = treadle.sine_linear(*leaves, OMEGA)
    by_y, *found = torch.autograd.grad((y * by).sum(), [y, *leaves])
    same(found, theirs)
    same_bits(by_y, by)
    y = treadle.sine_linear(*leaves, OMEGA)
    y.retain_grad()
    same(torch.autograd.grad((y * by).sum(), leaves), theirs)
    same_bits(y.grad, by)
    leaf = torch.zeros_like(by).requires_grad_()
    others = [t.detach().requires_grad_() for t in leaves]
    y, z = (treadle.sine_linear(*some, OMEGA) for some in (leaves, others))
    ((y + leaf + z) * by).sum().backward()
    same_bits(leaf.grad, by)
    for some in (leaves, others):
        same([t.grad for t in some], theirs)


def replaced(change: Callable[[Tensor], Tensor], leaves: list[Tensor], by: Tensor) -> None:
    """A hook returns another gradient, which nothing references afterwards."""
    theirs = expected(change(by).clone(), leaves)
    y = treadle.sine_linear(*leaves, OMEGA)
    y.register_hook(change)
    same(torch.autograd.grad((y * by).sum(), leaves), theirs)


@pytest.mark.parametrize("device", DEVICES)
def test_a_gradient_that_cannot_be_written(device: str) -> None:
    """Results are correct for gradients that are expanded, transposed, lazily negative, lazily zero
    or inference tensors."""
    leaves, by = large_arguments(torch.float32, device)

    def inferred(g: Tensor) -> Tensor:
        with torch.inference_mode():
            return by * 2

    replaced(lambda g: g[:1].clone().expand_as(g), leaves, by)
    replaced(lambda g: g.t().contiguous().t(), leaves, by)
    replaced(lambda g: torch._neg_view(g.clone()), leaves, by)
    replaced(lambda g: torch._efficientzerotensor(g.shape, device=device), leaves, by)
    replaced(inferred, leaves, by)


def test_memory_that_is_not_of_torch_keeps_its_values() -> None:
    leaves, by = large_arguments(torch.float32, "cpu")
    array = by.numpy().copy()
    replaced(lambda g: torch.from_numpy(array), leaves, by)
    same_bits(torch.from_numpy(array), by)


@pytest.mark.parametrize("device", DEVICES)
def test_tangents_of_gradients(device: str) -> None:
    leaves, by = large_arguments(torch.float32, device)
    found = []
    for large in (True, False):
        rows = slice(None if large else 64)
        with fwAD.dual_level():
            w = fwAD.make_dual(leaves[1], torch.ones_like(leaves[1]))
            y = treadle.sine_linear(leaves[0][rows], w, leaves[2], OMEGA)
            by_input, by_bias = torch.autograd.grad((y * by[rows]).sum(), leaves[::2])
            assert fwAD.unpack_dual(by_bias).tangent is not None
            found.append(fwAD.unpack_dual(by_input).tangent[:64])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("device", DEVICES)
def test_vmap_over_weights_of_one_gradient(device: str) -> None:
    """The gradient has no batch dimension, but the layer's saved tensors have one."""
    leaves, by = large_arguments(torch.float32, device)
    x, w, b = (t.detach() for t in leaves)

    def run(w: Tensor) -> Any:
        found, into = torch.func.vjp(lambda w, b: treadle.sine_linear(x, w, b, OMEGA), w, b)
        return into(by * 1)

    many = torch.func.vmap(run)(torch.stack([w, -w]))
    for n, sign in enumerate((1, -1)):
        for t, like in zip(many, expected(by, [x, sign * w, b])[1:], strict=True):
            torch.testing.assert_close(t[n], like, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed(reentrant: bool, device: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        leaves, by = large_arguments(dtype, device)
        y = checkpoint(treadle.sine_linear, *leaves, OMEGA, use_reentrant=reentrant)
        (y * by).sum().backward()
        same([t.grad for t in leaves], expected(by, leaves))


@pytest.mark.usefixtures("fresh_compile")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_autograd(dtype: torch.dtype, device: str) -> None:
    leaves, by = large_arguments(dtype, device)
    kept: list[Tensor] = []
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
        a_hook(y := treadle.sine_linear(*leaves, OMEGA), kept)
        (y * by).sum().backward()
    torch.testing.assert_close([t.grad for t in leaves], list(expected(by, leaves)))
    same_bits(kept[0], by)
