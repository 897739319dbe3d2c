"""Tests autograd's rules for ops that write into an argument: version counters, leaves, views, out=
and missing derivatives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.autograd.forward_ad as fwAD
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import treadle
from tests.recurrent.support.cell_cases import cell_arguments
from tests.recurrent.support.layer_cases import EACH_CELL, batch_sizes, layer_arguments
from tests.support.cases import DEVICES, OPS, sized_call
from tests.support.forms import INPLACE, OUT
from tests.support.inputs import Make, Op, outputs

EACH_INPLACE = pytest.mark.parametrize(
    "write", [form.inplace for form in INPLACE.values()], ids=INPLACE.keys()
)


def pair(device: str = "cpu") -> tuple[Tensor, Tensor]:
    make = Make("in place", device, torch.float64)
    return make(4, 3).requires_grad_(), make(4, 3).requires_grad_()


@pytest.mark.parametrize("device", DEVICES)
@EACH_INPLACE
def test_derivatives(write: Callable[..., Tensor], device: str) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return write(x.clone(), y)

    x, y = pair(device)
    assert gradcheck(
        function, (x, y), check_forward_ad=True, check_batched_grad=True, atol=1e-7, rtol=1e-5
    )
    assert gradgradcheck(function, (x, y), check_fwd_over_rev=True, atol=1e-7, rtol=1e-5)


@EACH_INPLACE
def test_a_view_that_is_written_changes_its_base(write: Callable[..., Tensor]) -> None:
    """Gradients flow through the base and its other views."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        base = x * 1
        write(base[1:3], y[1:3])
        return base.t()

    x, y = pair()
    assert gradcheck(function, (x, y), check_forward_ad=True, atol=1e-7, rtol=1e-5)
    written = function(x, y)
    assert not torch.equal(written[:, 1:3], x.t()[:, 1:3])
    assert torch.equal(written[:, [0, 3]], x.t()[:, [0, 3]])


@EACH_INPLACE
def test_version_counter(write: Callable[..., Tensor]) -> None:
    x, y = (t.detach() for t in pair())
    view = x[1:]
    for times in (1, 2):
        assert write(x, y) is x
        assert x._version == view._version == times
    with torch.inference_mode():
        write(x.clone(), y)


@pytest.mark.parametrize("name", OUT)
def test_version_counter_of_out(name: str) -> None:
    x, out = torch.ones(3), torch.empty(3)
    OUT[name].out(x, x, out)
    assert out._version == 1 and x._version == 0


@EACH_INPLACE
def test_a_leaf_that_requires_grad_is_refused(write: Callable[..., Tensor]) -> None:
    x, y = pair()
    before = x.detach().clone()
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        write(x, y)
    with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad"):
        write(x[:], y)
    assert torch.equal(x, before)
    with torch.no_grad():
        write(x, y)


@pytest.mark.parametrize("name", sorted(OPS))
def test_a_saved_argument_that_was_changed_raises(name: str) -> None:
    """Changing a tensor that the derivative needs raises; the others may change."""
    op = OPS[name]
    make = Make("saved", "cpu", torch.float64)
    call = sized_call(op, make, shape=(4, 3), cell=(3, 5, 4), layer=(2, 3, 5, 4))
    for changed in op.leaves(call):
        fresh = call.map(lambda t: t.detach().clone().requires_grad_())
        inner = fresh.map(lambda t: t * 1)
        results = outputs(inner.run(op.function))
        with torch.no_grad():
            inner.args[changed].add_(1)
        leaves = [fresh.args[i] for i in op.leaves(fresh)]
        if changed in op.saved:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                torch.autograd.grad(results, leaves, [torch.ones_like(r) for r in results])
        else:
            torch.autograd.grad(results, leaves, [torch.ones_like(r) for r in results])


def test_a_changed_result_raises() -> None:
    """lltm_cell's derivative needs new_cell, not new_h."""
    call = cell_arguments(Make("saved", "cpu", torch.float64), (3, 5, 4))
    call = call.map(lambda t: t.requires_grad_())
    new_h, new_cell = call.run(treadle.lltm_cell)
    new_h.add_(1)
    new_h.sum().backward(retain_graph=True)
    new_cell.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        new_h.sum().backward()


@EACH_CELL
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("changed", range(3))
def test_a_changed_result_of_the_layer_raises(changed: int, recompute: bool, cell: str) -> None:
    """A layer's derivative needs output, but not h_n or c_n."""
    make = Make("saved", "cpu", torch.float64)
    call = layer_arguments(make, (2, 3, 5, 4), cell=cell, directions=2)
    call = call.map(lambda t: t.requires_grad_()).with_options(recompute=recompute)
    results = call.run(OPS[f"recurrent_layer {cell}"].function)
    results[changed].add_(1)
    if changed > 0:
        return results[changed].sum().backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        results[1].sum().backward()


def test_packed_sizes_that_were_changed_raise() -> None:
    call = layer_arguments(Make("saved", "cpu", torch.float64), (0, 0, 5, 4), lengths=(2, 2, 1))
    sizes = batch_sizes((2, 2, 1))
    assert sizes is not None
    x = call.args[0].requires_grad_()
    output, *_ = torch.ops.treadle.recurrent_layer(x, sizes, *call.args[2:], **call.kwargs)
    sizes.fill_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@pytest.mark.parametrize("name", sorted(OPS))
def test_a_second_backward_needs_the_graph(name: str) -> None:
    op: Op = OPS[name]
    call = op.cases[0].call("cpu", torch.float64)
    if name == "lltm_cell" or op.is_layer:
        make = Make("twice", "cpu", torch.float64)
        call = sized_call(op, make, shape=(), cell=(3, 5, 4), layer=(2, 3, 5, 4))
    call = call.map(lambda t: t.requires_grad_())
    loss = sum(r.sum() for r in outputs(call.run(op.function)))
    first = torch.autograd.grad(loss, call.args[0], retain_graph=True)
    assert torch.equal(torch.autograd.grad(loss, call.args[0])[0], first[0])
    if op.saved:
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            torch.autograd.grad(loss, call.args[0])


@pytest.mark.parametrize("name", OUT)
def test_out_gives_no_derivative_and_says_so(name: str) -> None:
    words = f"{name}: out must be used without autograd, got an argument that requires grad"
    x, _ = pair()

    def out(x: Tensor, result: Tensor) -> None:
        OUT[name].out(x, x.detach(), result)

    with pytest.raises(RuntimeError, match=words):
        out(x, torch.empty(4, 3, dtype=torch.float64))
    with pytest.raises(RuntimeError, match=words):
        out(x.detach(), torch.empty(4, 3, dtype=torch.float64, requires_grad=True))
    with fwAD.dual_level(), pytest.raises(RuntimeError, match=words):
        out(fwAD.make_dual(x.detach(), torch.ones_like(x)), torch.empty_like(x.detach()))
    with torch.no_grad():
        out(x, torch.empty(4, 3, dtype=torch.float64))


def test_a_missing_derivative_raises_and_is_never_zero() -> None:
    call = cell_arguments(Make("missing", "cpu", torch.float64), (3, 5, 4))
    call = call.map(lambda t: t.requires_grad_())
    *_, gates = torch.ops.treadle.lltm_cell_forward(*call.args)
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.autograd.grad(gates.sum(), call.args)
    call = layer_arguments(Make("missing", "cpu", torch.float64), (2, 3, 5, 4))
    call = call.map(lambda t: t.requires_grad_())
    *_, gates = call.run(torch.ops.treadle.recurrent_layer_forward)
    assert not gates.requires_grad


@pytest.mark.parametrize("device", DEVICES)
def test_inplace_in_a_wider_dtype(device: str) -> None:
    """After float32 += float64 each gradient has the dtype of its argument."""
    make = Make("wider", device, torch.float32)
    x, y = make(4, 3).requires_grad_(), make(3, dtype=torch.float64).requires_grad_()
    out = treadle.vector_add_(x * 1, y, alpha=2)
    out.sum().backward()
    assert out.dtype == torch.float32 and x.grad.dtype == torch.float32
    assert y.grad.dtype == torch.float64 and y.grad.tolist() == [8.0] * 3
    with fwAD.dual_level():
        dual = fwAD.make_dual(x.detach().clone(), torch.ones_like(x))
        other = fwAD.make_dual(y.detach(), torch.ones_like(y))
        tangent = fwAD.unpack_dual(treadle.vector_add_(dual, other, alpha=2)).tangent
        assert tangent.dtype == torch.float32 and tangent.eq(3).all()
