// Matrix products by cuBLAS directly, with ATen's handle: its stream, its workspace, and what torch
// was told of tf32. A call of ATen's own functions takes as long as a step of a recurrent layer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "common/matrix.h"
#include "kernels/common/dtype.h"

namespace treadle {

// On the current device and stream. Make one for several products: asking ATen for the handle takes
// longer than a product.
class Gemm {
 public:
  // tf32: whether float32 is computed so; none: as torch says for matrix products.
  explicit Gemm(Dtype dtype, std::optional<bool> tf32 = {});
  // Until the handle is asked for anew its products are on this stream, with this workspace. Takes
  // a cudaStream_t.
  void move_to(void* stream, void* workspace, size_t bytes) const;
  // out = a b, or added to it, of matrices that are dense along rows or columns: as at::mm computes
  // it, to the bit. `wide`: out is acc_t. Sizes beyond what cuBLAS counts raise.
  void multiply(const Matrix& out, const Matrix& a, const Matrix& b, bool add,
                bool wide = false) const;

 private:
  Dtype dtype_;
  void* handle_;
};

// Whether torch lets cuBLAS compute float32 in tf32 now; and cuDNN's recurrent layers.
bool tf32_allowed();
bool tf32_allowed_in_rnn();

}  // namespace treadle
