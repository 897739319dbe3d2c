"""Nested tensors: with layout torch.jagged, elementwise ops and the sine layer run on the values.

A jagged tensor [N, j, ...] has N rows of different lengths j. It stores them in one tensor of
values, [sum of all j, ...], with an offset for each row. The functions registered here call an op
with this tensor of values. They run below autograd, so derivatives are those that the op itself
defines.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nested._internal.nested_tensor import NestedTensor

from .._check.tensors import public_name, refuse_strided

_ELEMENTWISE = (
    *("scale", "scale_", "sine", "sine_", "sine_backward", "cosine", "cosine_", "cosine_backward"),
    *("vector_add", "vector_add.Scalar", "vector_add_", "vector_add_.Scalar"),
)
# For each op, the indices of results that are gradients of a weight or bias, and therefore dense.
_SINE_LAYER: dict[str, tuple[int, ...]] = {
    "sine_linear": (),
    "sine_linear_forward": (),
    "sine_linear_backward": (1, 2),
    "sine_linear_backward_": (0,),
    "sine_linear_slope": (),
    "sine_linear_slope_backward": (),
}
_REFUSED = (
    *("scale.out", "sine.out", "cosine.out", "vector_add.out", "affine_scan"),
    # The channels of snake are dimension 1, which is ragged in a jagged tensor.
    *("snake", "snake_", "snake.out", "snake_backward"),
    # A jet has its parts in dimension 0, where jagged tensors have rows. Siren.jet instead returns
    # a jet whose parts are jagged.
    *("sine_linear_jet", "sine_linear_jet_forward", "sine_linear_jet_backward"),
    *("lltm_cell", "lltm_cell_forward", "recurrent_layer", "recurrent_layer_forward"),
)
_library = torch.library.Library("treadle", "FRAGMENT")  # type: ignore[no-untyped-call]


def register() -> None:
    """Registers all rules; called once per process, after the ops have been loaded."""
    for names, rule in (
        (_ELEMENTWISE, _elementwise),
        (_SINE_LAYER, _sine_layer),
        (_REFUSED, _refused),
    ):
        for name in names:
            torch.library.register_torch_dispatch(
                f"treadle::{name}", NestedTensor, rule, lib=_library
            )
            # Nested tensors of the other layout, torch.strided, have no tensor class of their own.
            strided = partial(_strided, name, jagged=rule is not _refused)
            for key in ("NestedTensorCPU", "NestedTensorCUDA"):
                _library.impl(name, strided, key)  # type: ignore[no-untyped-call]


def _strided(name: str, *args: Any, jagged: bool, **kwargs: Any) -> Any:
    op = name.partition(".")[0].removesuffix("_forward")
    refuse_strided(op, "tensors", jagged)


def _elementwise(
    cls: Any, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    op, like = public_name(func), _like(public_name(func), args)
    if op.endswith("_") and not isinstance(args[0], NestedTensor):
        raise RuntimeError(f"{op}: a must be jagged if b is, got a dense tensor")
    values = [_dense_values(t, like) if isinstance(t, Tensor) else t for t in args]
    return _nested(func(*values, **kwargs), like)


def _sine_layer(
    cls: Any, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    op, like = public_name(func), _like(public_name(func), args)
    check_rows(op, "input", like)
    values = [t._values if isinstance(t, NestedTensor) else t for t in args]
    dense = _SINE_LAYER[func._schema.name.partition("::")[2]]
    results = func(*values, **kwargs)
    if not isinstance(results, Sequence):
        return results if 0 in dense else _nested(results, like)
    return tuple(t if i in dense else _nested(t, like) for i, t in enumerate(results))


def check_rows(op: str, name: str, t: Any) -> None:
    """Raises unless a nested tensor is contiguous and has shape [N, j, ..., I]."""
    if t.lengths() is not None or t._ragged_idx != 1 or t.dim() < 3:
        raise RuntimeError(
            f"{op}: {name} must be contiguous and have shape [N, j, ..., I] if jagged, "
            f"got {_described(t)}"
        )


def _refused(cls: Any, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    rule = "out must not be given" if func._overloadname == "out" else "tensors must be dense"
    raise NotImplementedError(
        f"{public_name(func)}: {rule}, got a nested tensor of layout torch.jagged"
    )


def _like(op: str, args: Sequence[Any]) -> NestedTensor:
    """The first nested tensor. Raises unless the other nested tensors have the same rows."""
    first, *others = (t for t in args if isinstance(t, NestedTensor))
    for other in others:
        rows = first._ragged_idx + 1
        if other._ragged_idx != first._ragged_idx or other.shape[:rows] != first.shape[:rows]:
            raise RuntimeError(
                f"{op}: jagged tensors must have the same offsets, got {_described(first)} and "
                f"{_described(other)}"
            )
    return first


def _dense_values(t: Tensor, like: NestedTensor) -> Tensor:
    """``t`` in a form that broadcasts against the values of ``like``."""
    if isinstance(t, NestedTensor):
        return t._values
    if t.dim() + 2 <= like.dim():
        return t
    # torch broadcasts operands with one entry per row, or with dimensions of size 1, in this
    # multiplication. Multiplying by 1 changes no value, not even -0.
    nested: Any = torch.ones_like(like, dtype=t.dtype) * t
    return nested._values  # type: ignore[no-any-return]


def _nested(values: Tensor | None, like: NestedTensor) -> NestedTensor | None:
    if values is None:
        return None
    return NestedTensor(
        values,
        offsets=like._offsets,
        lengths=like._lengths,
        _metadata_cache=like._metadata_cache,
        _ragged_idx=like._ragged_idx,
    )


def _described(t: NestedTensor) -> str:
    holes = "" if t._lengths is None else " and holes"
    return f"shape {list(t.shape)}{holes}"
