"""Memory layouts: each function returns a tensor in the layout that the function is named after."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Layout = Callable[[Tensor], Tensor]


def dense(t: Tensor) -> Tensor:
    return t.contiguous()


def transposed(t: Tensor) -> Tensor:
    """The last two dimensions are swapped in memory."""
    if t.dim() < 2:
        return strided(t)
    return t.transpose(-1, -2).contiguous().transpose(-1, -2)


def reversed_dims(t: Tensor) -> Tensor:
    """Column-major: the first dimension is the dense one."""
    order = tuple(range(t.dim() - 1, -1, -1))
    return t.permute(order).contiguous().permute(order)


def strided(t: Tensor) -> Tensor:
    """Each row is every second element of a longer row."""
    if t.dim() == 0:
        return misaligned(t)
    buffer = t.new_zeros(*t.shape[:-1], 2 * t.shape[-1])
    buffer[..., ::2].copy_(t)
    return buffer[..., ::2]


def padded_rows(t: Tensor) -> Tensor:
    """Dense rows with three unused elements after each."""
    if t.dim() == 0:
        return misaligned(t)
    buffer = t.new_zeros(*t.shape[:-1], t.shape[-1] + 3)
    buffer[..., : t.shape[-1]].copy_(t)
    return buffer[..., : t.shape[-1]]


def misaligned(t: Tensor) -> Tensor:
    """The tensor begins one element after an aligned address."""
    buffer = t.new_zeros(t.numel() + 1)
    buffer[1:].copy_(t.reshape(-1))
    return buffer[1:].view(t.shape)


def expanded(t: Tensor) -> Tensor:
    """Repeats the first row with a stride of 0. The values of the other rows are lost."""
    if t.dim() == 0 or t.shape[0] == 0:
        return t.contiguous()
    return t[:1].contiguous().expand(t.shape)


def channels_last(t: Tensor) -> Tensor:
    return t.contiguous(memory_format=torch.channels_last)


# Layouts that any shape can have and that keep the values.
LAYOUTS: dict[str, Layout] = {
    layout.__name__: layout
    for layout in (dense, transposed, reversed_dims, strided, padded_rows, misaligned)
}
