// ATen's matrix products for results with few rows or columns. BLAS computes the transposes of
// these results faster.
#pragma once

#include <ATen/Functions.h>

#include "common/dispatch.h"
#include "kernels/common/few_rows.h"

namespace treadle {

// Whether MKL takes four times as long for a product with this many columns as for its transpose.
constexpr bool few_columns(int64_t columns) { return columns > 1 && columns <= 8; }

// a b, computed as (b^T a^T)^T and made contiguous.
inline Tensor mm_transposed(const Tensor& a, const Tensor& b) {
  return b.t().mm(a.t()).t().clone(at::MemoryFormat::Contiguous);
}

// Whether mm_few_rows transposes a product whose left factor is a.
inline bool has_few_rows(const Tensor& a) {
  return a.is_cuda() && a.dim() == 2 && a.scalar_type() == at::kFloat && few_rows(a.size(0));
}

inline Tensor mm_few_rows(const Tensor& a, const Tensor& b) {
  return has_few_rows(a) ? mm_transposed(a, b) : a.mm(b);
}

inline Tensor mm_few_columns(const Tensor& a, const Tensor& b) {
  return a.is_cpu() && few_columns(b.size(1)) ? mm_transposed(a, b) : a.mm(b);
}

}  // namespace treadle
