// vector_add: what its CPU and CUDA kernels share. Each backend brings a loop for two tensors and
// one for a tensor and a number.
#pragma once

#include <torch/library.h>

#include "elementwise/loop.h"

namespace treadle {

using AddRun = void (*)(ElementwiseLoop& loop, const Scalar& alpha);
using AddNumberRun = void (*)(ElementwiseLoop& loop, const Scalar& b, const Scalar& alpha);

// The dtype of the result. `out` is undefined, or the tensor that is written.
ScalarType check_vector_add(const char* op, const Tensor& a, const Tensor& b, const Scalar& alpha,
                            const Tensor& out);
ScalarType check_vector_add(const char* op, const Tensor& a, const Scalar& b, const Scalar& alpha,
                            const Tensor& out);

template <AddRun run>
struct AddTensor {
  static Tensor functional(const Tensor& a, const Tensor& b, const Scalar& alpha) {
    const ScalarType compute = check_vector_add("vector_add", a, b, alpha, Tensor());
    ElementwiseLoop loop("vector_add", Tensor(), a, b, compute);
    run(loop, alpha);
    return loop.output;
  }
  static void out(const Tensor& a, const Tensor& b, const Scalar& alpha, Tensor& out) {
    const ScalarType compute = check_vector_add("vector_add", a, b, alpha, out);
    ElementwiseLoop loop("vector_add", out, a, b, compute);
    run(loop, alpha);
  }
  static void inplace(Tensor& a, const Tensor& b, const Scalar& alpha) {
    const ScalarType compute = check_vector_add("vector_add_", a, b, alpha, a);
    ElementwiseLoop loop("vector_add_", a, a, b, compute);
    run(loop, alpha);
  }
};

template <AddNumberRun run>
struct AddNumber {
  static Tensor functional(const Tensor& a, const Scalar& b, const Scalar& alpha) {
    const ScalarType compute = check_vector_add("vector_add", a, b, alpha, Tensor());
    ElementwiseLoop loop("vector_add", Tensor(), a, compute);
    run(loop, b, alpha);
    return loop.output;
  }
  static void inplace(Tensor& a, const Scalar& b, const Scalar& alpha) {
    const ScalarType compute = check_vector_add("vector_add_", a, b, alpha, a);
    ElementwiseLoop loop("vector_add_", a, a, compute);
    run(loop, b, alpha);
  }
};

template <AddRun run, AddNumberRun run_number>
void register_vector_add(torch::Library& m) {
  m.impl("vector_add", AddTensor<run>::functional);
  m.impl("vector_add.out", AddTensor<run>::out);
  m.impl("vector_add_", AddTensor<run>::inplace);
  m.impl("vector_add.Scalar", AddNumber<run_number>::functional);
  m.impl("vector_add_.Scalar", AddNumber<run_number>::inplace);
}

}  // namespace treadle
