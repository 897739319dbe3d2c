#include "common/cuda/gemm.h"

#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/Exceptions.h>

#include <algorithm>

namespace treadle {

// ATen sets the handle's mode by the same.
bool tf32_allowed() {
  return at::globalContext().float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL) ==
         at::Float32Precision::TF32;
}

bool tf32_allowed_in_rnn() {
  return at::globalContext().float32Precision(at::Float32Backend::CUDA, at::Float32Op::RNN) ==
         at::Float32Precision::TF32;
}

// ATen's handle, in a mode that the next call of ATen sets anew.
static cublasHandle_t blas_handle(std::optional<bool> tf32) {
  const cublasHandle_t handle = at::cuda::getCurrentCUDABlasHandle();
  if (tf32 && *tf32 != tf32_allowed()) {
    TORCH_CUDABLAS_CHECK(
        cublasSetMathMode(handle, *tf32 ? CUBLAS_TF32_TENSOR_OP_MATH : CUBLAS_DEFAULT_MATH));
  }
  return handle;
}

Gemm::Gemm(Dtype dtype, std::optional<bool> tf32) : dtype_(dtype), handle_(blas_handle(tf32)) {}

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

// An operand as cuBLAS takes it, columns first: a row-major matrix is its transpose.
struct Operand {
  at::Tensor t;
  bool rows_dense;
  int stride;

  explicit Operand(const at::Tensor& matrix) : t(matrix) {
    const auto dense = [&](int64_t along) {
      return t.stride(along) == 1 && t.stride(1 - along) >= std::max<int64_t>(t.size(along), 1);
    };
    if (!dense(1) && !dense(0)) t = t.contiguous();
    rows_dense = dense(1) || !dense(0);
    stride = static_cast<int>(std::max<int64_t>(t.stride(rows_dense ? 0 : 1), 1));
  }
};

void mm_fp32(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add, bool tf32) {
  const auto m = static_cast<int>(out.size(0)), n = static_cast<int>(out.size(1));
  const auto k = static_cast<int>(a.size(1));
  if (m == 0 || n == 0) return;
  const Operand x(a), y(b);
  const float one = 1, beta = add ? 1 : 0;
  // out^T = b^T a^T.
  TORCH_CUDABLAS_CHECK(cublasSgemm(blas_handle(tf32), y.rows_dense ? CUBLAS_OP_N : CUBLAS_OP_T,
                                   x.rows_dense ? CUBLAS_OP_N : CUBLAS_OP_T, n, m, k, &one,
                                   y.t.const_data_ptr<float>(), y.stride,
                                   x.t.const_data_ptr<float>(), x.stride, &beta,
                                   out.mutable_data_ptr<float>(), static_cast<int>(out.stride(0))));
}

}  // namespace treadle
