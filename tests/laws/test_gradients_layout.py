"""Incoming gradients that are dense, expanded, sliced, transposed or missing give the same
result."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import treadle
from tests.recurrent.support.cell_cases import cell_arguments
from tests.recurrent.support.layer_cases import EACH_CELL, Lengths, batch_sizes, layer_arguments
from tests.support.cases import DEVICES, ELEMENTWISE, OPS, sized_call
from tests.support.inputs import FLOATING, Call, Make, Op, outputs, requiring_grad
from tests.support.layouts import LAYOUTS

SHAPE = (6, 8)
LAYER = (2, 6, 5, 8)  # T, B, I, H: as many steps as directions, so that all results are [2, 6, ...]


def good_call(op: Op, device: str, dtype: torch.dtype = torch.float64) -> Call:
    make = Make(f"layout {op.name}", device, dtype)
    cell = (SHAPE[0], 5, SHAPE[1])
    return sized_call(op, make, shape=SHAPE, cell=cell, layer=LAYER, directions=2)


def gradients(op: Op, call: Call, loss: Callable[..., Tensor]) -> list[Tensor]:
    call = requiring_grad(op, call)
    leaves = [call.args[i] for i in op.leaves(call)]
    return list(torch.autograd.grad(loss(*outputs(call.run(op.function))), leaves))


def dense_gradients(op: Op, call: Call, grads: list[Tensor]) -> list[Tensor]:
    """The gradients for dense cotangents."""
    return gradients(
        op,
        call,
        lambda *r: sum((a * g.contiguous()).sum() for a, g in zip(r, grads, strict=True)),
    )


def close(actual: list[Tensor], expected: list[Tensor]) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OPS)
def test_any_layout(name: str, layout: str, device: str) -> None:
    op = OPS[name]
    call = good_call(op, device)
    make = Make("cotangent", device, torch.float64)
    results = outputs(requiring_grad(op, call).run(op.function))
    cotangents = [make(*r.shape) for r in results]
    expected = dense_gradients(op, call, cotangents)
    with_grad = requiring_grad(op, call)
    found = torch.autograd.grad(
        outputs(with_grad.run(op.function)),
        [with_grad.args[i] for i in op.leaves(call)],
        [LAYOUTS[layout](g) for g in cotangents],
    )
    close(list(found), expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for name, op in OPS.items() for dtype in FLOATING if dtype in op.dtypes],
    ids=str,
)
def test_expanded_from_sum(name: str, dtype: torch.dtype, device: str) -> None:
    """sum's gradient is one expanded element, with stride 0."""
    op = OPS[name]
    call = good_call(op, device, dtype)
    found = gradients(op, call, lambda *r: sum(t.sum() for t in r))
    ones = [torch.ones_like(t) for t in outputs(call.run(op.function))]
    expected = dense_gradients(op, call, ones)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)
    rows = gradients(op, call, lambda *r: sum(t.sum(0)[3].sum() for t in r))
    one_column = [torch.zeros_like(t) for t in ones]
    for t in one_column:
        t[:, 3] = 1
    for a, b in zip(rows, dense_gradients(op, call, one_column), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OPS)
def test_sliced_from_cat_and_transposed(name: str, device: str) -> None:
    op = OPS[name]
    call = good_call(op, device)
    make = Make("weights of the loss", device, torch.float64)
    results = outputs(call.run(op.function))
    widths = [r.shape[-1] for r in results]
    lead = results[0].shape[:-1]
    wide = make(*lead, sum(widths) + 3)
    extra = make(*lead, 3)
    expected = dense_gradients(op, call, list(wide.split([*widths, 3], -1)[:-1]))
    close(gradients(op, call, lambda *r: (torch.cat([*r, extra], -1) * wide).sum()), expected)
    turned = wide.mT.contiguous()
    close(gradients(op, call, lambda *r: (torch.cat([*r, extra], -1).mT * turned).sum()), expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("unused", [0, 1])
def test_one_output_unused(unused: int, device: str) -> None:
    op = OPS["lltm_cell"]
    call = good_call(op, device)
    used = Make("one", device, torch.float64)(*SHAPE)
    both = [torch.zeros_like(used), torch.zeros_like(used)]
    both[1 - unused] = used
    found = gradients(op, call, lambda *r: (r[1 - unused] * used).sum())
    close(found, dense_gradients(op, call, both))


@pytest.mark.parametrize("missing", [0, 1])
def test_undefined_gradients(missing: int) -> None:
    """A missing gradient counts as zero, and its products are skipped."""
    call = good_call(OPS["lltm_cell"], "cpu")
    new_h, new_cell, gates = torch.ops.treadle.lltm_cell_forward(*call.args)
    make = Make("undefined", "cpu", torch.float64)
    grads = [make(*SHAPE), make(*SHAPE)]
    with_zero = [torch.zeros(SHAPE, dtype=torch.float64) if i == missing else g
                 for i, g in enumerate(grads)]  # fmt: skip
    without = [None if i == missing else g for i, g in enumerate(grads)]
    run = torch.ops.treadle.lltm_cell_backward
    rest = (*call.args, new_cell, gates, [True] * 5)
    close(list(run(*without, *rest)), list(run(*with_zero, *rest)))


USED = [s for n in (1, 2) for s in itertools.combinations(range(3), n)]


@EACH_CELL
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lengths", [None, (3, 3, 1)], ids=str)
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("used", USED, ids=str)
def test_some_outputs_of_the_layer_unused(
    used: tuple[int, ...], recompute: bool, lengths: Lengths, device: str, cell: str
) -> None:
    """Missing gradients count as zero, in autograd and where the backward op receives None."""
    op, make = OPS[f"recurrent_layer {cell}"], Make("some", device, torch.float64)
    call = layer_arguments(make, (3, 3, 5, 8), cell=cell, directions=2, lengths=lengths)
    call = call.with_options(recompute=recompute)
    weights = [make(*r.shape) for r in outputs(call.run(op.function))]
    every = [w if i in used else torch.zeros_like(w) for i, w in enumerate(weights)]
    expected = dense_gradients(op, call, every)
    close(gradients(op, call, lambda *r: sum((r[i] * weights[i]).sum() for i in used)), expected)
    given = (call.args[0], batch_sizes(lengths), *call.args[2:])
    output, _, _, *saved = torch.ops.treadle.recurrent_layer_forward(*given, **call.kwargs)
    some = [w if i in used else None for i, w in enumerate(weights)]
    found = torch.ops.treadle.recurrent_layer_backward(
        *some, *given, output, *saved, call.kwargs["cell"], recompute, "auto", [True] * 9
    )
    close(list(found[: len(expected)]), expected)


@EACH_CELL
@pytest.mark.parametrize("device", [*DEVICES, "meta"])
def test_the_gradient_of_a_bias_that_is_not_there(device: str, cell: str) -> None:
    """The mask of a backward op may request the gradient of a missing bias."""
    make, ops = Make("no bias", device, torch.float64), torch.ops.treadle
    x, weights, bias, *states = cell_arguments(make, (3, 5, 8)).args
    layer = layer_arguments(make, LAYER, cell=cell, directions=2)
    *before, bias_ih, bias_hh = layer.args
    zeros = tuple(None if t is None else torch.zeros_like(t) for t in (bias_ih, bias_hh))
    pairs: list[Tensor] = []
    layers: list[tuple[Tensor, ...]] = []
    for some in (None, torch.zeros_like(bias)):
        given = x, weights, some, *states
        h, *kept = ops.lltm_cell_forward(*given)
        pairs.append(ops.lltm_cell_backward(torch.ones_like(h), None, *given, *kept, [True] * 5)[2])
    for biases in ((None, None), zeros):
        given = *before, *biases
        output, _, _, gates = ops.recurrent_layer_forward(*given, **layer.kwargs)
        rest = output, gates, layer.kwargs["cell"], False, "auto", [True] * 9
        every = ops.recurrent_layer_backward(torch.ones_like(output), None, None, *given, *rest)
        layers.append(every[5:7])
    for ours, expected in (pairs, *zip(*layers, strict=True)):
        assert ours.shape == expected.shape and ours.dtype == expected.dtype
        assert device == "meta" or (torch.equal(ours, expected) and ours.any())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", sorted(set(OPS) - {"vector_add"}))
def test_gradients_have_memory_of_their_own(name: str, device: str) -> None:
    """Gradients share no storage with each other, with arguments or with cotangents. (vector_add
    returns its cotangent, so it is excluded.)"""
    op = OPS[name]
    call = requiring_grad(op, good_call(op, device))
    leaves = [call.args[i] for i in op.leaves(call)]
    results = outputs(call.run(op.function))
    cotangents = [torch.ones_like(r) for r in results]
    found = torch.autograd.grad(results, leaves, cotangents)
    storages = [t.untyped_storage().data_ptr() for t in (*found, *leaves, *cotangents)]
    assert len(set(storages)) == len(storages)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_broadcast_gradients_are_summed(name: str) -> None:
    op = OPS[name]
    for case in op.cases:
        call = case.call("cpu", torch.float64)
        for i, grad in zip(
            op.leaves(call), gradients(op, call, lambda *r: r[0].sum()), strict=True
        ):
            assert grad.shape == call.args[i].shape, case.id
            assert grad.dtype == call.args[i].dtype, case.id


@pytest.mark.parametrize("device", DEVICES)
def test_mixed_dtypes_get_gradients_of_their_own(device: str) -> None:
    make = Make("mixed", device, torch.float32)
    a, b = make(4, 3).requires_grad_(), make(3, dtype=torch.float16).requires_grad_()
    out = treadle.vector_add(a, b, alpha=0.3)
    assert out.dtype == torch.float32
    out.sum().backward()
    assert (a.grad.dtype, b.grad.dtype) == (torch.float32, torch.float16)
    torch.testing.assert_close(b.grad, torch.full_like(b, 1.2))
    arguments = cell_arguments(
        Make("mixed", device, torch.bfloat16), (3, 5, 4), cell_dtype=torch.float32
    )
    arguments = requiring_grad(OPS["lltm_cell"], arguments)
    new_h, new_cell = arguments.run(treadle.lltm_cell)
    assert (new_h.dtype, new_cell.dtype) == (torch.bfloat16, torch.float32)
    (new_h.float() + new_cell).sum().backward()
    assert [t.grad.dtype for t in arguments.args] == [torch.bfloat16] * 4 + [torch.float32]


@EACH_CELL
@pytest.mark.parametrize("device", DEVICES)
def test_the_layers_state_gets_a_gradient_of_its_own_dtype(device: str, cell: str) -> None:
    make = Make("mixed", device, torch.bfloat16)
    op = OPS[f"recurrent_layer {cell}"]
    call = layer_arguments(make, (3, 2, 5, 4), cell=cell, state=torch.float32)
    call = requiring_grad(op, call)
    output, h_n, c_n = call.run(op.function)
    assert (output.dtype, h_n.dtype, c_n.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    (output.float().sum() + h_n.float().sum() + c_n.sum()).backward()
    assert [call.args[i].grad.dtype for i in op.leaves(call)] == [
        torch.float32 if i == 3 else torch.bfloat16 for i in op.leaves(call)
    ]
