// The host code of every elementwise op. TensorIterator computes shapes and strides and allocates
// the output. Our loops cast each element when they access it, so no operand is copied.
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

// The iteration space of an elementwise op. Host code dominates the time of small calls, and most
// calls are dense. So if all operands are contiguous and have the same shape and dtype `compute`,
// no iterator is built.
struct ElementwiseLoop {
  // Allocates the output if `out` is undefined. The caller has checked shapes, dtypes and overlap.
  ElementwiseLoop(const char* op, const Tensor& out, const Tensor& x, ScalarType compute);
  ElementwiseLoop(const char* op, const Tensor& out, const Tensor& a, const Tensor& b,
                  ScalarType compute);
  // For an op with parameters alpha and beta, which broadcast with x.
  ElementwiseLoop(const char* op, const Tensor& out, const Tensor& x, const Tensor& alpha,
                  const Tensor& beta, ScalarType compute);

  const char* op;
  ScalarType compute;
  Tensor output;
  std::optional<at::TensorIterator> iterator;  // empty if dense
  int operands;
  std::array<char*, kMaxOperands> data{};  // only if dense

  int64_t numel() const { return output.numel(); }

 private:
  bool try_dense(const Tensor& out, std::initializer_list<const Tensor*> inputs);
  void iterate(const Tensor& out, std::initializer_list<const Tensor*> inputs,
               bool cpu_scalars = false);
};

ScalarArg to_scalar_arg(const Scalar& s);

// The result of torch's type promotion, without its table look-ups in common cases.
ScalarType promote(const Tensor& x, const Scalar& s);
ScalarType promote(const Tensor& a, const Tensor& b);

// Calls kernel(Tile2d) for parts of the iteration space, on torch's thread pool.
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
