// Whether torch allows TF32 for float32 on a GPU: in matrix products, for which ATen sets cuBLAS's
// mode by the same setting, and in cuDNN's recurrent layers. torch's cells are no layers of cuDNN's
// but matrix products.
#pragma once

#include <ATen/Context.h>

namespace treadle {

inline bool tf32_allowed(at::Float32Op op = at::Float32Op::MATMUL) {
  return at::globalContext().float32Precision(at::Float32Backend::CUDA, op) ==
         at::Float32Precision::TF32;
}

// While it lives, this thread's layers follow the setting of matrix products, if `on`.
class AsMatrixProducts {
 public:
  explicit AsMatrixProducts(bool on) : before_(current()) { current() = on || before_; }
  ~AsMatrixProducts() { current() = before_; }
  AsMatrixProducts(const AsMatrixProducts&) = delete;
  AsMatrixProducts& operator=(const AsMatrixProducts&) = delete;

  static bool& current() {
    static thread_local bool on = false;
    return on;
  }

 private:
  bool before_;
};

inline bool tf32_allowed_in_rnn() {
  return tf32_allowed(AsMatrixProducts::current() ? at::Float32Op::MATMUL : at::Float32Op::RNN);
}

}  // namespace treadle
