"""The elementwise ops: typed and documented functions that call ``torch.ops.treadle.*``.

Error texts have the form ``<op>: <argument> must <rule>, got <fact>`` on every device. The class is
TypeError if an argument is not a tensor or number, otherwise RuntimeError.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import is_tensor_like

from ._check.numbers import as_number, is_plain, number_tensor
from ._check.tensors import check_tensor

__all__ = [
    "cosine",
    "cosine_",
    "scale",
    "scale_",
    "sine",
    "sine_",
    "vector_add",
    "vector_add_",
]

# These overloads are looked up once. At each call, torch.ops.treadle.scale would try them in turn.
_add = torch.ops.treadle.vector_add.default
_add_number = torch.ops.treadle.vector_add.Scalar
_add_out = torch.ops.treadle.vector_add.out
_add_ = torch.ops.treadle.vector_add_.default
_add_number_ = torch.ops.treadle.vector_add_.Scalar
_scale = torch.ops.treadle.scale.default
_scale_out = torch.ops.treadle.scale.out
_scale_ = torch.ops.treadle.scale_.default
_sine = torch.ops.treadle.sine.default
_sine_out = torch.ops.treadle.sine.out
_sine_ = torch.ops.treadle.sine_.default
_cosine = torch.ops.treadle.cosine.default
_cosine_out = torch.ops.treadle.cosine.out
_cosine_ = torch.ops.treadle.cosine_.default


def vector_add(
    a: Tensor, b: Tensor | float, *, alpha: float = 1, out: Tensor | None = None
) -> Tensor:
    """``a + alpha * b``, rounded once; a drop-in replacement for ``torch.add``.

    Args:
        a: [...] of any integer or floating-point dtype (not bool, not complex).
        b: [...], broadcast against ``a``, or a number. dtypes promote as in ``torch.add``.
        alpha: a number; an integer if the result has an integer dtype. ``alpha`` and ``b`` may be
            NumPy numbers. If ``alpha`` is a 0-dim tensor, the host reads it and waits for its GPU.
        out: the output tensor, resized if its shape does not match. Not differentiable.

    Returns:
        [...] of the broadcast shape and the promoted dtype, bitwise equal to ``torch.add``. The
        exception is half types on a CPU with an alpha other than 1: torch's bits then depend on
        strides, and the result is within one rounding of torch's.

    Raises:
        TypeError: ``a`` or ``out`` is not a tensor, ``b`` is neither a tensor nor a number, or
            ``alpha`` is not a number.
        RuntimeError: dtypes, devices or shapes are invalid.

    Source: csrc/elementwise/vector_add.cpp, kernels/elementwise/vector_add.cu.
    """
    try:
        if out is not None:
            other = b if isinstance(b, Tensor) else number_tensor(a, b)
            _add_out(a, other, alpha=alpha, out=out)
            return out
        add = _add if isinstance(b, Tensor) else _add_number
        # Passing alpha by keyword would take as much time as the rest of this function.
        return add(a, b) if alpha == 1 else add(a, b, alpha=alpha)  # type: ignore[no-any-return]
    except (RuntimeError, ValueError):  # NumPy raises ValueError when it compares an array with 1
        if _are_tensors(a, out) and _are_plain(b, alpha):
            raise
    _check_tensors("vector_add", "a", a, out)
    b, alpha = _numbers("vector_add", b, alpha)
    return vector_add(a, b, alpha=alpha, out=out)


def _are_plain(b: Tensor | float, alpha: float) -> bool:
    return (isinstance(b, Tensor) or is_plain(b)) and is_plain(alpha)


# This function is called within `except`. Checks that raise are called after that block, because
# errors raised in the block would also show torch's long error, as their context.
def _are_tensors(first: Any, out: Any = None) -> bool:
    return bool(is_tensor_like(first) and (out is None or is_tensor_like(out)))  # type: ignore[no-untyped-call]


def _check_tensors(op: str, name: str, first: Any, out: Any = None) -> None:
    check_tensor(op, name, first)
    if out is not None:
        check_tensor(op, "out", out)


def _numbers(op: str, b: Tensor | float, alpha: float) -> tuple[Any, Any]:
    """b and alpha in the form that ops accept. NumPy's numbers and a 0-dim alpha become Python
    numbers."""
    number = b if isinstance(b, Tensor) else as_number(op, "b", b)
    return number, as_number(op, "alpha", alpha)


def vector_add_(a: Tensor, b: Tensor | float, *, alpha: float = 1) -> Tensor:
    """``a += alpha * b`` in place; a drop-in replacement for ``Tensor.add_``.

    This is :func:`vector_add` with the result written to ``a``.

    Args:
        a: [...], overwritten. The broadcast shape must be that of ``a``, and the result's dtype
            must be castable to that of ``a``.
        b: [...] or a number.
        alpha: a number.

    Returns:
        ``a``.

    Raises:
        TypeError: as for :func:`vector_add`.
        RuntimeError: as for :func:`vector_add`; or ``a`` is a leaf that requires grad, or expanded.

    Source: csrc/elementwise/vector_add.cpp, kernels/elementwise/vector_add.cu.
    """
    try:
        if isinstance(b, Tensor):
            _add_(a, b, alpha=alpha)
        else:
            _add_number_(a, b, alpha=alpha)
        return a
    except RuntimeError:
        if _are_tensors(a) and _are_plain(b, alpha):
            raise
    check_tensor("vector_add_", "a", a)
    b, alpha = _numbers("vector_add_", b, alpha)
    return vector_add_(a, b, alpha=alpha)


def scale(x: Tensor, factor: Tensor | float, *, out: Tensor | None = None) -> Tensor:
    """``x * factor``; a drop-in replacement for ``torch.mul(x, number)``.

    Args:
        x: [...] of any integer or floating-point dtype, or bool if ``factor`` promotes bool to
            another dtype.
        factor: a real number of Python or NumPy, or a 0-dim tensor. dtypes promote as in
            ``x * factor``. If ``factor`` is a tensor, ``torch.mul`` runs, so the host does not
            wait for the value, and ``factor`` is differentiable.
        out: the output tensor, resized if its shape does not match. Not differentiable.

    Returns:
        [...] of the promoted dtype, bitwise equal to ``torch.mul``.

    Raises:
        TypeError: ``x`` or ``out`` is not a tensor, or ``factor`` is not a number.
        RuntimeError: dtypes or devices are invalid.

    Source: csrc/elementwise/scale.cpp, kernels/elementwise/scale.cu.
    """
    kind = type(factor)
    # Tensors are handled first, because torch.compile cannot catch the error of the call below.
    if kind is not float and kind is not int and isinstance(factor, Tensor):
        return torch.mul(x, _scalar("scale", x, factor), out=out)
    try:
        if out is not None:
            _scale_out(x, factor, out=out)
            return out
        return _scale(x, factor)  # type: ignore[no-any-return]
    except RuntimeError:
        if _are_tensors(x, out) and is_plain(factor):
            raise
    _check_tensors("scale", "x", x, out)
    return scale(x, as_number("scale", "factor", factor), out=out)  # type: ignore[arg-type]


def _scalar(op: str, x: Tensor, factor: Tensor) -> Tensor:
    """Returns ``factor`` after checking that torch can multiply ``x`` by it as if by a number."""
    check_tensor(op, "x", x)
    if factor.dim() != 0:
        shape = list(factor.shape)
        raise RuntimeError(
            f"{op}: factor must be a number or a 0-dim tensor, got a tensor of shape {shape}"
        )
    if factor.is_complex():
        raise RuntimeError(f"{op}: factor must be a real number, got a complex one")
    if x.is_complex() or x.dtype == factor.dtype == torch.bool:
        raise RuntimeError(
            f"{op}: x must give a result of an integer or floating-point dtype, got "
            f"{str(x.dtype).removeprefix('torch.')}"
        )
    return factor


def scale_(x: Tensor, factor: Tensor | float) -> Tensor:
    """``x *= factor`` in place; a drop-in replacement for ``Tensor.mul_(number)``.

    This is :func:`scale` with the result written to ``x``.

    Args:
        x: [...], overwritten. The result's dtype must be castable to that of ``x``.
        factor: a real number or a 0-dim tensor, as in :func:`scale`.

    Returns:
        ``x``.

    Raises:
        TypeError: as for :func:`scale`.
        RuntimeError: as for :func:`scale`; or ``x`` is a leaf that requires grad, or expanded.

    Source: csrc/elementwise/scale.cpp, kernels/elementwise/scale.cu.
    """
    kind = type(factor)
    if kind is not float and kind is not int and isinstance(factor, Tensor):
        factor = _scalar("scale_", x, factor)
        return x.mul_(factor)
    try:
        _scale_(x, factor)
        return x
    except RuntimeError:
        if _are_tensors(x) and is_plain(factor):
            raise
    check_tensor("scale_", "x", x)
    return scale_(x, as_number("scale_", "factor", factor))  # type: ignore[arg-type]


def sine(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``sin(x)``, x in radians; a drop-in replacement for ``torch.sin``.

    Args:
        x: [...] of any integer, bool or floating-point dtype.
        out: the output tensor, resized if its shape does not match. Not differentiable.

    Returns:
        [...] of x's dtype, or of the default floating-point dtype for integers and bool; nan where
        x is infinite or nan, ±0 where x is ±0.

    Raises:
        TypeError: ``x`` or ``out`` is not a tensor.
        RuntimeError: dtypes or devices are invalid.

    Source: csrc/elementwise/unary.cpp, kernels/elementwise/unary.cu.
    """
    if type(x) is not Tensor:
        check_tensor("sine", "x", x)
    if out is not None:
        check_tensor("sine", "out", out)
        _sine_out(x, out=out)
        return out
    return _sine(x)  # type: ignore[no-any-return]


def sine_(x: Tensor) -> Tensor:
    """``x = sin(x)`` in place; a drop-in replacement for ``Tensor.sin_``. See :func:`sine`.

    Args:
        x: [...] of a floating-point dtype, overwritten.

    Returns:
        ``x``.

    Raises:
        TypeError: ``x`` is not a tensor.
        RuntimeError: ``x`` has another dtype, is a leaf that requires grad, or is expanded.

    Source: csrc/elementwise/unary.cpp, kernels/elementwise/unary.cu.
    """
    if type(x) is not Tensor:
        check_tensor("sine_", "x", x)
    _sine_(x)
    return x


def cosine(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``cos(x)``, x in radians; a drop-in replacement for ``torch.cos``.

    Arguments and errors: :func:`sine`.

    Returns:
        [...] of the same dtype as for :func:`sine`; nan where x is infinite or nan.

    Source: csrc/elementwise/unary.cpp, kernels/elementwise/unary.cu.
    """
    if type(x) is not Tensor:
        check_tensor("cosine", "x", x)
    if out is not None:
        check_tensor("cosine", "out", out)
        _cosine_out(x, out=out)
        return out
    return _cosine(x)  # type: ignore[no-any-return]


def cosine_(x: Tensor) -> Tensor:
    """``x = cos(x)`` in place; a drop-in replacement for ``Tensor.cos_``. See :func:`sine_`.

    Source: csrc/elementwise/unary.cpp, kernels/elementwise/unary.cu.
    """
    if type(x) is not Tensor:
        check_tensor("cosine_", "x", x)
    _cosine_(x)
    return x
