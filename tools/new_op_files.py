"""The new files that tools/new_op.py writes; names as in tools/new_op_texts.py."""

from __future__ import annotations

NEW = {
    "kernels/math/@NAME@.h": """\
// @NAME@: out = f(x); @NAME@_backward: grad * f'(x). Twin: treadle.reference.@NAME@.
#pragma once

#include "kernels/common/dtype.h"

namespace treadle {

struct @CAMEL@ {
  // true: integers give integers, as in torch.relu. false: floats, as in torch.sin.
  static constexpr bool kIntegers = false;

  // T is float or double, and of integers uint32_t or uint64_t: compare as_signed(x).
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

}  // namespace treadle
""",
    "csrc/elementwise/@NAME@.h": """\
// @NAME@: names, dtypes and second derivative. unary.h and unary_autograd.h make the op of them.
#pragma once

#include "common/dispatch.h"
#include "kernels/math/@NAME@.h"

namespace treadle {

struct @CAMEL@Op {
  static constexpr const char* kName = "@NAME@";
  static constexpr const char* kInplaceName = "@NAME@_";
  static constexpr const char* kBackwardName = "@NAME@_backward";
  static constexpr const char* kNode = "@CAMEL@Backward";
  static constexpr const char* kBackwardNode = "@CAMEL@BackwardBackward";
  static constexpr bool kIntegers = @CAMEL@::kIntegers;

  static Tensor times_second(const Tensor& t, const Tensor& x);  // t * f''(x)
};

}  // namespace treadle
""",
    "csrc/elementwise/@NAME@.cpp": """\
// @NAME@: out = f(x), backward grad * f'(x). x [*]. Formula: kernels/math/@NAME@.h.
// Twins: cuda/@NAME@.cpp, cpu/@NAME@.cpp, kernels/elementwise/@NAME@.cu.
#include "elementwise/@NAME@.h"

#include "elementwise/unary_autograd.h"
#include "treadle/ops.h"

namespace treadle {

// ---- C++ interface

Tensor @NAME@(const Tensor& x) { return unary_op<@CAMEL@Op>().call(x); }

Tensor& @NAME@_out(Tensor& out, const Tensor& x) {
  unary_out_op<@CAMEL@Op>().call(x, out);
  return out;
}

Tensor& @NAME@_(Tensor& x) {
  unary_inplace_op<@CAMEL@Op>().call(x);
  return x;
}

Tensor @NAME@_backward(const Tensor& grad, const Tensor& x) {
  return call_backward<@CAMEL@Op>(grad, x);
}

// ---- second derivative, of ops of torch or of ours, so that it can be differentiated again

Tensor @CAMEL@Op::times_second(const Tensor& t, const Tensor& x) {
  return t * x;  // TODO: t * f''(x)
}

// ---- registration

TORCH_LIBRARY_IMPL(treadle, CPU, m) {
  register_unary<@CAMEL@Op, unary_cpu<cpu::@NAME@>, unary_cpu<cpu::@NAME@_backward>>(m);
}

TORCH_LIBRARY_IMPL(treadle, Meta, m) { register_unary_meta<@CAMEL@Op>(m); }

TORCH_LIBRARY_IMPL(treadle, Autograd, m) { register_unary_autograd<@CAMEL@Op>(m); }

TORCH_LIBRARY_IMPL(treadle, FuncTorchBatched, m) { register_unary_vmap<@CAMEL@Op>(m); }

}  // namespace treadle
""",
    "kernels/elementwise/cpu/@NAME@.cpp": """\
// @NAME@ and @NAME@_backward on the CPU. Twin: kernels/elementwise/@NAME@.cu.
#include "kernels/math/@NAME@.h"

#include "kernels/elementwise/cpu/loop.h"

namespace treadle::cpu::TREADLE_ISA {

void @NAME@(const Tile2d& tile) {
  visit_computed<@CAMEL@::kIntegers>(tile.compute, [&](auto type) {
    loop<typename decltype(type)::type, 1>(tile, @CAMEL@{});
  });
}

void @NAME@_backward(const Tile2d& tile) {
  visit_floating(tile.compute, [&](auto type) {
    loop<typename decltype(type)::type, 2>(tile, @CAMEL@Backward{});
  });
}

}  // namespace treadle::cpu::TREADLE_ISA
""",
    "kernels/elementwise/@NAME@.cu": """\
// @NAME@ and @NAME@_backward on CUDA. Twin: kernels/elementwise/cpu/@NAME@.cpp.
#include "kernels/elementwise/launchers.h"
#include "kernels/elementwise/map.cuh"
#include "kernels/math/@NAME@.h"

namespace treadle {

cudaError_t launch_@NAME@(const ElementwiseArgs& args, cudaStream_t stream) {
  return visit_computed<@CAMEL@::kIntegers>(args.compute, [&](auto type) {
    return launch_map<typename decltype(type)::type, 1>(args, @CAMEL@{}, stream);
  });
}

cudaError_t launch_@NAME@_backward(const ElementwiseArgs& args, cudaStream_t stream) {
  return visit_floating(args.compute, [&](auto type) {
    return launch_map<typename decltype(type)::type, 2>(args, @CAMEL@Backward{}, stream);
  });
}

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
    """``f(x)``. TODO: say what f is, and what this stands for in torch.

    Args:
        x: [...] of any integer or floating-point dtype.
        out: written and returned if given, resized if its shape does not fit. No autograd.

    Returns:
        [...].

    Raises:
        TypeError: ``x`` or ``out`` is no tensor.
        RuntimeError: dtypes or devices that do not fit.

    Source: csrc/elementwise/@NAME@.cpp, kernels/elementwise/@NAME@.cu.
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
        x: [...], written and returned; the result must cast to its dtype.

    Returns:
        ``x``.

    Raises:
        TypeError: ``x`` is no tensor.
        RuntimeError: a dtype that does not fit; a leaf that requires grad; an expanded ``x``.

    Source: csrc/elementwise/@NAME@.cpp, kernels/elementwise/@NAME@.cu.
    """
    if type(x) is not Tensor:
        check_tensor("@NAME@_", "x", x)
    _@NAME@_(x)
    return x
''',
    "csrc/elementwise/cuda/@NAME@.cpp": """\
// @NAME@ and @NAME@_backward on CUDA. Kernels: kernels/elementwise/@NAME@.cu.
#include "elementwise/@NAME@.h"

#include "elementwise/cuda/loop.h"
#include "elementwise/unary.h"
#include "kernels/elementwise/launchers.h"

namespace treadle {

TORCH_LIBRARY_IMPL(treadle, CUDA, m) {
  register_unary<@CAMEL@Op, unary_cuda<launch_@NAME@>, unary_cuda<launch_@NAME@_backward>>(m);
}

}  // namespace treadle
""",
}
