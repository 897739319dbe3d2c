"""Tests first and second derivatives, forward and reverse, of every case and argument subset."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from tests.recurrent.support.cell_cases import cell_arguments
from tests.recurrent.support.layer_cases import ARGUMENTS, CELLS, layer_arguments
from tests.sine_linear.cases import sine_arguments
from tests.support.cases import DEVICES, OPS, each_case, sized_call
from tests.support.inputs import Call, Case, Make, Op, outputs, requiring_grad

SINE_SUBSETS = [s for n in range(1, 4) for s in itertools.combinations(range(3), n)]
SUBSETS = [s for n in range(1, 6) for s in itertools.combinations(range(5), n)]
# Subsets of one argument, of two, of all but one, and of all arguments.
LAYER_SUBSETS = [
    (cell, subset)
    for cell in CELLS
    for n in (1, 2, len(ARGUMENTS[cell]) - 1, len(ARGUMENTS[cell]))
    for subset in itertools.combinations(ARGUMENTS[cell], n)
]
SMALL = (2, 2, 2)  # B, I, H
SMALL_LAYER = (3, 2, 2, 2)  # T, B, I, H
# Numerical differentiation in float64 with steps of 1e-6 meets these tolerances. gradcheck's
# defaults are looser.
NEAR = {"atol": 1e-7, "rtol": 1e-5}


def function_of(op: Op, case: Case, device: str) -> tuple[Callable[..., Any], list[Tensor]]:
    """Returns the op as a function of only its differentiable tensors, and these tensors."""
    call = requiring_grad(op, case.call(device))
    leaves = op.leaves(call)

    def function(*tensors: Tensor) -> Any:
        return call.with_args(dict(zip(leaves, tensors, strict=True))).run(op.function)

    return function, [call.args[i] for i in leaves]


def small(op: Op, case: Case) -> bool:
    """Whether the call is small enough for quick numerical differentiation."""
    return sum(a.numel() for a in case.call("meta").args if isinstance(a, Tensor)) <= 200


def dense_leaf(t: Tensor) -> Tensor:
    """Returns a dense copy, because gradcheck cannot change one element of an expanded leaf, and
    rejects strides of 0."""
    return torch.empty(t.shape, dtype=t.dtype, device=t.device).copy_(t.detach()).requires_grad_()


DOUBLE = [p for p in each_case(dtypes=(torch.float64,), big=False) if small(*p.values[:2])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("op", "case", "dtype"), DOUBLE)
def test_gradcheck(op: Op, case: Case, dtype: torch.dtype, device: str) -> None:
    function, tensors = function_of(op, case, device)
    tensors = [dense_leaf(t) for t in tensors]
    assert gradcheck(
        function,
        tensors,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
        check_undefined_grad=True,
        **NEAR,
        fast_mode=sum(t.numel() for t in tensors) > 60,
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("op", "case", "dtype"), DOUBLE)
def test_gradgradcheck(op: Op, case: Case, dtype: torch.dtype, device: str) -> None:
    function, tensors = function_of(op, case, device)
    tensors = [dense_leaf(t) for t in tensors]
    assert gradgradcheck(
        function,
        tensors,
        check_fwd_over_rev=True,
        check_rev_over_rev=True,
        check_batched_grad=True,
        check_undefined_grad=True,
        **NEAR,
        fast_mode=sum(t.numel() for t in tensors) > 40,
    )


def of_subset(name: str, call: Call, subset: tuple[int, ...]) -> Callable[..., Any]:
    """Returns the op as a function of only the arguments in `subset`."""
    function = OPS[name].function
    return lambda *t: call.with_args(dict(zip(subset, t, strict=True))).run(function)


def others_get_no_gradient(call: Call, subset: tuple[int, ...], results: Any) -> None:
    torch.autograd.backward(outputs(results), [torch.ones_like(r) for r in outputs(results)])
    for i, argument in enumerate(call.args):
        if isinstance(argument, Tensor):
            assert (argument.grad is not None) == (i in subset)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("subset", SUBSETS, ids=str)
def test_every_subset_of_the_cell(subset: tuple[int, ...], device: str) -> None:
    call = cell_arguments(Make(f"subset {subset}", device, torch.float64), SMALL)
    function = of_subset("lltm_cell", call, subset)
    tensors = [call.args[i].requires_grad_() for i in subset]
    assert gradcheck(function, tensors, check_forward_ad=True, check_batched_grad=True, **NEAR)
    assert gradgradcheck(function, tensors, check_fwd_over_rev=True, fast_mode=True, **NEAR)
    others_get_no_gradient(call, subset, function(*tensors))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("inputs", [2, 5])
@pytest.mark.parametrize("subset", SINE_SUBSETS, ids=str)
def test_every_subset_of_the_sine_layer(subset: tuple[int, ...], inputs: int, device: str) -> None:
    make = Make(f"subset {subset}", device, torch.float64)
    call = sine_arguments(make, (2,), (inputs, 3))
    function = of_subset("sine_linear", call, subset)
    tensors = [call.args[i].requires_grad_() for i in subset]
    assert gradcheck(function, tensors, check_forward_ad=True, check_batched_grad=True, **NEAR)
    assert gradgradcheck(function, tensors, check_fwd_over_rev=True, **NEAR)
    others_get_no_gradient(call, subset, function(*tensors))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "options",
    [{}, {"directions": 2, "lengths": (3, 1), "recompute": True}],
    ids=["one direction", "packed in two, recompute"],
)
@pytest.mark.parametrize(("cell", "subset"), LAYER_SUBSETS, ids=str)
def test_every_subset_of_the_layer(
    cell: str, subset: tuple[int, ...], options: dict[str, Any], device: str
) -> None:
    make = Make(f"subset {subset}", device, torch.float64)
    given = {name: value for name, value in options.items() if name != "recompute"}
    call = layer_arguments(make, SMALL_LAYER, cell=cell, **given)
    call = call.with_options(recompute="recompute" in options)
    function = of_subset(f"recurrent_layer {cell}", call, subset)
    tensors = [call.args[i].requires_grad_() for i in subset]
    checks = {"fast_mode": True, "check_batched_grad": True, **NEAR}
    assert gradcheck(function, tensors, check_forward_ad=True, **checks)
    assert gradgradcheck(function, tensors, check_fwd_over_rev=True, **checks)
    others_get_no_gradient(call, subset, function(*tensors))


PRODUCTS = ("aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm", "aten::matmul")


def products_in_backward(
    name: str,
    call: Call,
    subset: tuple[int, ...],
    inputs: Any = None,
    names: tuple[str, ...] = PRODUCTS,
) -> int:
    """Counts the matrix products that the backward pass runs."""
    tensors = [call.args[i].requires_grad_() for i in subset]
    results = outputs(of_subset(name, call, subset)(*tensors))
    grads = [torch.ones_like(r) for r in results]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        torch.autograd.grad(results, inputs or tensors, grads)
    return sum(e.count for e in profile.key_averages() if e.key in names)


@pytest.mark.parametrize("subset", SUBSETS, ids=str)
def test_only_needed_products_are_computed(subset: tuple[int, ...]) -> None:
    """The gradients of input, weights and old_h need one product each; the others need none."""
    call = cell_arguments(Make("products", "cpu", torch.float32), (3, 5, 4))
    assert products_in_backward("lltm_cell", call, subset) == len({0, 1, 3} & set(subset))


def test_only_the_gradients_asked_for_are_computed() -> None:
    call = cell_arguments(Make("products", "cpu", torch.float32), (3, 5, 4))
    for wanted in range(5):
        call = call.map(lambda t: t.detach().requires_grad_())
        found = products_in_backward("lltm_cell", call, tuple(range(5)), [call.args[wanted]])
        assert found == (wanted in (0, 1, 3))


@pytest.mark.parametrize("subset", SINE_SUBSETS, ids=str)
def test_only_needed_products_of_the_sine_layer_are_computed(subset: tuple[int, ...]) -> None:
    """The gradients of input and weight need one product each."""
    call = sine_arguments(Make("products", "cpu", torch.float32), (3,), (5, 4))
    kernels = ("aten::mm", "aten::bmm")
    found = products_in_backward("sine_linear", call, subset, names=kernels)
    assert found == len({0, 1} & set(subset))


@pytest.mark.parametrize(("cell", "subset"), LAYER_SUBSETS, ids=str)
def test_only_needed_products_of_the_layer_are_computed(cell: str, subset: tuple[int, ...]) -> None:
    """The gradients of input, weight_ih and weight_hh need one product each for all steps, besides
    the products of each step. GRU's weight_hh needs two: its blocks are not in the gates' order."""
    name, sizes = f"recurrent_layer {cell}", (3, 4, 5, 6)
    call = layer_arguments(Make("products", "cpu", torch.float32), sizes, cell=cell)
    steps = products_in_backward(name, call, (2,))
    call = layer_arguments(Make("products", "cpu", torch.float32), sizes, cell=cell)
    found = products_in_backward(name, call, subset)
    assert found - steps == len({0, 4, 5} & set(subset)) + (cell == "gru" and 5 in subset)
    every = call.map(lambda t: t.detach().requires_grad_())
    wanted = [every.args[i] for i in subset]
    assert products_in_backward(name, every, ARGUMENTS[cell], wanted) == found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", sorted(OPS))
def test_third_derivative(name: str, device: str) -> None:
    """Third derivatives equal the reference's."""
    op = OPS[name]
    call = requiring_grad(op, op.cases[0].call(device, torch.float64))
    if name in ("lltm_cell", "sine_linear", "sine_linear_jet") or op.is_layer:
        make = Make("third", device, torch.float64)
        sizes: dict[str, Any] = {"shape": (), "cell": SMALL, "layer": SMALL_LAYER}
        arguments = sized_call(op, make, **sizes, directions=2, lengths=(3, 1))
        call = requiring_grad(op, arguments)
    leaves = [call.args[i] for i in op.leaves(call)]

    def third(function: Callable[..., Any]) -> Any:
        total = sum((r**3).sum() for r in outputs(call.run(function)))
        for _ in range(2):
            grads = torch.autograd.grad(total, leaves, create_graph=True)
            total = sum((g**2).sum() for g in grads)
        return torch.autograd.grad(total, leaves)

    torch.testing.assert_close(third(op.function), third(op.reference), rtol=1e-9, atol=1e-9)


def test_a_wrong_derivative_is_noticed() -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * ctx.saved_tensors[0].cos() * (1 + 1e-4 * ctx.saved_tensors[0])

    # All elements have the same sign, since errors of both signs may cancel in fast mode.
    x = torch.linspace(0.5, 1.3, 5, dtype=torch.float64).requires_grad_()
    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        gradcheck(Wrong.apply, [x], **NEAR)
    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        gradcheck(Wrong.apply, [x], fast_mode=True, **NEAR)
