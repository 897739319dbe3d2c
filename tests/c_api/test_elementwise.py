"""The elementwise functions give the same bits as the torch ops, which run the same kernels."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from tests.c_api import native
from tests.c_api.operands import (
    DTYPES,
    FLOATS,
    INTEGERS,
    LAYOUTS,
    OPS,
    OUT_LAYOUTS,
    Layout,
    Op,
    add_op,
    contiguous,
    holds,
    kind,
    operand,
    ops_of,
    scale_op,
    transposed,
)
from tests.support.compare import same_bits

NUMBERS = (*INTEGERS, *FLOATS)
THREADS = (1, 2, 0)


def name_of(value: object) -> str:
    return getattr(value, "__name__", str(value).removeprefix("torch."))


@pytest.mark.parametrize("dtype", NUMBERS, ids=name_of)
@pytest.mark.parametrize("layout", LAYOUTS, ids=name_of)
def test_layouts(layout: Layout, dtype: torch.dtype) -> None:
    for out_layout, op in itertools.product(OUT_LAYOUTS, ops_of(dtype)):
        inputs = [layout(9, 17, dtype, seed) for seed in range(op.inputs)]
        holds(op, inputs, out_layout(9, 17, dtype, 5))


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_two_inputs_of_different_layouts(dtype: torch.dtype) -> None:
    for first, second in itertools.product(LAYOUTS, LAYOUTS):
        inputs = [first(16, 33, dtype, 1), second(16, 33, dtype, 2)]
        holds(add_op(-0.75), inputs, contiguous(16, 33, dtype, 3))
        holds(OPS[5], inputs, transposed(16, 33, dtype, 3))


PAIRS = [(a, out) for a, out in itertools.product(DTYPES, NUMBERS) if kind(a) <= kind(out)]


@pytest.mark.parametrize(("given", "dtype"), PAIRS, ids=name_of)
def test_inputs_are_converted_to_the_dtype_of_out(given: torch.dtype, dtype: torch.dtype) -> None:
    for op, layout in itertools.product(ops_of(dtype), (contiguous, transposed)):
        mixed = [given, dtype][: op.inputs]
        for dtypes in {tuple(mixed), tuple(reversed(mixed))}:
            inputs = [layout(7, 21, d, seed) for seed, d in enumerate(dtypes)]
            holds(op, inputs, contiguous(7, 21, dtype, 9))


@pytest.mark.parametrize("given", (torch.bool, *INTEGERS, *FLOATS), ids=name_of)
def test_mixed_dtypes_as_torch_promotes_them(given: torch.dtype) -> None:
    for other in NUMBERS:
        dtype = torch.promote_types(given, other)
        a, b = contiguous(8, 64, given, 1).tensor, contiguous(8, 64, other, 2).tensor
        a, b = a.contiguous(), b.contiguous()
        expected, out = torch.empty(8, 64, dtype=dtype), torch.empty(8, 64, dtype=dtype)
        torch.ops.treadle.vector_add.out(a, b, alpha=2, out=expected)
        add_op(2).run(native.cpu(), [native.array(a), native.array(b)], native.array(out))
        same_bits(out, expected, other)


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("shape", [(200_003,), (3, 70_001), (70_001, 3), (2, 2, 50_001)])
def test_threads_share_the_elements(shape: tuple[int, ...], threads: int) -> None:
    dense = torch.empty(shape).stride()
    for op, dtype in itertools.product(OPS, (torch.float32, torch.bfloat16)):
        inputs = [operand(shape, dense, dtype, seed) for seed in range(op.inputs)]
        holds(op, inputs, operand(shape, dense, dtype, 5), threads)
        turned = tuple(2 * step for step in dense)
        holds(op, inputs, operand(shape, turned, dtype, 5, (0,)), threads)


@pytest.mark.parametrize("op", [*OPS, add_op(0.5)], ids=lambda op: op.name)
def test_25_dimensions(op: Op) -> None:
    shape = tuple(2 if d % 3 else 1 for d in range(native.MAX_DIMS))
    dense = torch.empty(shape).stride()
    turned = torch.empty(shape[::-1]).permute(*reversed(range(native.MAX_DIMS))).stride()
    inputs = [operand(shape, (turned, dense)[seed], torch.float32, seed) for seed in (0, 1)]
    out = operand(shape, dense, torch.float32, 5, tuple(range(0, native.MAX_DIMS, 4)))
    holds(op, inputs[: op.inputs], out, threads=2)


@pytest.mark.parametrize("dtype", NUMBERS, ids=name_of)
def test_no_dimensions_and_one_element(dtype: torch.dtype) -> None:
    for op, shape in itertools.product(ops_of(dtype), ((), (1,), (1, 1, 1))):
        inputs = [operand(shape, (77,) * len(shape), dtype, seed) for seed in range(op.inputs)]
        holds(op, inputs, operand(shape, (0,) * len(shape), dtype, 5))


EMPTY = [((0,), (1,)), ((3, 0, 5), (0, 5, 1)), ((0, 2**62, 2**62), (7, 7, 7)), ((2, 0), (0, 0))]


@pytest.mark.parametrize(("shape", "strides"), EMPTY)
def test_empty_arrays_need_no_memory(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    for steps, op in itertools.product((strides, None), OPS):
        nothing = native.array_at(None, shape, steps, torch.float32)
        op.run(native.cpu(), [nothing] * op.inputs, nothing)


def test_sizes_and_strides_may_be_null() -> None:
    x, out = torch.tensor(0.5), torch.tensor(9.0)
    arrays = [native.array(x), native.array(out)]
    for one in arrays:
        one.sizes = one.strides = None
    native.call("treadle_sine", native.cpu(), *arrays)
    same_bits(out, torch.ops.treadle.sine(x))
    x, out = torch.randn(3, 4, 5), torch.zeros(3, 4, 5)
    arrays = [native.array(x), native.array(out)]
    for one in arrays:
        one.strides = None
    native.call("treadle_cosine", native.cpu(), *arrays)
    same_bits(out, torch.ops.treadle.cosine(x))


@pytest.mark.parametrize("dtype", NUMBERS, ids=name_of)
@pytest.mark.parametrize("layout", OUT_LAYOUTS, ids=name_of)
def test_in_place(layout: Layout, dtype: torch.dtype) -> None:
    for op in ops_of(dtype):
        for place in range(op.inputs):
            inputs = [layout(9, 17, dtype, seed) for seed in range(op.inputs)]
            expected = op.expected([x.tensor for x in inputs], (9, 17), dtype)
            op.run(native.cpu(), [x.array for x in inputs], inputs[place].array)
            same_bits(inputs[place].tensor.contiguous(), expected, (op.name, place))


def test_one_array_is_both_inputs_and_the_output() -> None:
    x = torch.randn(100)
    expected = torch.ops.treadle.vector_add(x, x, alpha=0.5)
    add_op(0.5).run(native.cpu(), [native.array(x)] * 2, native.array(x))
    same_bits(x, expected)


@pytest.mark.parametrize("integer", [2**62 + 1, -(2**63), 2**63 - 1, 2**53 + 1])
def test_an_integer_keeps_all_its_bits(integer: int) -> None:
    x = torch.tensor([1, -1, 3, 2**40], dtype=torch.int64)
    out = torch.zeros(4, dtype=torch.int64)
    scale_op(integer).run(native.cpu(), [native.array(x)], native.array(out))
    same_bits(out, torch.ops.treadle.scale(x, integer))


@pytest.mark.parametrize("factor", [float("inf"), float("nan"), -0.0, 1e-40, 3e38, 1e300])
@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_special_factors(dtype: torch.dtype, factor: float) -> None:
    # The torch op refuses an alpha that its dtype cannot represent.
    holds_alpha = abs(factor) <= torch.finfo(dtype).max or not abs(factor) < float("inf")
    for op in (scale_op(factor), add_op(factor))[: 1 + holds_alpha]:
        inputs = [contiguous(5, 65, dtype, seed) for seed in range(op.inputs)]
        holds(op, inputs, contiguous(5, 65, dtype, 9))


def test_a_numpy_array_with_negative_strides() -> None:
    x = np.arange(24, dtype=np.float64).reshape(4, 6)[::-1, ::-2]
    out = np.zeros((3, 4)).T
    scale_op(0.5).run(native.cpu(), [native.array(x)], native.array(out))
    np.testing.assert_array_equal(out, x * 0.5)
