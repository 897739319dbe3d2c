"""Helpers that compare treadle's results with torch's: bits, layout, and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def attempt(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """The call's result and None, or None and its exception."""
    try:
        return call(), None
    except Exception as error:
        return None, error


def layout(t: Tensor) -> tuple[Any, ...]:
    """dtype, device, shape, and the strides of dimensions longer than one (torch's eager and meta
    kernels disagree about the other strides)."""
    strides = zip(t.stride(), t.shape, strict=True)
    significant = tuple(stride for stride, size in strides if size > 1) if t.numel() else None
    return t.dtype, t.device, tuple(t.shape), significant


def same_layout(actual: Tensor, expected: Tensor, what: object = "") -> None:
    ours, theirs = layout(actual), layout(expected)
    assert ours == theirs, f"{what}: {ours} where torch has {theirs}"


def differing(actual: Tensor, expected: Tensor) -> Tensor:
    """A mask of elements whose bits differ; all NaNs count as equal."""
    bits = _BITS[actual.element_size()]
    different = actual.contiguous().view(bits) != expected.contiguous().view(bits)
    if actual.is_floating_point():
        different &= ~(actual.isnan() & expected.isnan())
    return different


def same_bits(actual: Tensor, expected: Tensor, what: object = "") -> None:
    same_layout(actual, expected, what)
    different = differing(actual.detach(), expected.detach())
    if bool(different.any()):
        at = tuple(different.nonzero()[0].tolist())
        count = int(different.sum())
        raise AssertionError(
            f"{what}: {count} of {actual.numel()} differ, the first at {at}: "
            f"{actual[at].item()!r} where {expected[at].item()!r} was expected"
        )


def ulp(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance between neighbouring numbers of `dtype` at float64 `values`."""
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(values.abs().clamp(min=info.smallest_normal))
    return info.eps * torch.exp2(exponent.double() - 1)


def within_ulps(actual: Tensor, exact: Tensor, bound: float, what: object = "") -> None:
    """Compares with the float64 tensor `exact`, on the device of `exact`. NaN, inf and the sign of
    0 must be equal."""
    ours = actual.detach().to(exact.device).double()
    assert torch.equal(ours.isnan(), exact.isnan()), f"{what}: NaN elsewhere"
    zero = exact == 0
    assert torch.equal(ours[zero].signbit(), exact[zero].signbit()), f"{what}: sign of zero"
    finite = exact.isfinite()
    error = (ours - exact)[finite].abs() / ulp(exact[finite], actual.dtype)
    worst = float(error.max()) if error.numel() else 0.0
    assert worst <= bound, f"{what}: {worst} ulp where {bound} are allowed"


def twin(t: Tensor) -> Tensor:
    """A copy with its own memory and the strides and offset of `t`, even if `t` is expanded."""
    storage = t.untyped_storage().clone()
    flat = torch.empty(0, dtype=t.dtype, device=t.device).set_(storage)
    return flat.as_strided(t.size(), t.stride(), t.storage_offset())
