// The first slope of the sine layer and its sums over the rows, the gradient by the bias, on CUDA.
// A block goes down a part of the rows in a strip of columns; then the parts are added. Every order
// is that of shapes, dtype and alignment, so the bits are too.
// Formula: kernels/math/sine_linear.h. Elsewhere: csrc/sine_linear_slope.cpp.
#include "kernels/sine_linear.cuh"
#include "kernels/sine_linear.h"

namespace treadle {
namespace {

// Rows that a thread loads before it uses them: enough bytes in flight to keep memory busy.
template <class T>
constexpr int kRowsInFlight = sizeof(T) == 8 ? 2 : 4;
// Vectors of a row that a block takes at most.
constexpr int kMostAcross = 32;
// Blocks that a multiprocessor runs at a time, by the registers that they need.
template <class T>
constexpr int kResident = sizeof(T) == 2 ? 4 : 3;
// Blocks of a large input: as many as run at a time on the 132 multiprocessors of an H100 or H200.
template <class T>
constexpr int64_t kMostBlocks = int64_t{128} * kResident<T>;
// Rows that a thread adds up at most, so that sums in float stay as good as pairwise ones.
constexpr int64_t kMostRows = 1024;
// The columns of a block that adds parts, 32 bytes of a row.
constexpr int kPartColumns = 8;

// How a matrix is cut: across x lanes threads take `across` vectors of `lanes` rows at a time.
struct Cut {
  int across, lanes, rows;  // rows of a part
  int64_t strips, parts;

  Cut(int64_t all_rows, int64_t vectors, int in_flight, int64_t most_blocks) {
    strips = ceil_div(vectors, int64_t{kMostAcross});
    across = static_cast<int>(ceil_div(vectors, strips));
    lanes = kBlockSize / across;
    const int64_t step = int64_t{lanes} * in_flight;
    const int64_t wanted = ceil_div(all_rows, step);
    const int64_t fewest = ceil_div(all_rows, int64_t{lanes} * kMostRows);
    const int64_t filling = most_blocks / strips;
    parts = wanted < filling ? wanted : filling;
    if (parts < fewest) parts = fewest;
    rows = static_cast<int>(ceil_div(ceil_div(all_rows, parts), step) * step);
    parts = ceil_div(all_rows, int64_t{rows});
  }
};

// Calls f(type, width, cut) for these arguments.
template <class F>
auto with_cut(const SineLinearSlopeSums& args, const F& f) {
  return visit_floating(args.slope.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kMost = kWide<T>;
    const bool wide =
        args.slope.numel >= kWideFrom && args.columns % kMost == 0 && aligned(args.slope);
    const Cut cut(args.rows, args.columns / (wide ? kMost : 1), kRowsInFlight<T>, kMostBlocks<T>);
    return wide ? f(type, Constant<int, kMost>{}, cut) : f(type, Constant<int, 1>{}, cut);
  });
}

// Adds to every thread of the first lane what the same ones of the other lanes have, pairwise. All
// threads of the block call it; those of no lane count for nothing.
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

// kRows rows, `step` elements from one to the next. What is added has not been rounded.
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
    sine_linear_slope_sums(const __grid_constant__ SineLinearSlopeSums args,
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
    store_rounded<T>(args.sums, column, sum);
  } else {
    auto* to = static_cast<acc_t<T>*>(args.parts) + part * args.columns + column;
#pragma unroll
    for (int e = 0; e < kWidth; ++e) to[e] = sum[e];
  }
}

template <class T>
__global__ void __launch_bounds__(kBlockSize)
    sine_linear_sum_parts(const __grid_constant__ SineLinearSlopeSums args, int64_t parts) {
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
  if (lane == 0 && real) store_rounded<T>(args.sums, column, sum);
}

}  // namespace

int64_t sine_linear_slope_sums_parts(const SineLinearSlopeSums& args) {
  return with_cut(args, [](auto, auto, const Cut& cut) { return cut.parts; });
}

cudaError_t launch_sine_linear_slope_sums(const SineLinearSlopeSums& args, cudaStream_t stream) {
  return with_cut(args, [&](auto type, auto width, const Cut& cut) {
    using T = typename decltype(type)::type;
    constexpr int kWidth = width.value;
    const int per_thread = ceil_div(cut.rows, cut.lanes) * kWidth;
    const LaunchShape slope = {
        static_cast<unsigned>(cut.strips * cut.parts), 1, 1, kBlockSize, 0, kWidth, per_thread};
    const auto error = launch(sine_linear_slope_sums<T, kWidth>, slope, stream, args, cut);
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
