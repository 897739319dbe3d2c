"""Tests elementwise ops on tensors that Hypothesis draws, with any shape, stride, offset, dtypes
and overlap.

torch is the oracle for values (bits, or ulps where bits are not promised), layout, and the
exception raised. The draws are the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import treadle
from tests.support.cases import OPS as CASES
from tests.support.compare import (
    attempt,
    differing,
    layout,
    same_bits,
    same_layout,
    twin,
    within_ulps,
)
from tests.support.drawn import (
    DTYPES,
    FACTORS,
    SETTINGS,
    broadcast_to,
    depends_on_order,
    place,
    shapes,
    tensors,
    views_of_one_storage,
)
from tests.support.inputs import DEVICES, HALVES


def outcome(call: Callable[[], Any]) -> tuple[Any, type | None]:
    value, error = attempt(call)
    assert error is None or isinstance(error, RuntimeError), error
    return value, None if error is None else RuntimeError


def torch_rounds_twice(expected: Tensor, alpha: float) -> bool:
    """Whether some loops of torch's CPU code also round the product (see test_opinfo)."""
    return expected.dtype in HALVES and expected.device.type == "cpu" and alpha != 1


def same_bits_or_fused(
    ours: Tensor, theirs: Tensor, a: Tensor, b: Tensor, alpha: float, what: str
) -> None:
    """Checks that the bits are equal, except where torch's CPU code has rounded the product before
    the sum.

    torch rounds it in the tails of loops over a `b` of stride 0. Our result is a + alpha b, rounded
    once.
    """
    same_layout(ours, theirs, what)
    dtype = ours.dtype
    if not dtype.is_floating_point or ours.device.type != "cpu":
        return same_bits(ours, theirs, what)
    a, b = (t.to(dtype).expand(ours.shape) for t in (a, b))
    factor = torch.tensor(alpha, dtype=dtype)
    different = differing(ours, theirs)
    same_bits(theirs[different], (a + factor * b)[different], f"{what}, rounded twice")
    for index in different.nonzero()[:30].tolist():
        at = tuple(index)
        exact = Fraction(a[at].item()) + Fraction(factor.item()) * Fraction(b[at].item())
        assert ours[at] == torch.tensor(float(exact), dtype=dtype), (what, at)


def as_traced(expected: Tensor, *arguments: Tensor) -> Tensor:
    """`expected` in the layout of torch's meta kernel. If the operands have two dtypes, torch's CPU
    kernels cast them into copies and lay out the sum like the copies. Our kernels make no
    copies."""
    traced = (torch.empty_strided(t.shape, t.stride(), device="meta") for t in arguments)
    like = torch.add(*traced)
    return torch.empty_strided(like.shape, like.stride(), dtype=expected.dtype).copy_(expected)


def rounded_once(expected: Tensor, a: Tensor, b: Tensor, alpha: float) -> Tensor:
    """Computes one fma in float32. The operands are first rounded to the result's dtype, as in
    torch."""
    dtype = expected.dtype
    product = b.to(dtype).double() * torch.tensor(alpha, dtype=dtype).double()
    exact = (a.to(dtype).double() + product).float().to(dtype)
    return torch.empty_strided(expected.shape, expected.stride(), dtype=dtype).copy_(exact)


@pytest.mark.parametrize("device", DEVICES)
@SETTINGS
@given(data=st.data())
def test_vector_add(device: str, data: st.DataObject) -> None:
    shape = data.draw(shapes())
    dtype = data.draw(DTYPES)
    a = place(data.draw(tensors(data.draw(broadcast_to(shape)), dtype)), device)
    dtype = data.draw(st.just(dtype) | DTYPES)
    b = place(data.draw(tensors(data.draw(broadcast_to(shape)), dtype)), device)
    alpha = data.draw(st.sampled_from([1, 1, 2, -3, 0.3, 1e-3, 0]))
    expected, theirs = outcome(lambda: torch.add(a, b, alpha=alpha))
    actual, ours = outcome(lambda: treadle.vector_add(a, b, alpha=alpha))
    assert ours == theirs
    if theirs is None:
        if torch_rounds_twice(expected, alpha):
            expected = rounded_once(expected, a, b, alpha)
        if a.dtype != b.dtype and device == "cpu":
            expected = as_traced(expected, a, b)
        same_bits_or_fused(actual, expected, a, b, alpha, f"{layout(a)} + {alpha} {layout(b)}")


@pytest.mark.parametrize("device", DEVICES)
@SETTINGS
@given(data=st.data())
def test_vector_add_of_a_number(device: str, data: st.DataObject) -> None:
    a = place(data.draw(tensors(data.draw(shapes()), data.draw(DTYPES))), device)
    b = data.draw(st.sampled_from(FACTORS))
    alpha = data.draw(st.sampled_from([1, 1, 2, -3, 0.3, 0]))
    expected, theirs = outcome(lambda: torch.add(a, b, alpha=alpha))
    actual, ours = outcome(lambda: treadle.vector_add(a, b, alpha=alpha))
    assert ours == theirs
    if theirs is None:
        if torch_rounds_twice(expected, alpha):
            number = torch.tensor(b, dtype=torch.float64)
            expected = rounded_once(expected, a, number, alpha)
        same_bits(actual, expected, f"{layout(a)} + {alpha} {b}")


@pytest.mark.parametrize("device", DEVICES)
@SETTINGS
@given(data=st.data())
def test_scale(device: str, data: st.DataObject) -> None:
    x = place(data.draw(tensors(data.draw(shapes()), data.draw(DTYPES))), device)
    factor = data.draw(st.sampled_from(FACTORS))
    expected, theirs = outcome(lambda: torch.mul(x, factor))
    actual, ours = outcome(lambda: treadle.scale(x, factor))
    assert ours == theirs
    if theirs is None:
        same_bits(actual, expected, f"{layout(x)} * {factor}")


# Ops with a twin in torch: torch's function and ours (with out= or without), then both in place.
OPS: dict[str, tuple[Callable[..., Tensor], ...]] = {
    name: (op.torch_function, op.function, op.torch_inplace, op.inplace)
    for name, op in CASES.items()
    if op.elementwise and op.torch_function and op.torch_inplace and op.inplace
}
ROUNDED = {name: ulps for name in OPS if (ulps := CASES[name].ulps) is not None}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ROUNDED)
@SETTINGS
@given(data=st.data())
def test_an_op_within_ulps(name: str, device: str, data: st.DataObject) -> None:
    theirs_op, ours_op = OPS[name][:2]
    x = place(data.draw(tensors(data.draw(shapes()), data.draw(DTYPES))), device)
    expected, actual = theirs_op(x), ours_op(x)
    same_layout(actual, expected)
    exact = theirs_op(x.to(actual.dtype).double())
    within_ulps(actual, exact, ROUNDED[name][actual.dtype], layout(x))


def same_values(name: str, ours: Tensor, theirs: Tensor, what: object) -> None:
    """Compares bits, or checks a tolerance where bits are not promised."""
    if name not in ROUNDED or ours.dtype == torch.bool:
        return same_bits(ours, theirs, what)
    same_layout(ours, theirs, what)
    torch.testing.assert_close(ours, theirs, equal_nan=True)


def second(data: st.DataObject, name: str, shape: tuple[int, ...], device: str) -> tuple[Any, ...]:
    if name == "vector_add":
        dtype = data.draw(DTYPES)
        return (place(data.draw(tensors(data.draw(broadcast_to(shape)), dtype)), device),)
    return (data.draw(st.sampled_from(FACTORS)),) if name == "scale" else ()


def untouched(before: Tensor, after: Tensor, what: object) -> None:
    """Asserts that the rest of a tensor's storage is unchanged."""
    if before.shape != after.shape:
        return  # resized
    flats = [
        torch.empty(0, dtype=t.dtype, device=t.device).set_(t.untyped_storage())
        for t in (before, after)
    ]
    around = torch.ones_like(flats[0], dtype=torch.bool)
    around.as_strided(before.shape, before.stride(), before.storage_offset()).fill_(False)
    same_bits(flats[1][around], flats[0][around], f"around {what}")


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OPS)
@SETTINGS
@given(data=st.data())
def test_out(name: str, device: str, data: st.DataObject) -> None:
    """out= may have any dtype and strides. If its shape is wrong, it is resized."""
    theirs_op, ours_op = OPS[name][:2]
    shape = data.draw(shapes())
    x = place(data.draw(tensors(data.draw(broadcast_to(shape)), data.draw(DTYPES))), device)
    rest = second(data, name, shape, device)
    out_shape = shape if data.draw(st.integers(0, 3)) else data.draw(shapes())
    dtype = data.draw(st.sampled_from([x.dtype, torch.bool]) | DTYPES)
    theirs = place(data.draw(tensors(out_shape, dtype)), device)
    ours, before = twin(theirs), twin(theirs)
    _, refused = outcome(lambda: theirs_op(x, *rest, out=theirs))
    _, ours_refused = outcome(lambda: ours_op(x, *rest, out=ours))
    assert ours_refused == refused
    if refused is None:
        if theirs.shape != before.shape:
            theirs = torch.empty_like(ours).copy_(theirs.view(ours.shape))
        same_values(name, ours, theirs, (layout(x), rest))
        untouched(before, ours, layout(ours))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OPS)
@SETTINGS
@given(data=st.data())
def test_in_place(name: str, device: str, data: st.DataObject) -> None:
    theirs_op, ours_op = OPS[name][2:]
    shape = data.draw(shapes())
    theirs = place(data.draw(tensors(shape, data.draw(DTYPES))), device)
    ours, before = twin(theirs), twin(theirs)
    rest = second(data, name, shape, device)
    _, refused = outcome(lambda: theirs_op(theirs, *rest))
    _, ours_refused = outcome(lambda: ours_op(ours, *rest))
    assert ours_refused == refused
    if refused is None:
        same_values(name, ours, theirs, (layout(theirs), rest))
        untouched(before, ours, layout(ours))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OPS)
@SETTINGS
@given(data=st.data())
def test_overlap(name: str, device: str, data: st.DataObject) -> None:
    """Inputs and output share storage. Our ops raise where torch raises, and otherwise write the
    same values."""
    theirs_op, ours_op = OPS[name][:2]
    views = data.draw(views_of_one_storage(3 if name == "vector_add" else 2))
    rest = second(data, name, (), device) if name == "scale" else ()
    storage = torch.arange(64.0, device=device)

    def run(op: Callable[..., Tensor]) -> tuple[Tensor, type | None]:
        memory = storage.clone()
        out, *inputs = (memory.as_strided(*view) for view in views)
        return memory, outcome(lambda: op(*inputs, *rest, out=out))[1]

    (theirs, refused), (ours, ours_refused) = run(theirs_op), run(ours_op)
    assert ours_refused == refused, views
    if refused is None and not any(depends_on_order(views[0], view) for view in views):
        same_values(name, ours, theirs, views)
