// Whether torch allows TF32 for float32 on a GPU, in matrix products and in cuDNN's recurrent
// layers. ATen also derives cuBLAS's math mode from the setting for matrix products.
#pragma once

#include <ATen/Context.h>

namespace treadle {

inline bool tf32_allowed(at::Float32Op op = at::Float32Op::MATMUL) {
  return at::globalContext().float32Precision(at::Float32Backend::CUDA, op) ==
         at::Float32Precision::TF32;
}

inline bool tf32_allowed_in_rnn() { return tf32_allowed(at::Float32Op::RNN); }

}  // namespace treadle
