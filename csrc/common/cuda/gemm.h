// Matrix products by cuBLAS directly, with ATen's handle: its stream, its workspace, and what torch
// was told of tf32. A call of ATen's own functions takes as long as a step of a recurrent layer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "kernels/common/dtype.h"

namespace treadle {

// c [m, n] = a [m, k] b [n, k]^T + c if `add`, for `b_transposed` b [k, n]. b is contiguous, rows
// of a are a_row_stride apart, c is acc_t, dense along one of its dimensions.
struct GemmArgs {
  int64_t m, n, k;
  const void* a;
  int64_t a_row_stride;
  const void* b;
  bool b_transposed;
  void* c;
  int64_t c_row_stride, c_column_stride;
  bool add;
};

// On the current device and stream. Make one for several products: asking ATen for the handle takes
// longer than a product.
class Gemm {
 public:
  // tf32: whether float32 is computed so; none: as torch says for matrix products.
  explicit Gemm(Dtype dtype, std::optional<bool> tf32 = {});
  void run(const GemmArgs& args) const;

 private:
  Dtype dtype_;
  void* handle_;
};

// Whether torch lets cuBLAS compute float32 in tf32 now; and cuDNN's recurrent layers.
bool tf32_allowed();
bool tf32_allowed_in_rnn();

// out [m, n] = a [m, k] b [k, n], or added to it: float32, on the current device and stream, with
// tf32 or without whatever torch says of matrix products. Rows of out are dense.
void mm_fp32(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add, bool tf32);

}  // namespace treadle
