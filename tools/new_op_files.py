"""Templates of the files that tools/new_op.py creates. tools/new_op_texts.py explains @NAME@ and
@CAMEL@."""

from __future__ import annotations

NEW = {
    "kernels/math/@NAME@.h": """\
// @NAME@: out = f(x); @NAME@_backward: grad * f'(x). Twin: treadle.reference.@NAME@.
#pragma once

#include "kernels/common/dtype.h"

namespace treadle {

struct @CAMEL@Forward {
  // T is float or double, or uint32_t or uint64_t for integers. To compare x, use as_signed(x).
  template <class T>
  TREADLE_HD T operator()(T x) const {
    return x;  // TODO: f(x)
  }
};

struct @CAMEL@Backward {
  template <class T>
  TREADLE_HD T operator()(T grad, T x) const {
    return grad * x;  // TODO: grad * f'(x)
  }
};

// The same formula for every dtype.
struct @CAMEL@ {
  template <class scalar_t>
  using Forward = @CAMEL@Forward;
  template <class scalar_t>
  using Backward = @CAMEL@Backward;
};

}  // namespace treadle
""",
    "python_pkg/treadle/@NAME@.py": '''\
"""The op @NAME@."""

from __future__ import annotations

import torch
from torch import Tensor

from ._check.tensors import check_tensor

__all__ = ["@NAME@", "@NAME@_"]

_@NAME@ = torch.ops.treadle.@NAME@.default
_@NAME@_out = torch.ops.treadle.@NAME@.out
_@NAME@_ = torch.ops.treadle.@NAME@_.default


def @NAME@(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``f(x)``. TODO: say what f is, and which function of torch this replaces.

    Args:
        x: [...] of any integer or floating-point dtype.
        out: the output tensor, resized if its shape does not match. Not differentiable.

    Returns:
        [...].

    Raises:
        TypeError: ``x`` or ``out`` is not a tensor.
        RuntimeError: dtypes or devices are invalid.

    Source: kernels/math/@NAME@.h, csrc/elementwise/unary.cpp.
    """
    if type(x) is not Tensor:
        check_tensor("@NAME@", "x", x)
    if out is not None:
        check_tensor("@NAME@", "out", out)
        _@NAME@_out(x, out=out)
        return out
    return _@NAME@(x)  # type: ignore[no-any-return]


def @NAME@_(x: Tensor) -> Tensor:
    """``x = f(x)`` in place. See :func:`@NAME@`.

    Args:
        x: [...], overwritten. The result's dtype must be castable to that of ``x``.

    Returns:
        ``x``.

    Raises:
        TypeError: ``x`` is not a tensor.
        RuntimeError: the dtype is invalid, or ``x`` is a leaf that requires grad, or expanded.

    Source: kernels/math/@NAME@.h, csrc/elementwise/unary.cpp.
    """
    if type(x) is not Tensor:
        check_tensor("@NAME@_", "x", x)
    _@NAME@_(x)
    return x
''',
}
