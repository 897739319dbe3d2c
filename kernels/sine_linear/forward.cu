// The sine layer's forward pass on CUDA, after a GEMM or for a few coordinates, with one thread per
// kWidth consecutive elements of a row.
// Formula: kernels/math/sine_linear.h. Twin: kernels/sine_linear/cpu/sine_linear.cpp.
#include "kernels/sine_linear/common.cuh"
#include "kernels/sine_linear/launchers.h"

namespace treadle {
namespace {

// A special value of kInputs: the kernel reads the product instead of computing it.
constexpr int kGiven = -1;

// x W^T for kWidth columns from `column` on.
template <class T, int kWidth, int kInputs>
__device__ __forceinline__ void multiply(const SineLinearForward& args, int64_t row, int64_t column,
                                         acc_t<T> (&z)[kWidth]) {
  const T* x = static_cast<const T*>(args.input) + row * args.row_stride;
#pragma unroll
  for (int e = 0; e < kWidth; ++e) z[e] = 0;
  if constexpr (kInputs > 0) {
    acc_t<T> value[kInputs];
#pragma unroll
    for (int i = 0; i < kInputs; ++i) value[i] = widen(x[i * args.column_stride]);
    // The rows of W for these columns are consecutive in memory.
    Vector<T, kWidth> weight[kInputs];
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
      weight[i] = load_at<T, kWidth>(args.weight, column * kInputs + i * kWidth);
    }
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
#pragma unroll
      for (int i = 0; i < kInputs; ++i) {
        constexpr int n = kWidth;
        const int at = e * kInputs + i;
        z[e] += value[i] * widen(weight[at / n].value[at % n]);
      }
    }
  }
}

template <class T, int kWidth, bool kFar, bool kSave>
__device__ __forceinline__ void finish(const SineLinearForward& args, int64_t element,
                                       const acc_t<T> (&u)[kWidth]) {
  using Layer = math::SineLinear<T>;
  using phase_t = typename Layer::phase_t;
  Vector<T, kWidth> y;
  Vector<phase_t, kWidth> phase;
#pragma unroll
  for (int e = 0; e < kWidth; ++e) {
    const auto result = Layer::template forward<kFar>(u[e]);
    y.value[e] = Narrow<T>::from(result.y);
    phase.value[e] = static_cast<phase_t>(result.phase);
  }
  store_at(args.output, element, y);
  if constexpr (kSave) store_at(args.phase, element, phase);
}

template <class T, int kWidth, int kInputs, bool kSave>
__global__ void __launch_bounds__(kBlockSize)
    sine_linear_forward(const __grid_constant__ SineLinearForward args,
                        const __grid_constant__ Columns columns) {
  begin_kernel();
  using acc = acc_t<T>;
  const int64_t element = (int64_t{blockIdx.x} * kBlockSize + threadIdx.x) * kWidth;
  if (element >= columns.numel) return;
  acc u[kWidth];
  const int64_t row = columns.row(element), column = element - row * columns.columns;
  if constexpr (kInputs == kGiven) {
    const auto product = load_at<acc, kWidth>(args.product, element);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) u[e] = product.value[e];
  } else {
    multiply<T, kWidth, kInputs>(args, row, column, u);
  }
  if (args.bias != nullptr) {
    const auto bias = load_at<T, kWidth>(args.bias, column);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) u[e] += widen(bias.value[e]);
  }
  const acc omega = static_cast<acc>(args.omega);
#pragma unroll
  for (int e = 0; e < kWidth; ++e) u[e] *= omega;
  if (any_far<T>(u)) {
    finish<T, kWidth, true, kSave>(args, element, u);
  } else {
    finish<T, kWidth, false, kSave>(args, element, u);
  }
}

template <class T, int kInputs>
cudaError_t launch_forward(const SineLinearForward& args, cudaStream_t stream) {
  constexpr int kWidest = kWide<T>;
  const Columns columns(args.rows, args.columns);
  const bool wide = columns.numel >= kWideFrom && args.columns % kWidest == 0 &&
                    aligned(args.product) && aligned(args.weight) && aligned(args.bias) &&
                    aligned(args.output) && aligned(args.phase);
  const auto go = [&](auto width, auto save) {
    return launch(sine_linear_forward<T, width.value, kInputs, save.value>,
                  sine_linear_shape(columns.numel, width.value), stream, args, columns);
  };
  using Wide = Constant<int, kWidest>;
  using Single = Constant<int, 1>;
  if (args.phase != nullptr) {
    return wide ? go(Wide{}, Constant<bool, true>{}) : go(Single{}, Constant<bool, true>{});
  }
  return wide ? go(Wide{}, Constant<bool, false>{}) : go(Single{}, Constant<bool, false>{});
}

}  // namespace

cudaError_t launch_sine_linear_forward(const SineLinearForward& args, cudaStream_t stream) {
  return visit_floating(args.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (args.product != nullptr) return launch_forward<T, kGiven>(args, stream);
    switch (args.inputs) {
      case 0:
        return launch_forward<T, 0>(args, stream);
      case 1:
        return launch_forward<T, 1>(args, stream);
      case 2:
        return launch_forward<T, 2>(args, stream);
      case 3:
        return launch_forward<T, 3>(args, stream);
      default:
        return launch_forward<T, kMaxCoordinates>(args, stream);
    }
  });
}

}  // namespace treadle
