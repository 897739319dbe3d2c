"""The elementwise ops as a Triton user would write them, with 1024 elements per program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _vector_add(a, b, out, count, size: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    inside = at < count
    value = tl.load(a + at, mask=inside) + tl.load(b + at, mask=inside)
    tl.store(out + at, value, mask=inside)


@triton.jit
def _scale(x, factor, out, count, size: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    inside = at < count
    value = tl.load(x + at, mask=inside)
    tl.store(out + at, (value * factor).to(value.dtype), mask=inside)


@triton.jit
def _sine(x, out, count, size: tl.constexpr, wide: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    inside = at < count
    value = tl.load(x + at, mask=inside)
    tl.store(out + at, tl.sin(value.to(wide)).to(value.dtype), mask=inside)


@triton.jit
def _cosine(x, out, count, size: tl.constexpr, wide: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    inside = at < count
    value = tl.load(x + at, mask=inside)
    tl.store(out + at, tl.cos(value.to(wide)).to(value.dtype), mask=inside)


def _grid(x: Tensor) -> tuple[int]:
    return (triton.cdiv(x.numel(), BLOCK),)


def vector_add(a: Tensor, b: Tensor) -> Tensor:
    out = torch.empty_like(a)
    _vector_add[_grid(a)](a, b, out, a.numel(), size=BLOCK)
    return out


def scale(x: Tensor, factor: float) -> Tensor:
    out = torch.empty_like(x)
    _scale[_grid(x)](x, factor, out, x.numel(), size=BLOCK)
    return out


def _wide(x: Tensor) -> tl.dtype:
    """The dtype to compute in: Triton's sine and cosine support only float32 and float64."""
    return tl.float64 if x.dtype == torch.float64 else tl.float32


def sine(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    _sine[_grid(x)](x, out, x.numel(), size=BLOCK, wide=_wide(x))
    return out


def cosine(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    _cosine[_grid(x)](x, out, x.numel(), size=BLOCK, wide=_wide(x))
    return out
