"""Arrays of every layout for the elementwise functions, and the tensors that they describe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import treadle
from tests.c_api import native
from tests.support.compare import same_bits
from tests.support.drawn import values

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
DTYPES = (torch.bool, *INTEGERS, *FLOATS)


@dataclass(frozen=True)
class Operand:
    """Memory `flat`, a view of it, and the dimensions that the array reverses."""

    flat: Tensor
    view: Tensor
    flipped: tuple[int, ...] = ()

    @property
    def tensor(self) -> Tensor:
        """The array's values, in new memory if dimensions are flipped."""
        return self.view.flip(self.flipped) if self.flipped else self.view

    @property
    def array(self) -> native.Array:
        strides = list(self.view.stride())
        offset = 0
        for d in self.flipped:
            offset += (self.view.shape[d] - 1) * strides[d]
            strides[d] = -strides[d]
        data = self.view.data_ptr() + offset * self.view.element_size()
        return native.array_at(data, self.view.shape, strides, self.view.dtype, self.flat)


def operand(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: torch.dtype,
    seed: int,
    flipped: tuple[int, ...] = (),
    offset: int = 3,
) -> Operand:
    reach = sum((size - 1) * step for size, step in zip(shape, strides, strict=True) if size)
    flat = values(offset + reach + 10, dtype, seed)
    return Operand(flat, flat.as_strided(shape, strides, offset), flipped)


def contiguous(rows: int, columns: int, dtype: torch.dtype, seed: int) -> Operand:
    return operand((rows, columns), (columns, 1), dtype, seed)


def transposed(rows: int, columns: int, dtype: torch.dtype, seed: int) -> Operand:
    return operand((rows, columns), (1, rows), dtype, seed)


def step_2(rows: int, columns: int, dtype: torch.dtype, seed: int) -> Operand:
    return operand((rows, columns), (2 * columns, 2), dtype, seed)


def negative_rows(rows: int, columns: int, dtype: torch.dtype, seed: int) -> Operand:
    return operand((rows, columns), (columns, 1), dtype, seed, (0,))


def negative(rows: int, columns: int, dtype: torch.dtype, seed: int) -> Operand:
    return operand((rows, columns), (columns + 1, 1), dtype, seed, (0, 1))


def negative_transposed(rows: int, columns: int, dtype: torch.dtype, seed: int) -> Operand:
    return operand((rows, columns), (1, rows), dtype, seed, (1,))


def stride_0(rows: int, columns: int, dtype: torch.dtype, seed: int) -> Operand:
    return operand((rows, columns), (0, 1), dtype, seed)


def row(_: int, columns: int, dtype: torch.dtype, seed: int) -> Operand:
    return operand((columns,), (1,), dtype, seed)


def column(rows: int, _: int, dtype: torch.dtype, seed: int) -> Operand:
    return operand((rows, 1), (2, 99), dtype, seed)


def scalar(_rows: int, _columns: int, dtype: torch.dtype, seed: int) -> Operand:
    return operand((), (), dtype, seed)


Layout = Callable[[int, int, torch.dtype, int], Operand]
OUT_LAYOUTS: tuple[Layout, ...] = (
    contiguous,
    transposed,
    step_2,
    negative_rows,
    negative,
    negative_transposed,
)
LAYOUTS: tuple[Layout, ...] = (*OUT_LAYOUTS, stride_0, row, column, scalar)


@dataclass(frozen=True)
class Op:
    """A function of kernels.h, and the torch op with the same kernels."""

    name: str
    inputs: int
    op: Callable[..., Tensor]
    factor: float | int | None = None  # alpha, or the factor

    def run(self, device: native.Device, inputs: list[native.Array], out: native.Array) -> None:
        scalars = [] if self.factor is None else [native.number(self.factor)]
        native.call(f"treadle_{self.name}", device, *inputs, *scalars, out)

    def expected(self, inputs: list[Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The result for dense inputs converted to the dtype of `out`, as kernels.h describes."""
        return self.op(*(x.to(dtype).expand(shape).contiguous() for x in inputs), self.factor)


def add_op(alpha: float | int) -> Op:
    return Op("vector_add", 2, lambda a, b, f: treadle.vector_add(a, b, alpha=f), alpha)


def scale_op(factor: float | int) -> Op:
    return Op("scale", 1, lambda x, f: torch.ops.treadle.scale(x, f), factor)


TRIG = (
    Op("sine", 1, lambda x, _: torch.ops.treadle.sine(x)),
    Op("cosine", 1, lambda x, _: torch.ops.treadle.cosine(x)),
    Op("sine_backward", 2, lambda g, x, _: torch.ops.treadle.sine_backward(g, x)),
    Op("cosine_backward", 2, lambda g, x, _: torch.ops.treadle.cosine_backward(g, x)),
)
OPS = (add_op(3), add_op(1), scale_op(2), *TRIG)


def ops_of(dtype: torch.dtype) -> tuple[Op, ...]:
    """The ops that accept an output of this dtype."""
    more = (add_op(0.37), scale_op(-2.75)) if dtype.is_floating_point else ()
    return (*OPS, *more) if dtype.is_floating_point else OPS[:3]


def kind(dtype: torch.dtype) -> int:
    return 0 if dtype == torch.bool else 2 if dtype.is_floating_point else 1


def holds(op: Op, inputs: list[Operand], out: Operand, threads: int = 1) -> None:
    """Checks that the function writes the torch op's result, and nothing else."""
    expected = Operand(out.flat.clone(), out.view, out.flipped)
    view = expected.flat.as_strided(out.view.shape, out.view.stride(), out.view.storage_offset())
    result = op.expected([x.tensor for x in inputs], tuple(view.shape), view.dtype)
    view.copy_(result.flip(out.flipped) if out.flipped else result)
    op.run(native.cpu(threads), [x.array for x in inputs], out.array)
    same_bits(out.flat, expected.flat, (op.name, op.factor))
