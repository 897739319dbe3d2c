"""Checks jets, packs the parts of a jet into one tensor, and unpacks them.

The packed tensor, which the op sine_linear_jet takes, is [P, ..., O] with P = 1 + d + n2 parts: the
value, its derivatives with respect to d coordinates, and n2 second derivatives. The second
derivatives are none (n2 = 0), the Laplacian (n2 = 1), or the Hessian's diagonal (n2 = d).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .._check.tensors import check_dense, check_tensor, dtype_name

NONE, LAPLACIAN, DIAGONAL = "none", "laplacian", "hessian_diagonal"
# The value, gradient, laplacian and hessian_diagonal of a treadle.Jet.
Fields = tuple[Tensor, "Tensor | None", "Tensor | None", "Tensor | None"]


def second_named(laplacian: bool, diagonal: bool) -> str:
    return DIAGONAL if diagonal else LAPLACIAN if laplacian else NONE


def second_of(jet: Fields) -> str:
    return second_named(jet[2] is not None, jet[3] is not None)


def sizes(coordinates: int, second: str) -> list[int]:
    """How many parts are values, first derivatives and second derivatives."""
    return [1, coordinates, {NONE: 0, LAPLACIAN: 1}.get(second, coordinates)]


def identity(x: Tensor) -> Tensor:
    count = x.shape[-1]
    if not _is_dtensor(x):
        return torch.eye(count, dtype=x.dtype, device=x.device)
    # The result must be a DTensor like x, because a plain tensor cannot be combined with one.
    zero, one = x.new_zeros(1), x.new_ones(1)
    rows = [torch.cat([one if i == k else zero for i in range(count)]) for k in range(count)]
    return torch.stack(rows)


def _is_dtensor(t: Tensor) -> bool:
    """Whether ``t`` is a DTensor. The name of its class is compared, because torch.distributed may
    be missing, and because torch.compile must trace this function."""
    return type(t).__name__ == "DTensor"


def of_coordinates(value: Tensor, slope: Tensor, second: str) -> Tensor:
    """The packed jet of ``value`` [..., I]. Its gradient is ``slope`` [I, d] at all points, and its
    second derivatives are zero."""
    lead, (inputs, count) = value.shape[:-1], slope.shape
    rows = slope.mT.reshape(count, *[1] * len(lead), inputs).expand(count, *lead, inputs)
    parts = [value[None], rows]
    if rest := sizes(count, second)[2]:
        parts.append(value.new_zeros(()).expand(rest, *value.shape))
    return torch.cat(parts)


def unpack(packed: Tensor, coordinates: int, laplacian: bool, diagonal: bool) -> Fields:
    """Returns the parts as views of ``packed``. But if the diagonal is requested, the Laplacian is
    a new tensor, the sum of the diagonal. The backward pass of all views together is one copy."""
    second = second_named(laplacian, diagonal)
    value, gradient, rest = packed.split_with_sizes(sizes(coordinates, second))
    bend, bends = rest.squeeze(0) if laplacian and not diagonal else None, None
    if diagonal:
        bends = rest.movedim(0, -1)
        bend = total(bends, -1) if laplacian else None
    return value.squeeze(0), gradient.movedim(0, -1), bend, bends


def pack(jet: Fields) -> Tensor:
    """The parts in one tensor. Parts that are views of one tensor, as ``unpack`` returns them, are
    not copied."""
    value, gradient, laplacian, diagonal = jet
    assert gradient is not None
    rows = [value[None], gradient.movedim(-1, 0)]
    if diagonal is not None:
        rows.append(diagonal.movedim(-1, 0))
    elif laplacian is not None:
        rows.append(laplacian[None])
    whole = _whole(jet, rows)
    return torch.cat(rows) if whole is None else whole


def _whole(jet: Fields, rows: Sequence[Tensor]) -> Tensor | None:
    """The tensor that ``rows`` cover as consecutive views of it, or None if there is none."""
    value = jet[0]
    # torch.compile removes copies itself, and cannot read a view's base.
    if torch.compiler.is_compiling() or not value._is_view():
        return None
    base = value._base
    # Computing with the base would skip the hooks and the retained gradient of a part.
    if any(part is not None and (part.retains_grad or part._backward_hooks) for part in jet):
        return None
    if base is None or base.shape != (sum(map(len, rows)), *value.shape):
        return None
    at = base.storage_offset()
    for row in rows:
        if (
            row._base is not base
            or row.storage_offset() != at
            or row.stride()[1:] != base.stride()[1:]
            or (len(row) > 1 and row.stride(0) != base.stride(0))
            # The part was detached, or requires grad on its own.
            or row.requires_grad != base.requires_grad
            or row.dtype != base.dtype
        ):
            return None
        at += len(row) * base.stride(0)
    return base


def split(jet: Fields) -> tuple[Tensor, Tensor, Tensor]:
    """The value [1, ..., O], first derivatives [d, ..., O], second derivatives [n2, ..., O]."""
    assert jet[1] is not None
    value, first, second = pack(jet).split_with_sizes(sizes(jet[1].shape[-1], second_of(jet)))
    return value, first, second


def beside(part: Tensor | None, before: Tensor, value: Tensor) -> Tensor | None:
    """Expands and casts a part of a jet whose value was ``before`` and becomes ``value``."""
    if part is None or (value.shape == before.shape and value.dtype == before.dtype):
        return part
    return part.to(value.dtype).expand(*value.shape, *part.shape[before.dim() :])


def total(t: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    """The sum in the dtype of ``t``. Under autocast, ``t.sum(dim)`` would be float32."""
    return t.sum(dim, keepdim, dtype=t.dtype)


def broadcast(*shapes: Sequence[int]) -> torch.Size:
    return torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call, no-any-return]


def linear(packed: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """One product for all parts; only the value gets the bias."""
    if _is_dtensor(packed):
        # For a DTensor, each part has its own product. One product for all parts would merge the
        # dimension of parts with those of the points, and a DTensor that is sharded by points does
        # not support that. Besides, F.pad of a DTensor may return a result of the size that an
        # earlier call returned.
        value, *rest = packed.unbind()
        others = [F.linear(part, weight) for part in rest]
        return torch.stack([F.linear(value, weight, bias), *others])
    product = _product(packed, weight)
    if bias is None:
        return product
    rows = F.pad(bias.to(product.dtype)[None], (0, 0, 0, len(packed) - 1))
    return product + rows.reshape(len(packed), *[1] * (packed.dim() - 2), len(bias))


def _product(packed: Tensor, weight: Tensor) -> Tensor:
    """Returns packed @ weight.T. With few outputs, the gradient of packed is a product with a short
    inner dimension. In half types, cuBLAS takes 2.5 times as long for such a product as for one
    with an inner dimension of 8, so the weight is padded with zeros to 8 outputs."""
    count, half = len(weight), packed.dtype in (torch.float16, torch.bfloat16)
    if not (0 < count < 8 and half and packed.is_cuda):
        return F.linear(packed, weight)
    return F.linear(packed, F.pad(weight, (0, 0, 0, 8 - count))).narrow(-1, 0, count)


def dropout(packed: Tensor, probability: float) -> Tensor:
    """Dropout with the same mask for values and derivatives."""
    return packed * F.dropout(torch.ones_like(packed[0]), probability)


def check_coordinates(op: str, name: str, x: Any) -> Tensor:
    check_tensor(op, name, x)
    check_dense(op, name, x, f"; for a jagged tensor, pass {name}.values()")
    if not x.is_floating_point():
        raise TypeError(
            f"{op}: {name} must have a floating-point dtype, got {dtype_name(x.dtype)}: "
            f"call {name}.float()"
        )
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError(
            f"{op}: {name} must have shape [..., d] with d of at least 1, got {list(x.shape)}"
        )
    return x  # type: ignore[no-any-return]


def check_parts(op: str, jet: Any, kind: type[Any]) -> None:
    """Raises unless ``jet`` is a ``kind`` (treadle.Jet) and its parts match."""
    if not isinstance(jet, kind):
        raise TypeError(
            f"{op}: jet must be a treadle.Jet, got {type(jet).__name__}: call treadle.Jet.of(x) "
            "for coordinates x"
        )
    value, gradient, laplacian, diagonal = jet
    for name, part in jet._asdict().items():
        if part is not None or name in ("value", "gradient"):
            check_tensor(op, f"jet.{name}", part)
    if not value.is_floating_point():
        raise TypeError(
            f"{op}: jet.value must have a floating-point dtype, got {dtype_name(value.dtype)}"
        )
    if value.dim() == 0:
        raise ValueError(f"{op}: jet.value must have shape [..., O], got []")
    shape = list(value.shape)
    if gradient.dim() == 0 or list(gradient.shape[:-1]) != shape or gradient.shape[-1] == 0:
        letters = ", ".join([*map(str, shape), "d"])
        raise ValueError(
            f"{op}: jet.gradient must have shape [..., O, d] = [{letters}] with d of at least 1, "
            f"got {list(gradient.shape)}"
        )
    for name, part, like in (
        ("laplacian", laplacian, value),
        ("hessian_diagonal", diagonal, gradient),
    ):
        if part is not None and part.shape != like.shape:
            of = "value" if like is value else "gradient"
            raise ValueError(
                f"{op}: jet.{name} must have the shape of jet.{of}, {list(like.shape)}, "
                f"got {list(part.shape)}"
            )
    for name, part in list(jet._asdict().items())[1:]:
        if part is not None:
            _check_like(op, f"jet.{name}", part, value)


def check_alike(op: str, name: str, one: Any, other: Any) -> None:
    """Raises unless two jets have the same fields and the same number of coordinates."""
    described = []
    for jet in (one, other):
        held = [
            field for field, part in zip(type(jet)._fields, jet, strict=True) if part is not None
        ]
        known = jet.gradient is not None
        count = f" with respect to {jet.gradient.shape[-1]} coordinates" if known else ""
        described.append(", ".join(held) + count)
    if described[0] != described[1]:
        raise ValueError(f"{op}: {name} must have the parts {described[0]}, got {described[1]}")


def _check_like(op: str, name: str, part: Tensor, value: Tensor) -> None:
    if part.dtype != value.dtype:
        raise TypeError(
            f"{op}: {name} must have the dtype of jet.value, {dtype_name(value.dtype)}, "
            f"got {dtype_name(part.dtype)}"
        )
    if part.device != value.device:
        raise RuntimeError(
            f"{op}: {name} must be on the device of jet.value, {value.device}, got {part.device}"
        )
