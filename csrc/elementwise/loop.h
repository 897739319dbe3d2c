// The host half of every elementwise op: TensorIterator gives shapes, strides and the output; our
// loops cast as they go, so no operand is copied.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>

#include <array>
#include <initializer_list>
#include <optional>

#include "common/check.h"
#include "common/dispatch.h"
#include "kernels/elementwise/args.h"
#include "kernels/elementwise/cpu/kernels.h"

namespace treadle {

// The iteration space of an elementwise op. The host limits small calls, and most are dense: if
// every operand is contiguous, of one shape and stored as `compute`, no iterator is built.
struct ElementwiseLoop {
  // An undefined `out` is allocated. Shapes, dtypes and overlap have been checked.
  ElementwiseLoop(const char* op, const Tensor& out, const Tensor& x, ScalarType compute);
  ElementwiseLoop(const char* op, const Tensor& out, const Tensor& a, const Tensor& b,
                  ScalarType compute);
  // For an op with parameters, which broadcast with x.
  ElementwiseLoop(const char* op, const Tensor& out, const Tensor& x, const Tensor& alpha,
                  const Tensor& beta, ScalarType compute);

  const char* op;
  ScalarType compute;
  Tensor output;
  std::optional<at::TensorIterator> iterator;  // empty where dense
  int operands;
  std::array<char*, kMaxOperands> data{};  // where dense

  int64_t numel() const { return output.numel(); }

 private:
  bool try_dense(const Tensor& out, std::initializer_list<const Tensor*> inputs);
  void iterate(const Tensor& out, std::initializer_list<const Tensor*> inputs,
               bool cpu_scalars = false);
};

ScalarArg to_scalar_arg(const Scalar& s);

// The dtype of torch's promotion, without its tables in the common cases.
ScalarType promote(const Tensor& x, const Scalar& s);
ScalarType promote(const Tensor& a, const Tensor& b);

// Calls kernel(Tile2d) for parts of the iteration space, in torch's thread pool.
template <class F>
void run_cpu(ElementwiseLoop& loop, const F& kernel) {
  if (loop.numel() == 0) return;
  const Dtype compute = to_dtype(loop.compute);
  std::array<Dtype, kMaxOperands> dtypes;
  dtypes.fill(compute);
  if (loop.iterator) {
    for (int i = 0; i < loop.operands; ++i) dtypes[i] = to_dtype(loop.iterator->dtype(i));
    loop.iterator->for_each([&](char** data, const int64_t* strides, int64_t size0, int64_t size1) {
      kernel(cpu::Tile2d{data, strides, size0, size1, dtypes.data(), compute});
    });
    return;
  }
  const auto size = static_cast<int64_t>(loop.output.element_size());
  std::array<int64_t, 2 * kMaxOperands> strides{};
  for (int i = 0; i < loop.operands; ++i) strides[i] = size;
  at::parallel_for(0, loop.numel(), at::internal::GRAIN_SIZE, [&](int64_t begin, int64_t end) {
    auto data = loop.data;
    for (int i = 0; i < loop.operands; ++i) data[i] += begin * size;
    kernel(cpu::Tile2d{data.data(), strides.data(), end - begin, 1, dtypes.data(), compute});
  });
}

}  // namespace treadle
