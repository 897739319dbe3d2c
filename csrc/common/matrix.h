// A matrix in memory, as an operand of a product. A view of it costs nothing, whereas a view of a
// tensor costs a dispatcher call.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>

namespace treadle {

// [rows, columns], with strides in elements. If data is null, there is no matrix.
struct Matrix {
  char* data = nullptr;
  int64_t rows = 0, columns = 0, row_stride = 0, column_stride = 0, element_size = 0;

  // The stride of a dimension of size 0 or 1 does not matter.
  static Matrix of(const void* data, int64_t rows, int64_t columns, int64_t row_stride,
                   int64_t column_stride, int64_t element_size) {
    if (columns <= 1) column_stride = 1;
    if (rows <= 1) row_stride = column_stride == 1 && columns > 1 ? columns : 1;
    return {static_cast<char*>(const_cast<void*>(data)),
            rows,
            columns,
            row_stride,
            column_stride,
            element_size};
  }

  Matrix t() const { return {data, columns, rows, column_stride, row_stride, element_size}; }
  Matrix rows_from(int64_t first, int64_t count) const {
    char* const at = data + first * row_stride * element_size;
    return {at, count, columns, row_stride, column_stride, element_size};
  }
  Matrix columns_from(int64_t first, int64_t count) const {
    return t().rows_from(first, count).t();
  }
  // Whether the elements of a row are adjacent and rows do not overlap.
  bool rows_dense() const {
    return column_stride == 1 && row_stride >= (columns > 1 ? columns : 1);
  }
  // Whether the matrix is dense along rows or columns, with a stride that fits cuBLAS's 32-bit
  // integers.
  bool dense() const {
    constexpr int64_t kMost = std::numeric_limits<int>::max();
    return (rows_dense() && row_stride <= kMost) || (t().rows_dense() && column_stride <= kMost);
  }
};

// Several matrices of the same form, at distances of `apart` elements. If it is 0, all are the
// same.
struct Matrices {
  Matrix first;
  int64_t apart = 0;

  // The data of the i-th matrix; null if there are none.
  char* data(int64_t i) const {
    return first.data == nullptr ? nullptr : first.data + i * apart * first.element_size;
  }
  Matrices t() const { return {first.t(), apart}; }
  Matrices rows_from(int64_t begin, int64_t count) const {
    return {first.rows_from(begin, count), apart};
  }
  Matrices columns_from(int64_t begin, int64_t count) const {
    return {first.columns_from(begin, count), apart};
  }
};

// The matrix of a 2-dim tensor, or of a 3-dim one with its first two dimensions merged into rows.
// The caller makes sure that the strides allow this.
inline Matrix matrix_of(const at::Tensor& t) {
  const auto size = static_cast<int64_t>(t.element_size());
  const void* const data = t.const_data_ptr();
  if (t.dim() == 2) {
    return Matrix::of(data, t.size(0), t.size(1), t.stride(0), t.stride(1), size);
  }
  const int64_t row_stride = t.size(1) == 1 ? t.stride(0) : t.stride(1);
  return Matrix::of(data, t.size(0) * t.size(1), t.size(2), row_stride, t.stride(2), size);
}

// The tensor itself if it is dense along rows or columns, otherwise a copy.
inline at::Tensor with_matrix(const at::Tensor& t) {
  const bool rows =
      t.dim() == 2 || t.size(0) <= 1 || t.size(1) <= 1 || t.stride(0) == t.size(1) * t.stride(1);
  return rows && matrix_of(t).dense() ? t : t.contiguous();
}

}  // namespace treadle
