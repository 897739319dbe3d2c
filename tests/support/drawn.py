"""Hypothesis strategies: tensors of any shape, stride, offset and dtype, with special values."""

from __future__ import annotations

import os
from contextlib import suppress

import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.support.inputs import FLOATING, INTEGERS

# By default Hypothesis also draws constants from the source of imported modules. This is disabled,
# because draws would then depend on which other tests are collected.
with suppress(ImportError, AttributeError):
    from hypothesis.internal.conjecture import providers

    _no_constants = providers._local_constants
    providers._get_local_constants = lambda: _no_constants

SETTINGS = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=300,
    # If the sources contain a mutant, a test only has to fail, so examples are not shrunk.
    phases=[Phase.generate] if "TREADLE_MUTANT" in os.environ else list(Phase),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
DTYPES = st.sampled_from([*FLOATING, *INTEGERS])
INF, NAN = float("inf"), float("nan")
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, INF, -INF, NAN, 1e-40, 6e-8, 3.0e38, 65504.0, 65520.0, 1e5]
WHOLE = [0, 1, 2, 127, 128, 255, 256, -1, -128, 32767, 2**31 - 1, -(2**31), 2**62, -(2**63)]
FACTORS = [0, 1, 2, -1, 3, 0.0, -0.0, 0.5, -2.75, 1e-3, 1e5, 3e38, INF, NAN, 2**40, 2.0**60]


def values(
    size: int, dtype: torch.dtype, seed: int, special: bool = True, by: float = 1.0
) -> Tensor:
    """Random numbers times `by`; if `special`, about a third are special values."""
    generator = torch.Generator().manual_seed(seed)
    which = torch.randint(0, len(SPECIAL), (size,), generator=generator)
    if dtype.is_floating_point:
        t = torch.randn(size, generator=generator, dtype=torch.float64) * 3 * by
        chosen = torch.tensor(SPECIAL, dtype=torch.float64)[which]
    else:
        # The reach is 100, 1,000 or 10,000. Half types round the larger integers.
        reach = 10 ** (seed % 3 + 2)
        t = torch.randint(-reach, reach, (size,), generator=generator)
        chosen = torch.tensor(WHOLE)[which]
    every_third = torch.rand(size, generator=generator) < 1 / 3
    return torch.where(every_third & special, chosen, t).to(dtype)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, ...]:
    """Small shapes with zeros and ones among the sizes, and rows longer than any SIMD vector
    or thread block."""
    sizes = st.sampled_from([3, 5, 2, 8, 1, 0])
    shape = draw(st.lists(sizes, max_size=4))
    if shape and draw(st.booleans()):
        shape[-1] = draw(st.sampled_from([15, 16, 17, 31, 33, 63, 511, 513, 1025]))
    return tuple(shape)


@st.composite
def broadcast_to(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to `shape`."""
    kept = draw(st.integers(0, len(shape))) if draw(st.booleans()) else len(shape)
    tail = shape[len(shape) - kept :]
    return tuple(1 if draw(st.integers(0, 4)) == 0 else size for size in tail)


@st.composite
def tensors(
    draw: st.DrawFn,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    *,
    special: bool = True,
    by: float = 1.0,
) -> Tensor:
    """A tensor with dimensions in any order, with gaps, an offset, and some strides of 0.

    Its storage extends past its end, so that writes there are detected.
    """
    dense = draw(st.integers(0, 3)) == 0
    order = draw(st.permutations(range(len(shape)))) if not dense else range(len(shape))[::-1]
    steps = [1 if dense else draw(st.sampled_from([1, 1, 1, 2, 3])) for _ in shape]
    zero = [not dense and draw(st.integers(0, 6)) == 0 for _ in shape]
    offset = draw(st.sampled_from([0, 0, 1, 2, 3, 7]))
    strides, room = [0] * len(shape), 1
    for d in order:
        strides[d] = 0 if zero[d] else room * steps[d]
        if not zero[d]:
            room = room * steps[d] * max(shape[d], 1)
    flat = values(offset + room + 9, dtype, draw(st.integers(0, 2**16)), special, by)
    return flat.as_strided(shape, strides, offset)


def place(t: Tensor, device: str) -> Tensor:
    """A copy on the device with the same strides, offset and gaps."""
    flat = torch.empty(0, dtype=t.dtype).set_(t.untyped_storage()).to(device)
    return flat.as_strided(t.shape, t.stride(), t.storage_offset())


View = tuple[tuple[int, ...], tuple[int, ...], int]  # sizes, strides, offset


@st.composite
def views_of_one_storage(draw: st.DrawFn, count: int) -> list[View]:
    """Views of one shape into 64 elements: equal, disjoint, or partly overlapping."""
    shape = draw(st.sampled_from([(6,), (2, 3), (3, 2), (1, 4)]))
    found: list[View] = []
    for _ in range(count):
        if found and draw(st.booleans()):
            sizes, strides, offset = found[0]
            shift = draw(st.sampled_from([0, 0, 1, 2, 24]))
            found.append((sizes, strides, offset + shift))
            continue
        columns = draw(st.sampled_from([0, 1, 1, 1, 2]))
        rows = draw(st.sampled_from([0, shape[-1], shape[-1], 7]))
        strides = (columns,) if len(shape) == 1 else (rows, columns)
        found.append((shape, strides, draw(st.integers(0, 24))))
    return found


def addresses(view: View) -> list[int]:
    sizes, strides, offset = view
    where = [offset]
    for size, stride in zip(sizes, strides, strict=True):
        where = [start + i * stride for start in where for i in range(size)]
    return where


def depends_on_order(written: View, read: View) -> bool:
    """Whether an element is written twice, or before its old value is read."""
    out, source = addresses(written), addresses(read)
    if len(set(out)) < len(out):
        return True
    return any(a != b and b in out for a, b in zip(out, source, strict=True))
