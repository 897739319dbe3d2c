"""A check of the documented functions: what is given as a tensor is one."""

from __future__ import annotations

from typing import Any

from torch.overrides import is_tensor_like


def check_tensor(op: str, argument: str, value: Any) -> None:
    """Raises at anything else. torch.ops would, too, and print all of it.

    What torch.fx traces with passes, and whatever else stands for a tensor.
    """
    if not is_tensor_like(value):  # type: ignore[no-untyped-call]
        raise TypeError(f"{op}: {argument} must be a tensor, got {type(value).__name__}")
