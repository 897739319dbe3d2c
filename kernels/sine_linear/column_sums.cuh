// Column sums of a matrix that a kernel computes, in a fixed order. A block sums a strip of columns
// over a part of the rows; a second kernel adds the sums of the parts. The order, and so the bits,
// depend only on shapes, dtype and alignment.
#pragma once

#include "kernels/sine_linear/common.cuh"

namespace treadle {

// A block's strip has at most this many vectors.
inline constexpr int kMaxAcross = 32;
// A thread sums at most this many rows, so that float sums stay as accurate as pairwise sums.
inline constexpr int64_t kMaxRows = 1024;
// Columns of a block that adds parts: 32 bytes of a row.
inline constexpr int kPartColumns = 8;

// How the matrix is divided. A block processes `across` vectors of `lanes` rows at a time.
struct Cut {
  int across, lanes, rows;  // rows of a part
  int64_t strips, parts;

  Cut(int64_t all_rows, int64_t vectors, int in_flight, int64_t max_blocks) {
    strips = ceil_div(vectors, int64_t{kMaxAcross});
    across = static_cast<int>(ceil_div(vectors, strips));
    lanes = kBlockSize / across;
    const int64_t step = int64_t{lanes} * in_flight;
    const int64_t wanted = ceil_div(all_rows, step);
    const int64_t fewest = ceil_div(all_rows, int64_t{lanes} * kMaxRows);
    const int64_t filling = max_blocks / strips;
    parts = wanted < filling ? wanted : filling;
    if (parts < fewest) parts = fewest;
    rows = static_cast<int>(ceil_div(ceil_div(all_rows, parts), step) * step);
    parts = ceil_div(all_rows, int64_t{rows});
  }

  LaunchShape shape(int width) const {
    const int per_thread = ceil_div(rows, lanes) * width;
    return {static_cast<unsigned>(strips * parts), 1, 1, kBlockSize, 0, width, per_thread};
  }
};

// A thread's part of the matrix: every lanes-th row of `rows` from `first` on.
struct CutPlace {
  int lane;
  int64_t part, column;  // column: the first of the thread's vector
  bool real;             // whether the matrix has this column

  __device__ __forceinline__ CutPlace(const Cut& cut, int width, int64_t columns) {
    part = blockIdx.x / cut.strips;
    const int64_t strip = blockIdx.x - part * cut.strips;
    lane = static_cast<int>(threadIdx.x) / cut.across;
    column = (strip * cut.across + (static_cast<int>(threadIdx.x) - lane * cut.across)) * width;
    real = column < columns;
  }

  __device__ __forceinline__ int64_t first(const Cut& cut) const { return part * cut.rows; }
  __device__ __forceinline__ int rows(const Cut& cut, int64_t all_rows) const {
    const int64_t rest = all_rows - first(cut);
    return rest < cut.rows ? static_cast<int>(rest) : cut.rows;
  }
};

// Tree reduction over the lanes, into the threads of lane 0. All threads of the block must call it;
// those beyond the last lane do not contribute.
template <class acc, int kWidth>
__device__ __forceinline__ void add_lanes(acc (&sum)[kWidth], int lane, int lanes, int across) {
  __shared__ acc others[kWidth][kBlockSize];
  const int thread = static_cast<int>(threadIdx.x);
  while (lanes > 1) {
    const int half = (lanes + 1) / 2;
    if (lane >= half && lane < lanes) {
#pragma unroll
      for (int e = 0; e < kWidth; ++e) others[e][thread] = sum[e];
    }
    __syncthreads();
    if (lane + half < lanes) {
#pragma unroll
      for (int e = 0; e < kWidth; ++e) sum[e] += others[e][thread + half * across];
    }
    lanes = half;
  }
}

// Stores the block's sums: in `result` [columns] in T if there is one part, else in a row of
// `parts` in acc_t.
template <class T, int kWidth>
__device__ __forceinline__ void store_sums(acc_t<T> (&sum)[kWidth], const Cut& cut,
                                           const CutPlace& place, int64_t columns, void* parts,
                                           void* result) {
  add_lanes(sum, place.lane, cut.lanes, cut.across);
  if (place.lane > 0 || !place.real) return;
  if (cut.parts == 1) {
    store_rounded<T>(result, place.column, sum);
  } else {
    auto* to = static_cast<acc_t<T>*>(parts) + place.part * columns + place.column;
#pragma unroll
    for (int e = 0; e < kWidth; ++e) to[e] = sum[e];
  }
}

template <class T>
__global__ void __launch_bounds__(kBlockSize)
    sine_linear_sum_parts(const void* parts, void* result, int64_t columns, int64_t count) {
  begin_kernel();
  constexpr int kLanes = kBlockSize / kPartColumns;
  const int lane = static_cast<int>(threadIdx.x) / kPartColumns;
  const int64_t column = int64_t{blockIdx.x} * kPartColumns + threadIdx.x % kPartColumns;
  const bool real = column < columns;
  acc_t<T> sum[1] = {};
  if (real) {
    const auto* from = static_cast<const acc_t<T>*>(parts) + column;
#pragma unroll 8
    for (int64_t part = lane; part < count; part += kLanes) sum[0] += from[part * columns];
  }
  add_lanes(sum, lane, kLanes, kPartColumns);
  if (lane == 0 && real) store_rounded<T>(result, column, sum);
}

// Adds the parts, after a kernel that stored more than one.
template <class T>
cudaError_t launch_sum_parts(const void* parts, void* result, int64_t columns, const Cut& cut,
                             cudaStream_t stream) {
  constexpr int kLanes = kBlockSize / kPartColumns;
  const LaunchShape shape = {
      static_cast<unsigned>(ceil_div(columns, int64_t{kPartColumns})), 1, 1, kBlockSize, 0, 1,
      static_cast<int>(ceil_div(cut.parts, int64_t{kLanes}))};
  return launch(sine_linear_sum_parts<T>, shape, stream, parts, result, columns, cut.parts);
}

}  // namespace treadle
