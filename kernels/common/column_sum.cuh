// Sums of a matrix's columns, 32 columns per thread block. Thread (x, y) adds rows y, y + kRows,
// ... of column x. Then the partial sums of a column are added in order, so that every launch gives
// the same bits.
#pragma once

#include "kernels/common/convert.cuh"

namespace treadle {

inline constexpr int kSumColumns = 32;

// Returns the sum of this thread's column to threads with y = 0, in a block of kRows * kSumColumns
// threads. `first` points to the column's first element. All threads of the block must call it,
// even those whose column is outside the matrix (not `real`).
template <int kRows, class T>
__device__ __forceinline__ acc_t<T> sum_of_column(const T* first, bool real, int64_t rows,
                                                  int64_t row_stride) {
  __shared__ acc_t<T> partial[kRows][kSumColumns];
  const int x = threadIdx.x % kSumColumns, y = threadIdx.x / kSumColumns;
  acc_t<T> sum = 0;
  if (real) {
#pragma unroll 8
    for (int64_t row = y; row < rows; row += kRows) sum += widen(first[row * row_stride]);
  }
  partial[y][x] = sum;
  __syncthreads();
  if (y == 0 && real) {
    for (int i = 1; i < kRows; ++i) sum += partial[i][x];
  }
  return sum;
}

}  // namespace treadle
