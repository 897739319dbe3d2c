"""Checks that arguments are tensors, dense, or bools; names of ops and dtypes for error texts."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.overrides import is_tensor_like


def public_name(op: Any) -> str:
    """The name of an op's public function: ``lltm_cell`` for the ops ``lltm_cell`` and
    ``lltm_cell_forward``."""
    name: str = op._schema.name.partition("::")[2]
    return name.removesuffix("_forward")


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check_tensor(op: str, argument: str, value: Any) -> None:
    """Raises if ``value`` is not a tensor. torch.ops would print the whole value in its error.

    Proxies of torch.fx and other stand-ins for tensors are accepted.
    """
    if not is_tensor_like(value):  # type: ignore[no-untyped-call]
        raise TypeError(f"{op}: {argument} must be a tensor, got {type(value).__name__}") from None


def check_bool(op: str, argument: str, flag: object) -> bool:
    if not isinstance(flag, bool):
        raise TypeError(f"{op}: {argument} must be a bool, got {type(flag).__name__}")
    return flag


def check_dense(op: str, argument: str, tensor: Tensor, instead: str = "") -> None:
    """Raises for nested and sparse tensors. An error about a nested tensor ends in ``instead``."""
    if tensor.is_nested:
        layout = f"a nested tensor of layout {tensor.layout}"
        raise NotImplementedError(f"{op}: {argument} must be dense, got {layout}{instead}")
    if tensor.layout is not torch.strided:
        raise NotImplementedError(
            f"{op}: {argument} must be dense, got a tensor of layout {tensor.layout}"
        )


def refuse_strided(op: str, argument: str, jagged: bool = True) -> NoReturn:
    """Raise for a strided nested tensor. ``jagged`` says whether the op accepts jagged tensors."""
    rule = "dense or of layout torch.jagged" if jagged else "dense"
    raise NotImplementedError(
        f"{op}: {argument} must be {rule}, got a nested tensor of layout torch.strided"
    )
