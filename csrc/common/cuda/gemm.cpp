#include "common/cuda/gemm.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/Exceptions.h>

#include <algorithm>
#include <limits>
#include <type_traits>

#include "common/tf32.h"

namespace treadle {

Gemm::Gemm(Dtype dtype, std::optional<bool> tf32)
    : dtype_(dtype), handle_(at::cuda::getCurrentCUDABlasHandle()) {
  if (dtype == Dtype::kFloat && tf32 && *tf32 != tf32_allowed()) tf32_ = tf32;
}

static cudaDataType_t type_of(Dtype dtype) {
  return dtype == Dtype::kHalf ? CUDA_R_16F : CUDA_R_16BF;
}

// A factor as cuBLAS reads it: in column-major order, so a row-major matrix appears transposed.
struct Operand {
  cublasOperation_t op;
  const void* data;
  int stride;

  explicit Operand(const Matrix& of) : op(CUBLAS_OP_N), data(of.data) {
    TORCH_INTERNAL_ASSERT(of.rows_dense() || of.t().rows_dense());
    const bool rows = of.rows_dense();
    op = rows ? CUBLAS_OP_N : CUBLAS_OP_T;
    stride = counted(std::max<int64_t>(rows ? of.row_stride : of.column_stride, 1));
  }

  // cuBLAS needs 32-bit sizes.
  static int counted(int64_t count) {
    TORCH_CHECK(count <= std::numeric_limits<int>::max(),
                "treadle: sizes of a matrix product must be less than 2^31, got ", count);
    return static_cast<int>(count);
  }
};

// The option is a bool in older torch, and in newer torch an enum whose first value means allowed.
template <class Option>
static bool is_allowed(Option option) {
  if constexpr (std::is_same_v<Option, bool>) {
    return option;
  } else {
    return static_cast<int>(option) == 0;
  }
}

// Whether torch allows cuBLAS to add partial sums that were rounded to the half type.
static bool rounds_parts(Dtype dtype) {
  const auto& context = at::globalContext();
  return dtype == Dtype::kHalf ? is_allowed(context.allowFP16ReductionCuBLAS())
                               : is_allowed(context.allowBF16ReductionCuBLAS());
}

// Sets the handle's math mode for one product, then restores the previous mode. If `mode` is empty,
// does nothing.
class MathMode {
 public:
  MathMode(cublasHandle_t handle, std::optional<cublasMath_t> mode) {
    if (!mode) return;
    TORCH_CUDABLAS_CHECK(cublasGetMathMode(handle, &before_));
    TORCH_CUDABLAS_CHECK(cublasSetMathMode(handle, *mode));
    handle_ = handle;
  }
  ~MathMode() {
    if (handle_ != nullptr) cublasSetMathMode(handle_, before_);
  }
  MathMode(const MathMode&) = delete;
  MathMode& operator=(const MathMode&) = delete;

 private:
  cublasHandle_t handle_ = nullptr;
  cublasMath_t before_ = CUBLAS_DEFAULT_MATH;
};

static std::optional<cublasMath_t> mode_of(Dtype dtype, std::optional<bool> tf32, bool wide) {
  if (tf32) return *tf32 ? CUBLAS_TF32_TENSOR_OP_MATH : CUBLAS_DEFAULT_MATH;
  if (!is_half(dtype) || wide || rounds_parts(dtype)) return {};
  return static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH |
                                   CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
}

void Gemm::multiply_each(int64_t count, const Matrices& outs, const Matrices& as,
                         const Matrices& bs, bool add, bool wide) const {
  const Matrix &out = outs.first, &a = as.first, &b = bs.first;
  if (!out.rows_dense()) {
    TORCH_INTERNAL_ASSERT(out.t().rows_dense());
    return multiply_each(count, outs.t(), bs.t(), as.t(), add, wide);
  }
  if (out.rows == 0 || out.columns == 0) return;
  if (a.columns == 0) {
    for (int64_t i = 0; i < count && !add; ++i) {
      C10_CUDA_CHECK(cudaMemset2DAsync(outs.data(i), out.row_stride * out.element_size, 0,
                                       out.columns * out.element_size, out.rows,
                                       at::cuda::getCurrentCUDAStream()));
    }
    return;
  }
  // out^T = b^T a^T.
  const Operand x(b), y(a);
  const int m = Operand::counted(out.columns), n = Operand::counted(out.rows);
  const int k = Operand::counted(a.columns), stride = Operand::counted(out.row_stride);
  const int products = Operand::counted(count);
  const MathMode mode(handle_, mode_of(dtype_, tf32_, wide));
  const auto multiply_as = [&](auto type, auto* multiply_one, auto* multiply_many) {
    using T = decltype(type);
    const T one = 1, beta = add ? 1 : 0;
    const auto *of_x = static_cast<const T*>(x.data), *of_y = static_cast<const T*>(y.data);
    auto* const to = reinterpret_cast<T*>(out.data);
    TORCH_CUDABLAS_CHECK(count == 1 ? multiply_one(handle_, x.op, y.op, m, n, k, &one, of_x,
                                                   x.stride, of_y, y.stride, &beta, to, stride)
                                    : multiply_many(handle_, x.op, y.op, m, n, k, &one, of_x,
                                                    x.stride, bs.apart, of_y, y.stride, as.apart,
                                                    &beta, to, stride, outs.apart, products));
  };
  if (dtype_ == Dtype::kDouble) {
    return multiply_as(double{}, cublasDgemm, cublasDgemmStridedBatched);
  }
  if (dtype_ == Dtype::kFloat) return multiply_as(float{}, cublasSgemm, cublasSgemmStridedBatched);
  const float one = 1, beta = add ? 1 : 0;
  const auto type = type_of(dtype_);
  if (count > 1) {
    TORCH_CUDABLAS_CHECK(cublasGemmStridedBatchedEx(
        handle_, x.op, y.op, m, n, k, &one, x.data, type, x.stride, bs.apart, y.data, type,
        y.stride, as.apart, &beta, out.data, wide ? CUDA_R_32F : type, stride, outs.apart, products,
        CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT_TENSOR_OP));
    return;
  }
  TORCH_CUDABLAS_CHECK(cublasGemmEx(handle_, x.op, y.op, m, n, k, &one, x.data, type, x.stride,
                                    y.data, type, y.stride, &beta, out.data,
                                    wide ? CUDA_R_32F : type, stride, CUBLAS_COMPUTE_32F,
                                    CUBLAS_GEMM_DEFAULT_TENSOR_OP));
}

GemmsOnStream::GemmsOnStream(cudaStream_t stream, void* workspace, size_t bytes) {
  const cublasHandle_t handle = at::cuda::getCurrentCUDABlasHandle();
  TORCH_CUDABLAS_CHECK(cublasSetStream(handle, stream));
  TORCH_CUDABLAS_CHECK(cublasSetWorkspace(handle, workspace, bytes));
}

// Every call of getCurrentCUDABlasHandle sets the handle's stream, workspace and mode. If it throws
// here, ATen's next call sets them.
GemmsOnStream::Moved::~Moved() {
  try {
    at::cuda::getCurrentCUDABlasHandle();
  } catch (...) {
  }
}

}  // namespace treadle
