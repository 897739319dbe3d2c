// Propagates a jet (jet_args.h) through the sine layer on CUDA. The products with the weight come
// from GEMMs or, if there are only a few inputs, from this kernel. Each thread computes all parts
// of the jet (the value and its derivatives) for one point and kWidth consecutive columns of the
// output. Formula: kernels/math/sine_jet.h. Twin: kernels/sine_linear/cpu/jet.cpp.
#include "kernels/math/sine_jet.h"
#include "kernels/sine_linear/common.cuh"
#include "kernels/sine_linear/launchers.h"

namespace treadle {
namespace {

// A special value of kInputs: the kernel reads the products instead of computing them.
constexpr int kGiven = -1;
// The number of parts that a thread loads before it uses the first one. This hides memory latency.
constexpr int kAtOnce = 4;

// Provides z, the product with the weight, of each part of the jet. z is computed from the inputs
// of one point and kWidth rows of W or, for kGiven, read from memory.
template <class T, int kWidth, int kInputs>
class Source {
 public:
  using acc = acc_t<T>;
  struct Raw {
    acc input[kInputs];
  };

  __device__ __forceinline__ Source(const SineJetForward& args, int64_t, int64_t row,
                                    int64_t column)
      : args_(args), x_(static_cast<const T*>(args.input) + row * args.row_stride) {
    // The rows of W for these columns are consecutive in memory.
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
      weight_[i] = load_at<T, kWidth>(args.weight, column * kInputs + i * kWidth);
    }
  }

  __device__ __forceinline__ Raw fetch(int64_t part) const {
    Raw raw;
    const T* x = x_ + part * args_.input_part_stride;
#pragma unroll
    for (int i = 0; i < kInputs; ++i) raw.input[i] = widen(x[i * args_.column_stride]);
    return raw;
  }

  __device__ __forceinline__ void value(acc (&z)[kWidth]) const { open(fetch(0), z); }

  __device__ __forceinline__ void open(const Raw& raw, acc (&z)[kWidth]) const {
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      z[e] = 0;
#pragma unroll
      for (int i = 0; i < kInputs; ++i) {
        const int at = e * kInputs + i;
        z[e] += raw.input[i] * widen(weight_[at / kWidth].value[at % kWidth]);
      }
    }
  }

 private:
  const SineJetForward& args_;
  const T* x_;
  Vector<T, kWidth> weight_[kInputs];
};

template <class T, int kWidth>
class Source<T, kWidth, kGiven> {
 public:
  using acc = acc_t<T>;
  using Raw = Vector<T, kWidth>;

  __device__ __forceinline__ Source(const SineJetForward& args, int64_t element, int64_t, int64_t)
      : args_(args), element_(element) {}

  __device__ __forceinline__ Raw fetch(int64_t part) const {
    return load_at<T, kWidth>(args_.rest, element_ + (part - 1) * args_.rest_stride);
  }

  __device__ __forceinline__ void value(acc (&z)[kWidth]) const {
    const auto product = load_at<acc, kWidth>(args_.value, element_);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) z[e] = product.value[e];
  }

  __device__ __forceinline__ void open(const Raw& raw, acc (&z)[kWidth]) const { widen(raw, z); }

 private:
  const SineJetForward& args_;
  int64_t element_;
};

// Stores the output and the phase of the value part, given u = omega (z + bias). Writes the first
// and second derivatives of the output with respect to z to `first` and `second`.
template <class T, int kWidth, bool kFar>
__device__ __forceinline__ void finish_value(const SineJetForward& args, int64_t element,
                                             const acc_t<T> (&u)[kWidth], acc_t<T> (&first)[kWidth],
                                             acc_t<T> (&second)[kWidth]) {
  using Layer = math::SineLinear<T>;
  using phase_t = typename Layer::phase_t;
  const acc_t<T> omega = static_cast<acc_t<T>>(args.omega);
  acc_t<T> y[kWidth];
  Vector<phase_t, kWidth> phase;
#pragma unroll
  for (int e = 0; e < kWidth; ++e) {
    const auto result = Layer::template forward<kFar>(u[e]);
    y[e] = result.y;
    phase.value[e] = static_cast<phase_t>(result.phase);
    const math::SineSlopes<acc_t<T>> slopes(omega, result.y,
                                            math::jet_cosine<T, kFar>(result.y, result.phase));
    first[e] = slopes.first;
    second[e] = slopes.second;
  }
  store_rounded<T>(args.output, element, y);
  if (args.phase != nullptr) store_at(args.phase, element, phase);
}

// Stores a second-derivative part of the jet: first * z + second * square. `square` is z_i^2 (z_i:
// z of the first derivative by coordinate i) or, for a Laplacian, the sum of z_i^2 over i.
template <class T, int kWidth, class From>
__device__ __forceinline__ void store_second(const SineJetForward& args, int64_t element,
                                             int64_t part, const From& from,
                                             const typename From::Raw& raw,
                                             const acc_t<T> (&first)[kWidth],
                                             const acc_t<T> (&second)[kWidth],
                                             const acc_t<T> (&square)[kWidth]) {
  acc_t<T> z[kWidth];
  from.open(raw, z);
#pragma unroll
  for (int e = 0; e < kWidth; ++e) z[e] = first[e] * z[e] + second[e] * square[e];
  store_rounded<T>(args.output, element + part * args.part_stride, z);
}

template <class T, int kWidth, int kInputs>
__global__ void __launch_bounds__(kBlockSize)
    sine_jet_forward(const __grid_constant__ SineJetForward args,
                     const __grid_constant__ Columns columns) {
  begin_kernel();
  using acc = acc_t<T>;
  using From = Source<T, kWidth, kInputs>;
  const int64_t element = (int64_t{blockIdx.x} * kBlockSize + threadIdx.x) * kWidth;
  if (element >= columns.numel) return;
  const int64_t row = columns.row(element), column = element - row * columns.columns;
  const From from(args, element, row, column);
  const bool laplacian = args.parts.second == JetSecond::kLaplacian;
  const bool diagonal = args.parts.second == JetSecond::kDiagonal;
  const int d = static_cast<int>(args.parts.coordinates);

  acc u[kWidth], first[kWidth], second[kWidth], square[kWidth] = {};
  typename From::Raw raw[kAtOnce], raw_second[kAtOnce];
  const auto fetch = [&](int begin) {
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (begin + j >= d) continue;
      raw[j] = from.fetch(1 + begin + j);
      if (diagonal) raw_second[j] = from.fetch(1 + d + begin + j);
    }
  };
  from.value(u);
  fetch(0);
  if (args.bias != nullptr) {
    const auto bias = load_at<T, kWidth>(args.bias, column);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) u[e] += widen(bias.value[e]);
  }
#pragma unroll
  for (int e = 0; e < kWidth; ++e) u[e] *= static_cast<acc>(args.omega);
  if (any_far<T>(u)) {
    finish_value<T, kWidth, true>(args, element, u, first, second);
  } else {
    finish_value<T, kWidth, false>(args, element, u, first, second);
  }

  for (int begin = 0; begin < d; begin += kAtOnce) {
    if (begin > 0) fetch(begin);
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (begin + j >= d) continue;
      acc z[kWidth];
      from.open(raw[j], z);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        square[e] = (diagonal ? acc(0) : square[e]) + z[e] * z[e];
        z[e] *= first[e];
      }
      const int part = 1 + begin + j;
      store_rounded<T>(args.output, element + part * args.part_stride, z);
      if (diagonal) {
        store_second<T>(args, element, part + d, from, raw_second[j], first, second, square);
      }
    }
  }
  if (laplacian) {
    store_second<T>(args, element, 1 + d, from, from.fetch(1 + d), first, second, square);
  }
}

template <class T, int kInputs>
cudaError_t launch_forward(const SineJetForward& args, cudaStream_t stream) {
  // If the kernel computes the products, registers limit occupancy, so a thread has at most 4
  // columns.
  constexpr int kWidest = kInputs == kGiven || kWide<T> < 4 ? kWide<T> : 4;
  const Columns columns(args.rows, args.columns);
  const bool wide = columns.numel >= kWideFrom && args.columns % kWidest == 0 &&
                    args.part_stride % kWidest == 0 && args.rest_stride % kWidest == 0 &&
                    aligned(args.value) && aligned(args.rest) && aligned(args.weight) &&
                    aligned(args.bias) && aligned(args.output) && aligned(args.phase);
  const auto go = [&](auto width) {
    return launch(sine_jet_forward<T, width.value, kInputs>,
                  sine_linear_shape(columns.numel, width.value), stream, args, columns);
  };
  return wide ? go(Constant<int, kWidest>{}) : go(Constant<int, 1>{});
}

}  // namespace

cudaError_t launch_sine_jet_forward(const SineJetForward& args, cudaStream_t stream) {
  static_assert(kMaxCoordinates == 4);
  return visit_floating(args.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (args.value != nullptr) return launch_forward<T, kGiven>(args, stream);
    switch (args.inputs) {
      case 1:
        return launch_forward<T, 1>(args, stream);
      case 2:
        return launch_forward<T, 2>(args, stream);
      case 3:
        return launch_forward<T, 3>(args, stream);
      default:
        return launch_forward<T, 4>(args, stream);
    }
  });
}

}  // namespace treadle
