"""Under autocast lltm_cell runs in the lower precision, except for its state. Elementwise ops
behave like torch's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.forward_ad import dual_level, make_dual, unpack_dual
from torch.func import grad, hessian, vmap

import treadle
from tests.recurrent.support.cell_cases import cell_arguments
from tests.recurrent.support.layer_cases import CELLS, layer, layer_arguments
from tests.sine_linear.cases import sine_arguments
from tests.support.cases import DEVICES
from tests.support.forms import NEW
from tests.support.inputs import HALVES, Make, outputs
from tests.support.rule import within_rule
from treadle import reference
from treadle.nn import LLTMCell

EACH = [
    pytest.param(device, dtype, id=f"{device}-{dtype}") for device in DEVICES for dtype in HALVES
]
each = pytest.mark.parametrize(("device", "dtype"), EACH)


@each
def test_cell(device: str, dtype: torch.dtype) -> None:
    """The bits are those of a call in the lower precision with a float32 state."""
    call = cell_arguments(Make("autocast", device, torch.float32), (9, 7, 8))
    *casts, old_cell = call.args
    with torch.autocast(device, dtype):
        new_h, new_cell = call.run(treadle.lltm_cell)
    expected = treadle.lltm_cell(*(t.to(dtype) for t in casts), old_cell)
    assert (new_h.dtype, new_cell.dtype) == (dtype, torch.float32)
    assert torch.equal(new_h, expected[0]) and torch.equal(new_cell, expected[1])


@each
def test_cell_beside_the_composition(device: str, dtype: torch.dtype) -> None:
    """Gradients of float32 arguments are float32, and as accurate as the composition's."""
    call = cell_arguments(Make("autocast", device, torch.float32), (9, 7, 8))

    def run(function: Callable[..., Any], call: Any) -> tuple[Tensor, ...]:
        call = call.map(lambda t: t.detach().requires_grad_())
        with torch.autocast(device, dtype, enabled=call.args[0].dtype == torch.float32):
            new_h, new_cell = call.run(function)
        loss = new_h.double().square().sum() + new_cell.double().sin().sum()
        return new_h.detach(), new_cell.detach(), *torch.autograd.grad(loss, call.args)

    ours = run(treadle.lltm_cell, call)
    truth = run(reference.lltm_cell, call.map(Tensor.double))
    composition = run(reference.lltm_cell, call)
    for n, (a, t, c) in enumerate(zip(ours, truth, composition, strict=True)):
        # Errors are those of the lower precision, although the gradients are float32.
        if n >= 2:
            assert a.dtype == torch.float32
            a, c = a.to(dtype), c.to(dtype)
        within_rule(a, t, c, gradient=n >= 2, what=str(n))


@each
def test_elementwise_ops_run_as_they_are(device: str, dtype: torch.dtype) -> None:
    make = Make("autocast", device, torch.float32)
    x, half = make(5), make(5, dtype=dtype)
    with torch.autocast(device, dtype):
        for form in NEW.values():
            for a, b in ((x, x), (x, half), (half, half)):
                ours, theirs = form.new(a, b), form.torch_new(a, b)
                assert ours.dtype == theirs.dtype
                # A twin that consists of several ops rounds after each op.
                roundings = 8 * torch.finfo(ours.dtype).eps
                torch.testing.assert_close(ours, theirs, rtol=roundings, atol=roundings)


@each
def test_mixed_arguments_are_made_equal(device: str, dtype: torch.dtype) -> None:
    """Weights of a half type with a float32 input raise outside autocast, but not inside."""
    call = cell_arguments(Make("mixed", device, torch.float32), (3, 5, 4))
    call = call.with_args({1: call.args[1].to(dtype), 4: call.args[4].to(dtype)})
    with pytest.raises(RuntimeError, match="weights must have the dtype of input"):
        call.run(treadle.lltm_cell)
    with torch.autocast(device, dtype):
        new_h, new_cell = call.run(treadle.lltm_cell)
    assert new_h.dtype == dtype and new_cell.dtype == dtype


def test_float64_is_left_alone_as_linear_leaves_it() -> None:
    """Autocast does not cast float64 arguments."""
    call = cell_arguments(Make("double", "cpu", torch.float64), (3, 5, 4))
    with torch.autocast("cpu", torch.bfloat16):
        new_h, new_cell = call.run(treadle.lltm_cell)
        linear = torch.nn.functional.linear(call.args[0], call.args[1][:, :5])
    assert new_h.dtype == linear.dtype == new_cell.dtype


@each
def test_weights_are_cast_once(device: str, dtype: torch.dtype) -> None:
    """Over the steps of a sequence, autocast's cache keeps the cast parameters."""
    cell = LLTMCell(5, 4, device=device)
    rows = Make("cache", device, torch.float32)(6, 3, 5)
    casts = []

    class Casts(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = f(*args, **(kwargs or {}))
            if f is torch.ops.aten._to_copy.default and args[0].shape == cell.weights.shape:
                casts.append(result)
            return result

    with torch.autocast(device, dtype), Casts():
        state = None
        for row in rows:
            state = cell(row, state)
    assert len(casts) == 1
    state[0].float().sum().backward()
    assert cell.weights.grad.dtype == torch.float32 and cell.weights.grad.abs().sum() > 0


@each
def test_under_vmap_and_compile(device: str, dtype: torch.dtype) -> None:
    call = cell_arguments(Make("under", device, torch.float32), (3, 5, 4))
    stacked = call.map(lambda t: torch.stack([t, t * 0.5]))

    def run(*args: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(device, dtype):
            return treadle.lltm_cell(*args)

    expected = run(*call.args)
    for results in (
        tuple(t[0] for t in vmap(run)(*stacked.args)),
        torch.compile(run, fullgraph=True, backend="aot_eager")(*call.args),
    ):
        assert [t.dtype for t in results] == [dtype, torch.float32]
        torch.testing.assert_close(results, expected)
    gradient = grad(lambda w: run(call.args[0], w, *call.args[2:])[1].sum())(call.args[1])
    with_grad = requiring_grad_weights(call)
    run(*with_grad.args)[1].sum().backward()
    torch.testing.assert_close(gradient, with_grad.args[1].grad)


BACKWARD = {
    "cell": (cell_arguments, ((9, 7, 8),), treadle.lltm_cell),
    **{
        f"layer of {cell}, recompute {on}": (
            partial(layer_arguments, cell=cell),
            ((5, 9, 7, 8),),
            partial(layer, recompute=on),
        )
        for cell in CELLS
        for on in (False, True)
    },
    "sine layer": (sine_arguments, ((9,), (7, 8)), treadle.sine_linear),
}


@pytest.mark.parametrize("name", BACKWARD)
@each
def test_a_backward_pass_inside_keeps_the_dtype_of_its_forward(
    device: str, dtype: torch.dtype, name: str
) -> None:
    """If the forward pass ran outside autocast, autocast around the backward pass does not change
    its bits."""
    make, sizes, function = BACKWARD[name]
    call = make(Make("inside", device, torch.float32), *sizes)
    leaves = [i for i, t in enumerate(call.args) if isinstance(t, Tensor)]
    call = call.with_args({i: call.args[i].requires_grad_() for i in leaves})
    output = outputs(call.run(function))[0]
    given = [call.args[i] for i in leaves]
    expected = torch.autograd.grad(output.square().sum(), given, retain_graph=True)
    loss = output.square().sum()
    with torch.autocast(device, dtype):
        found = torch.autograd.grad(loss, given)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)


@each
def test_a_float32_sine_layer_inside(device: str, dtype: torch.dtype) -> None:
    """Second derivatives also work if autocast is switched off only for the layer."""
    x, w, b = sine_arguments(Make("island", device, torch.float32), (2,), (3, 4)).args[:3]

    def f(x: Tensor) -> Tensor:
        with torch.autocast(device, enabled=False):
            return treadle.sine_linear(x, w, b, 3.0).square().sum()

    def moved(x: Tensor) -> tuple[Tensor, Tensor]:
        """A gradient and its tangent."""
        with dual_level():
            dual = make_dual(x.clone().requires_grad_(), x)
            (gradient,) = torch.autograd.grad(f(dual), dual)
            return unpack_dual(gradient)[:2]

    expected = hessian(f)(x), *moved(x)
    with torch.autocast(device, dtype):
        found = hessian(f)(x), *moved(x)
    assert torch.equal(found[1], expected[1]) and torch.equal(found[2], expected[2])
    # In torch.func's nested transforms, autocast rounds products of tangents, also in torch's ops.
    assert found[0].dtype == torch.float32
    torch.testing.assert_close(found[0], expected[0], rtol=0.05, atol=0.05)


def requiring_grad_weights(call: Any) -> Any:
    return call.with_args({1: call.args[1].detach().requires_grad_()})
