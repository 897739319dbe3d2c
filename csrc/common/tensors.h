// Tensors that may be missing: an argument that was not given, or a gradient or tangent that is
// zero. Schemas declare them as `Tensor?`. These functions represent a missing tensor as an
// undefined one, which counts as zero in sums and products.
#pragma once

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <tuple>
#include <vector>

#include "common/dispatch.h"

namespace treadle {

using Tensors2 = std::tuple<Tensor, Tensor>;
using Tensors3 = std::tuple<Tensor, Tensor, Tensor>;
using Tensors4 = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using Tensors5 = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;
using Tensors9 = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// ---- missing tensors

inline OptionalTensor optional(const Tensor& t) {
  return t.defined() ? OptionalTensor(t) : std::nullopt;
}

inline Tensor value_or_undefined(const OptionalTensor& t) { return t.value_or(Tensor()); }

inline void* data_of(const Tensor& t) { return t.defined() ? t.mutable_data_ptr() : nullptr; }

inline const void* const_data_of(const Tensor& t) {
  return t.defined() ? t.const_data_ptr() : nullptr;
}

inline Tensor contiguous(const Tensor& t) { return t.defined() ? t.contiguous() : t; }

// An empty tensor like t if `needed`, otherwise an undefined one. Sizes may be symbolic.
inline Tensor empty_like_if(bool needed, const Tensor& t) {
  return needed ? at::empty_symint(t.sym_sizes(), t.options()) : Tensor();
}

// ---- sums and products

inline Tensor plus(const Tensor& a, const Tensor& b) {
  if (!a.defined()) return b;
  return b.defined() ? a + b : a;
}

inline Tensor minus(const Tensor& a, const Tensor& b) {
  if (!b.defined()) return a;
  return a.defined() ? a - b : -b;
}

inline Tensor times(const Tensor& a, const Tensor& b) {
  return a.defined() && b.defined() ? a * b : Tensor();
}

inline Tensor matrix_product(const Tensor& a, const Tensor& b) {
  return a.defined() && b.defined() ? at::matmul(a, b) : Tensor();
}

inline Tensor transposed(const Tensor& t) { return t.defined() ? t.mT() : t; }

// Skips the dispatcher call if t already has this dtype: such calls take a large part of the time
// of a small op.
inline Tensor cast(const Tensor& t, ScalarType dtype) {
  return t.defined() && t.scalar_type() != dtype ? t.to(dtype) : t;
}

// Elements start .. start + size along `dim`. Sizes must not be symbolic; in columns() they may be.
inline Tensor part(const Tensor& t, int64_t dim, int64_t start, int64_t size) {
  return t.size(dim) == size ? t : t.narrow(dim, start, size);
}

// Columns begin .. begin + size.
inline Tensor columns(const Tensor& t, const c10::SymInt& begin, const c10::SymInt& size) {
  return t.defined() ? t.narrow_symint(-1, begin, size) : t;
}

// Concatenates parts along the columns. A missing part is replaced with zeros of its model's shape;
// if all are missing, the result is undefined.
inline Tensor join(std::vector<Tensor> parts, const std::vector<Tensor>& models) {
  bool any = false;
  for (const auto& part : parts) any |= part.defined();
  if (!any) return Tensor();
  for (size_t k = 0; k < parts.size(); ++k) {
    if (!parts[k].defined()) parts[k] = at::zeros_like(models[k]);
  }
  return at::cat(parts, -1);
}

}  // namespace treadle
