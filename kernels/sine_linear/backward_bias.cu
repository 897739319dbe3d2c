// Computes grad_z of the sine layer and its column sums, grad_bias, in one pass on CUDA.
// Formula: kernels/math/sine_linear.h. Where this kernel cannot be used,
// csrc/sine_linear/backward.cpp computes the two separately.
#include "kernels/sine_linear/column_sums.cuh"
#include "kernels/sine_linear/launchers.h"

namespace treadle {
namespace {

// The number of rows that a thread loads before it uses them. This hides memory latency.
template <class T>
constexpr int kRowsInFlight = sizeof(T) == 8 ? 2 : 4;
// The number of resident blocks per SM, which registers limit.
template <class T>
constexpr int kResident = sizeof(T) == 2 ? 4 : 3;
// Blocks for a large input: at most one wave on the 132 SMs of an H100 or H200.
template <class T>
constexpr int64_t kMaxBlocks = int64_t{128} * kResident<T>;
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

// Computes kRows rows, `step` elements apart, and adds their unrounded values to `sum`.
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
  const CutPlace place(cut, kWidth, args.columns);
  acc_t<T> sum[kWidth] = {};
  if (place.real && place.lane < cut.lanes) {
    const int rows = place.rows(cut, args.rows);
    const int64_t step = cut.lanes * args.columns;
    int row = place.lane;
    int64_t element = (place.first(cut) + row) * args.columns + place.column;
    for (; row + (kRows - 1) * cut.lanes < rows; row += kRows * cut.lanes) {
      add_rows<T, kWidth, kRows>(args.slope, element, step, sum);
      element += kRows * step;
    }
    for (; row < rows; row += cut.lanes) {
      add_rows<T, kWidth, 1>(args.slope, element, step, sum);
      element += step;
    }
  }
  store_sums<T>(sum, cut, place, args.columns, args.parts, args.grad_bias);
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
    const auto error =
        launch(sine_linear_backward_bias<T, kWidth>, cut.shape(kWidth), stream, args, cut);
    if (error != cudaSuccess || cut.parts == 1) return error;
    return launch_sum_parts<T>(args.parts, args.grad_bias, args.columns, cut, stream);
  });
}

}  // namespace treadle
