"""Checks of what a call of a module is given. Errors follow the ops' grammar, as in _check.py."""

from __future__ import annotations

import torch
from torch import Tensor

from .._check_tensor import check_tensor
from ._tracers import differs

_CASTS = {
    torch.float64: "double",
    torch.float32: "float",
    torch.float16: "half",
    torch.bfloat16: "bfloat16",
}


def check_same_dtype(module: str, name: str, input: Tensor, weight: Tensor) -> None:
    """``input`` of another dtype than the parameters; NumPy's is float64 unless told otherwise."""
    found, wanted = input.dtype, weight.dtype
    if found == wanted or wanted not in _CASTS:
        return
    device = input.device.type
    if device != "meta" and torch.is_autocast_enabled(device):
        return  # the op decides what is cast
    raise RuntimeError(
        f"{module}: {name} must have the dtype of the parameters, {_name(wanted)}, "
        f"got {_name(found)}: call {name}.{_CASTS[wanted]}()"
    )


def check_rows(module: str, input: object, features: int, weight: Tensor | None) -> None:
    """``input`` [..., features], of the dtype of ``weight``, if there is one."""
    if not isinstance(input, Tensor):
        check_tensor(module, "input", input)
        return  # what torch.fx traces with
    if weight is not None:
        check_same_dtype(module, "input", input, weight)
    if input.dim() == 0 or differs(input.shape[-1], features):
        raise ValueError(
            f"{module}: input must have shape [..., {features}], got {list(input.shape)}"
        )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
