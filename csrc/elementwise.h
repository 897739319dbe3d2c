// The host half of every elementwise op: TensorIterator makes shapes, strides and the output, our
// loops do the casting, so no operand is copied.
#pragma once

#include <ATen/TensorIterator.h>

#include <array>

#include "check.h"
#include "cpu/kernels.h"
#include "dispatch.h"

namespace treadle {

inline constexpr int kMaxOperands = 3;

// An undefined `out` is allocated, with dtype `compute`. Partial overlap raises.
at::TensorIterator make_iterator(const char* op, const Tensor& out, const Tensor& x,
                                 ScalarType compute, bool inplace);
at::TensorIterator make_iterator(const char* op, const Tensor& out, const Tensor& a,
                                 const Tensor& b, ScalarType compute, bool inplace);

Number to_number(const Scalar& s);

// The dtype that torch's promotion gives; the common cases without a look at the tables.
ScalarType promote(const Tensor& x, const Scalar& s);
ScalarType promote(const Tensor& a, const Tensor& b);

// Calls kernel(Piece) for pieces of the iteration space, in torch's thread pool.
template <class F>
void run_cpu(at::TensorIteratorBase& iter, ScalarType compute, const F& kernel) {
  if (iter.numel() == 0) return;
  std::array<Dtype, kMaxOperands> dtypes{};
  for (int i = 0; i < iter.ntensors(); ++i) dtypes[i] = to_dtype(iter.dtype(i));
  iter.for_each([&, compute = to_dtype(compute)](char** data, const int64_t* strides, int64_t size0,
                                                 int64_t size1) {
    kernel(cpu::Piece{data, strides, size0, size1, dtypes.data(), compute});
  });
}

}  // namespace treadle
