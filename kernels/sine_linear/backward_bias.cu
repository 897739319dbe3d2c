// grad_z of the sine layer and its column sums, grad_bias, in one pass on CUDA.
// A block takes a strip of columns and a range of rows; a second kernel adds the ranges' sums. The
// order of summation depends only on shapes, dtype and alignment, and so do the bits.
// Formula: kernels/math/sine_linear.h. Without this kernel: csrc/sine_linear/backward.cpp.
#include "kernels/sine_linear/common.cuh"
#include "kernels/sine_linear/launchers.h"

namespace treadle {
namespace {

// Rows that a thread loads before it uses them: bytes in flight to hide memory latency.
template <class T>
constexpr int kRowsInFlight = sizeof(T) == 8 ? 2 : 4;
// A block's strip has at most this many vectors.
constexpr int kMaxAcross = 32;
// Resident blocks of an SM, limited by registers.
template <class T>
constexpr int kResident = sizeof(T) == 2 ? 4 : 3;
// Blocks for a large input: one wave on the 132 SMs of an H100 or H200.
template <class T>
constexpr int64_t kMaxBlocks = int64_t{128} * kResident<T>;
// A thread sums at most this many rows, so that float sums stay as accurate as pairwise ones.
constexpr int64_t kMaxRows = 1024;
// Columns of a block that adds parts: 32 bytes of a row.
constexpr int kPartColumns = 8;

// How the matrix is divided: across x lanes threads take `across` vectors of `lanes` rows at a
// time.
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
};

// Calls f(type, width, cut) for these arguments.
template <class F>
auto with_cut(const SineLinearBackwardBias& args, const F& f) {
  return visit_floating(args.slope.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kWidest = kWide<T>;
    const bool wide =
        args.slope.numel >= kWideFrom && args.columns % kWidest == 0 && aligned(args.slope);
    const Cut cut(args.rows, args.columns / (wide ? kWidest : 1), kRowsInFlight<T>, kMaxBlocks<T>);
    return wide ? f(type, Constant<int, kWidest>{}, cut) : f(type, Constant<int, 1>{}, cut);
  });
}

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

// kRows rows, `step` elements apart. Sums are of unrounded values.
template <class T, int kWidth, int kRows>
__device__ __forceinline__ void add_rows(const SineLinearSlope& args, int64_t element, int64_t step,
                                         acc_t<T> (&sum)[kWidth]) {
  using acc = acc_t<T>;
  using Stored = Kept<T, kWidth, false, true>;
  Vector<T, kWidth> grads[kRows];
  Stored kept[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    grads[r] = load_at<T, kWidth>(args.grad, element + r * step);
    kept[r] = Stored(args.output, args.phase, element + r * step);
  }
  const acc scale = static_cast<acc>(args.scale);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    acc product[kWidth];
    widen(grads[r], product);
    const Waves<T, kWidth, false, true> waves(kept[r]);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      product[e] *= scale * waves.cosine[e];
      sum[e] += product[e];
    }
    store_rounded<T>(args.result, element + r * step, product);
  }
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kBlockSize, kResident<T>)
    sine_linear_backward_bias(const __grid_constant__ SineLinearBackwardBias args,
                              const __grid_constant__ Cut cut) {
  begin_kernel();
  constexpr int kRows = kRowsInFlight<T>;
  const int64_t part = blockIdx.x / cut.strips, strip = blockIdx.x - part * cut.strips;
  const int lane = static_cast<int>(threadIdx.x) / cut.across;
  const int64_t vector = strip * cut.across + (static_cast<int>(threadIdx.x) - lane * cut.across);
  const int64_t column = vector * kWidth;
  const bool real = column < args.columns;
  acc_t<T> sum[kWidth] = {};
  if (real && lane < cut.lanes) {
    const int64_t first = part * cut.rows, rest = args.rows - first;
    const int rows = rest < cut.rows ? static_cast<int>(rest) : cut.rows;
    const int64_t step = cut.lanes * args.columns;
    int row = lane;
    int64_t element = (first + lane) * args.columns + column;
    for (; row + (kRows - 1) * cut.lanes < rows; row += kRows * cut.lanes) {
      add_rows<T, kWidth, kRows>(args.slope, element, step, sum);
      element += kRows * step;
    }
    for (; row < rows; row += cut.lanes) {
      add_rows<T, kWidth, 1>(args.slope, element, step, sum);
      element += step;
    }
  }
  add_lanes(sum, lane, cut.lanes, cut.across);
  if (lane > 0 || !real) return;
  if (cut.parts == 1) {
    store_rounded<T>(args.grad_bias, column, sum);
  } else {
    auto* to = static_cast<acc_t<T>*>(args.parts) + part * args.columns + column;
#pragma unroll
    for (int e = 0; e < kWidth; ++e) to[e] = sum[e];
  }
}

template <class T>
__global__ void __launch_bounds__(kBlockSize)
    sine_linear_sum_parts(const __grid_constant__ SineLinearBackwardBias args, int64_t parts) {
  begin_kernel();
  constexpr int kLanes = kBlockSize / kPartColumns;
  const int lane = static_cast<int>(threadIdx.x) / kPartColumns;
  const int64_t column = int64_t{blockIdx.x} * kPartColumns + threadIdx.x % kPartColumns;
  const bool real = column < args.columns;
  acc_t<T> sum[1] = {};
  if (real) {
    const auto* from = static_cast<const acc_t<T>*>(args.parts) + column;
#pragma unroll 8
    for (int64_t part = lane; part < parts; part += kLanes) sum[0] += from[part * args.columns];
  }
  add_lanes(sum, lane, kLanes, kPartColumns);
  if (lane == 0 && real) store_rounded<T>(args.grad_bias, column, sum);
}

}  // namespace

int64_t sine_linear_backward_bias_parts(const SineLinearBackwardBias& args) {
  return with_cut(args, [](auto, auto, const Cut& cut) { return cut.parts; });
}

cudaError_t launch_sine_linear_backward_bias(const SineLinearBackwardBias& args,
                                             cudaStream_t stream) {
  return with_cut(args, [&](auto type, auto width, const Cut& cut) {
    using T = typename decltype(type)::type;
    constexpr int kWidth = width.value;
    const int per_thread = ceil_div(cut.rows, cut.lanes) * kWidth;
    const LaunchShape shape = {
        static_cast<unsigned>(cut.strips * cut.parts), 1, 1, kBlockSize, 0, kWidth, per_thread};
    const auto error = launch(sine_linear_backward_bias<T, kWidth>, shape, stream, args, cut);
    if (error != cudaSuccess || cut.parts == 1) return error;
    constexpr int kLanes = kBlockSize / kPartColumns;
    const LaunchShape sums = {static_cast<unsigned>(ceil_div(args.columns, int64_t{kPartColumns})),
                              1,
                              1,
                              kBlockSize,
                              0,
                              1,
                              static_cast<int>(ceil_div(cut.parts, int64_t{kLanes}))};
    return launch(sine_linear_sum_parts<T>, sums, stream, args, cut.parts);
  });
}

}  // namespace treadle
