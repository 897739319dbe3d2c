"""The elementwise functions with random shapes, strides, broadcasts and dtypes."""

from __future__ import annotations

from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.c_api.operands import DTYPES, Op, Operand, add_op, holds, kind, ops_of, scale_op
from tests.support.drawn import SETTINGS, broadcast_to, shapes, tensors, values

OUT_DTYPES = st.sampled_from([dtype for dtype in DTYPES if dtype != torch.bool])


@st.composite
def turned(draw: st.DrawFn, x: torch.Tensor) -> Operand:
    """`x` with some dimensions reversed."""
    whole = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
    flipped = tuple(d for d in range(x.ndim) if x.shape[d] and draw(st.integers(0, 3)) == 0)
    return Operand(whole, x, flipped)


@st.composite
def outs(draw: st.DrawFn, shape: tuple[int, ...], dtype: torch.dtype) -> Operand:
    """An output with its dimensions in any order, with gaps and without stride 0."""
    strides, room = [0] * len(shape), 1
    for d in draw(st.permutations(range(len(shape)))):
        strides[d] = room * draw(st.sampled_from([1, 1, 1, 2, 3]))
        room = strides[d] * max(shape[d], 1)
    flat = values(room + 12, dtype, draw(st.integers(0, 99)))
    return draw(turned(flat.as_strided(shape, strides, 3)))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Op, list[Operand], Operand]:
    shape, dtype = draw(shapes()), draw(OUT_DTYPES)
    op = draw(st.sampled_from(ops_of(dtype)))
    if op.factor is not None:
        # The torch op refuses an alpha that its dtype cannot represent.
        more = [-1, 2**40] if op.inputs == 1 else []
        number = draw(st.sampled_from([0, 1, 5, *more]))
        if dtype.is_floating_point:
            number = draw(st.sampled_from([0, -1, 0.5, -0.0, 1e-3, float("inf")]))
        op = replace(add_op(0) if op.inputs == 2 else scale_op(0), factor=number)
    held = [d for d in DTYPES if kind(d) <= kind(dtype)]
    inputs = []
    for _ in range(op.inputs):
        given_dtype = dtype if draw(st.booleans()) else draw(st.sampled_from(held))
        x = draw(tensors(draw(broadcast_to(shape)), given_dtype))
        inputs.append(draw(turned(x)))
    return op, inputs, draw(outs(shape, dtype))


@SETTINGS
@given(cases(), st.sampled_from([1, 2, 0]))
def test_elementwise(case: tuple[Op, list[Operand], Operand], threads: int) -> None:
    op, inputs, out = case
    holds(op, inputs, out, threads)
