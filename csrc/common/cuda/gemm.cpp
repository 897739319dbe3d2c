#include "common/cuda/gemm.h"

#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/Exceptions.h>

namespace treadle {

// ATen sets the handle's mode by the same.
bool tf32_allowed() {
  return at::globalContext().float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL) ==
         at::Float32Precision::TF32;
}

Gemm::Gemm(Dtype dtype) : dtype_(dtype), handle_(at::cuda::getCurrentCUDABlasHandle()) {}

// cuBLAS counts columns first. There a is a^T [k, m], b is b^T [k, n] or [n, k], and c is c^T
// [n, m], or where its columns are dense, c [m, n].
void Gemm::run(const GemmArgs& p) const {
  const auto handle = static_cast<cublasHandle_t>(handle_);
  const auto b_op = p.b_transposed ? CUBLAS_OP_N : CUBLAS_OP_T;
  const auto b_stride = static_cast<int>(p.b_transposed ? p.n : p.k);
  const auto a_stride = static_cast<int>(p.a_row_stride);
  const auto m = static_cast<int>(p.m), n = static_cast<int>(p.n), k = static_cast<int>(p.k);
  // Of one row or column both strides may be 1.
  const bool rows_dense = p.c_column_stride == 1 && p.c_row_stride >= p.n;
  const auto c_stride = static_cast<int>(rows_dense ? p.c_row_stride : p.c_column_stride);
  // c^T = b a^T, and c = a b^T.
  const auto run = [&](const auto& gemm) {
    if (rows_dense) return gemm(b_op, CUBLAS_OP_N, n, m, p.b, b_stride, p.a, a_stride);
    const auto other = p.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    return gemm(CUBLAS_OP_T, other, m, n, p.a, a_stride, p.b, b_stride);
  };
  if (dtype_ == Dtype::kDouble) {
    const double one = 1, beta = p.add ? 1 : 0;
    TORCH_CUDABLAS_CHECK(run([&](auto op_x, auto op_y, int rows, int columns, const void* x,
                                 int ldx, const void* y, int ldy) {
      return cublasDgemm(handle, op_x, op_y, rows, columns, k, &one, static_cast<const double*>(x),
                         ldx, static_cast<const double*>(y), ldy, &beta, static_cast<double*>(p.c),
                         c_stride);
    }));
    return;
  }
  const float one = 1, beta = p.add ? 1 : 0;
  if (dtype_ == Dtype::kFloat) {
    TORCH_CUDABLAS_CHECK(run([&](auto op_x, auto op_y, int rows, int columns, const void* x,
                                 int ldx, const void* y, int ldy) {
      return cublasSgemm(handle, op_x, op_y, rows, columns, k, &one, static_cast<const float*>(x),
                         ldx, static_cast<const float*>(y), ldy, &beta, static_cast<float*>(p.c),
                         c_stride);
    }));
    return;
  }
  const auto type = dtype_ == Dtype::kHalf ? CUDA_R_16F : CUDA_R_16BF;
  TORCH_CUDABLAS_CHECK(run([&](auto op_x, auto op_y, int rows, int columns, const void* x, int ldx,
                               const void* y, int ldy) {
    return cublasGemmEx(handle, op_x, op_y, rows, columns, k, &one, x, type, ldx, y, type, ldy,
                        &beta, p.c, CUDA_R_32F, c_stride, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  }));
}

}  // namespace treadle
