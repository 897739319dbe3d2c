"""Converts numbers that torch's own functions accept, but the ops' schemas do not: NumPy scalars
and 0-dim tensors.

An op's Python function converts them only after a call has failed, so calls with plain numbers take
no longer.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import SymFloat, SymInt, Tensor

from .tensors import check_tensor


def is_plain(value: object) -> bool:
    """Whether the schemas accept ``value`` as a number."""
    return isinstance(value, (int, float, complex, SymInt, SymFloat))


def as_number(op: str, name: str, value: Any, *, real: bool = False) -> int | float | complex:
    """``value`` as a Python number. Reading it from a tensor waits for the device.

    Raises:
        TypeError: if it is not a number, or is a tensor that requires grad.
    """
    if is_plain(value) and not (real and isinstance(value, complex)):
        return value  # type: ignore[no-any-return]
    if isinstance(value, Tensor):
        if value.dim() == 0 and not value.requires_grad:
            return value.item()
        why = ", because it is not differentiable" if value.requires_grad else ""
        raise TypeError(f"{op}: {name} must be a number{why}, got {_described(value)}") from None
    # A caller that passes a NumPy scalar has imported NumPy.
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.number | numpy.bool_):
        if isinstance(value, numpy.integer | numpy.complexfloating):
            return value.item()  # type: ignore[no-any-return]
        # Like torch, this treats a NumPy bool as a floating-point number.
        return float(value)
    raise TypeError(f"{op}: {name} must be a number, got {_described(value)}") from None


def _described(value: object) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    if value.requires_grad:
        return "a tensor that requires grad"
    return f"a tensor of shape {list(value.shape)}"


def number_tensor(a: Tensor, given: float) -> Tensor:
    """``given`` as a tensor that vector_add accepts as ``b``."""
    check_tensor("vector_add", "a", a)
    number: Any = as_number("vector_add", "b", given)
    # A 0-dim tensor of the widest dtype keeps the number's digits and does not promote `a`. It must
    # be on the CPU, which may not be the default device.
    dtype = None
    if a.is_floating_point() and isinstance(number, int) and not -(2**63) <= number < 2**63:
        number = float(number)
    if a.dim() == 0:
        dtype = torch.result_type(a, number)
    elif not isinstance(number, int):
        dtype = torch.float64 if a.is_floating_point() else torch.result_type(a, number)
    return torch.tensor(number, dtype=dtype, device="cpu")
