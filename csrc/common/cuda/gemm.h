// Matrix products that call cuBLAS directly, with ATen's handle and thus its stream, its workspace
// and torch's TF32 setting. They do not call ATen's functions, because such a call takes as long as
// a step of a recurrent layer.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAContextLight.h>

#include <cstdint>
#include <optional>

#include "common/matrix.h"
#include "kernels/common/dtype.h"

namespace treadle {

// Runs on the current device and stream. Use one Gemm for several products: getting the handle from
// ATen takes longer than a product. Each product restores the handle's math mode.
class Gemm {
 public:
  // tf32: whether float32 products use TF32; by default, torch's setting for matrix products.
  explicit Gemm(Dtype dtype, std::optional<bool> tf32 = {});
  // out = a b, or out += a b if `add`, for matrices that are dense along rows or columns. The
  // result is bitwise equal to that of at::mm. With `wide`, out has the dtype of the accumulator:
  // float for half types. Raises for sizes of 2^31 or more.
  void multiply(const Matrix& out, const Matrix& a, const Matrix& b, bool add,
                bool wide = false) const {
    multiply_each(1, {out}, {a}, {b}, add, wide);
  }
  // The same for `count` products, in one call.
  void multiply_each(int64_t count, const Matrices& out, const Matrices& a, const Matrices& b,
                     bool add, bool wide = false) const;

 private:
  Dtype dtype_;
  std::optional<bool> tf32_;
  cublasHandle_t handle_;
};

// During its lifetime, Gemms of this thread on the current device that were created before it use
// this stream and workspace. Afterwards they use ATen's again.
class GemmsOnStream {
 public:
  GemmsOnStream(cudaStream_t stream, void* workspace, size_t bytes);
  GemmsOnStream(const GemmsOnStream&) = delete;
  GemmsOnStream& operator=(const GemmsOnStream&) = delete;

 private:
  // This is a member, so that its destructor also runs if the constructor throws.
  struct Moved {
    ~Moved();
  } moved_;
};

}  // namespace treadle
