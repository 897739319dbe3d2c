// The backward pass of a jet through the sine layer on CUDA. One kernel computes grad_z, the
// gradient of z, and grad_bias, the sum of grad_z's value part over the points. A thread computes
// all parts of kWidth columns, one point at a time. Formula: kernels/math/sine_jet.h. Twin:
// kernels/sine_linear/cpu/jet.cpp.
#include "kernels/math/sine_jet.h"
#include "kernels/sine_linear/column_sums.cuh"
#include "kernels/sine_linear/launchers.h"

namespace treadle {
namespace {

// The number of coordinates that a thread loads before it uses them.
template <class T, JetSecond kSecond>
constexpr int kAtOnce = kSecond == JetSecond::kDiagonal || sizeof(T) == 4 ? 2 : 4;
// Resident blocks per SM, limited by registers, and blocks for a large input: one wave on the 132
// SMs of an H100 or H200.
template <class T>
constexpr int kResident = sizeof(T) == 4 ? 3 : 2;
template <class T>
constexpr int64_t kMaxBlocks = int64_t{132} * kResident<T>;

// s', s'' and 1 / s' of kWidth elements, where s is sin(omega z). s''' is -omega^2 s'.
template <class T, int kWidth>
struct Slopes {
  acc_t<T> first[kWidth], second[kWidth], inverse[kWidth];

  __device__ __forceinline__ Slopes(const SineJetBackward& args, int64_t element) {
    const Kept<T, kWidth, true, true> kept(args.output, args.phase, element);
    acc_t<T> y[kWidth] = {};
    typename math::SineLinear<T>::Phase phase[kWidth];
    if constexpr (Kept<T, kWidth, true, true>::kOutput) widen(kept.output, y);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) phase[e] = kept.phase.value[e];
    // In double the saved phase is u itself, which may exceed kNearPhase. Other types save a 16-bit
    // phase, which never needs the far path.
    bool far = false;
    if constexpr (std::is_same_v<T, double>) far = any_far<T>(phase);
    far ? compute<true>(args, y, phase) : compute<false>(args, y, phase);
  }

 private:
  template <bool kFar>
  __device__ __forceinline__ void compute(
      const SineJetBackward& args, const acc_t<T> (&y)[kWidth],
      const typename math::SineLinear<T>::Phase (&phase)[kWidth]) {
    const acc_t<T> omega = static_cast<acc_t<T>>(args.omega);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      const math::SineSlopes<acc_t<T>> slopes(
          omega, math::SineLinear<T>::template wave<false, kFar>(y[e], phase[e]),
          math::jet_cosine<T, kFar>(y[e], phase[e]));
      first[e] = slopes.first;
      second[e] = slopes.second;
      inverse[e] = acc_t<T>(1) / slopes.first;
    }
  }
};

// Computes and stores all parts of grad_z for kWidth elements. `of_value` is the value part of
// grad_z.
template <class T, int kWidth, JetSecond kSecond>
class Point {
 public:
  using acc = acc_t<T>;
  using Raw = Vector<T, kWidth>;

  __device__ __forceinline__ Point(const SineJetBackward& args, int64_t element)
      : args_(args), element_(element), stride_(args.rows * args.columns) {}

  __device__ __forceinline__ void run(acc (&of_value)[kWidth]) {
    constexpr int n = kAtOnce<T, kSecond>;
    const int d = static_cast<int>(args_.parts.coordinates);
    Raw of_first[n], outputs[n], of_second[n], seconds[n];
    // A Laplacian has a single second-derivative part, with index 0.
    const auto fetch_second = [&](int j, int part) {
      of_second[j] = load(args_.grad, part);
      seconds[j] = load(args_.grad_z, part);
    };
    const auto fetch = [&](int begin) {
#pragma unroll
      for (int j = 0; j < n; ++j) {
        if (begin + j >= d) continue;
        of_first[j] = load(args_.grad, 1 + begin + j);
        outputs[j] = load(args_.output, 1 + begin + j);
        if constexpr (kSecond == JetSecond::kDiagonal) fetch_second(j, 1 + d + begin + j);
      }
    };
    const Raw of_y = load(args_.grad, 0);
    fetch(0);
    if constexpr (kSecond == JetSecond::kLaplacian) fetch_second(0, 1 + d);
    const Slopes<T, kWidth> s(args_, element_);
    widen(of_y, of_value);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) of_value[e] *= s.first[e];
    acc square[kWidth] = {}, g2[kWidth] = {};
    if constexpr (kSecond == JetSecond::kLaplacian) {
      take_second(s, of_second[0], seconds[0], 1 + d, g2, of_value);
    }
    for (int begin = 0; begin < d; begin += n) {
      if (begin > 0) fetch(begin);
#pragma unroll
      for (int j = 0; j < n; ++j) {
        if (begin + j >= d) continue;
        if constexpr (kSecond == JetSecond::kDiagonal) {
          take_second(s, of_second[j], seconds[j], 1 + d + begin + j, g2, of_value);
        }
        take_first(s, of_first[j], outputs[j], 1 + begin + j, g2, square, of_value);
        if constexpr (kSecond == JetSecond::kDiagonal) add_squares(s, g2, square, of_value);
      }
    }
    if constexpr (kSecond == JetSecond::kLaplacian) add_squares(s, g2, square, of_value);
    store_rounded<T>(args_.grad_z, element_, of_value);
  }

 private:
  const SineJetBackward& args_;
  int64_t element_, stride_;

  __device__ __forceinline__ Raw load(const void* data, int part) const {
    return load_at<T, kWidth>(data, element_ + part * stride_);
  }
  __device__ __forceinline__ void store(int part, const acc (&values)[kWidth]) const {
    store_rounded<T>(args_.grad_z, element_ + part * stride_, values);
  }

  // Stores the gradient of a second-derivative part of z. Adds that part's contribution to the
  // gradient of the value, except for the term with squares.
  __device__ __forceinline__ void take_second(const Slopes<T, kWidth>& s, const Raw& grad,
                                              const Raw& second, int part, acc (&g2)[kWidth],
                                              acc (&of_value)[kWidth]) const {
    acc z[kWidth];
    widen(grad, g2);
    widen(second, z);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      of_value[e] += g2[e] * (s.second[e] * z[e]);
      z[e] = s.first[e] * g2[e];
    }
    store(part, z);
  }

  // g2 is the gradient of the second-derivative part that contains z's square.
  __device__ __forceinline__ void take_first(const Slopes<T, kWidth>& s, const Raw& grad,
                                             const Raw& output, int part, const acc (&g2)[kWidth],
                                             acc (&square)[kWidth], acc (&of_value)[kWidth]) const {
    acc g[kWidth], y[kWidth];
    widen(grad, g);
    widen(output, y);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      const acc z = y[e] * s.inverse[e];
      of_value[e] += g[e] * (s.second[e] * z);
      g[e] *= s.first[e];
      if constexpr (kSecond != JetSecond::kNone) {
        g[e] += 2 * s.second[e] * g2[e] * z;
        square[e] = (kSecond == JetSecond::kDiagonal ? acc(0) : square[e]) + z * z;
      }
    }
    store(part, g);
  }

  __device__ __forceinline__ void add_squares(const Slopes<T, kWidth>& s, const acc (&g2)[kWidth],
                                              const acc (&square)[kWidth],
                                              acc (&of_value)[kWidth]) const {
    const acc omega = static_cast<acc>(args_.omega);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      of_value[e] += g2[e] * (-(omega * omega) * s.first[e] * square[e]);
    }
  }
};

template <class T, int kWidth, JetSecond kSecond>
__global__ void __launch_bounds__(kBlockSize, kResident<T>)
    sine_jet_backward(const __grid_constant__ SineJetBackward args,
                      const __grid_constant__ Cut cut) {
  begin_kernel();
  const CutPlace place(cut, kWidth, args.columns);
  acc_t<T> sum[kWidth] = {};
  if (place.real && place.lane < cut.lanes) {
    const int rows = place.rows(cut, args.rows);
    for (int row = place.lane; row < rows; row += cut.lanes) {
      acc_t<T> of_value[kWidth];
      Point<T, kWidth, kSecond>(args, (place.first(cut) + row) * args.columns + place.column)
          .run(of_value);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) sum[e] += of_value[e];
    }
  }
  if (args.grad_bias == nullptr) return;
  store_sums<T>(sum, cut, place, args.columns, args.sums, args.grad_bias);
}

// Calls f(type, width, cut) for these arguments.
template <class F>
auto with_cut(const SineJetBackward& args, const F& f) {
  return visit_floating(args.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kWidest = kWide<T>;
    const bool wide = args.rows * args.columns >= kWideFrom && args.columns % kWidest == 0 &&
                      aligned(args.grad) && aligned(args.output) && aligned(args.phase) &&
                      aligned(args.grad_z);
    const Cut cut(args.rows, args.columns / (wide ? kWidest : 1), /*in_flight=*/1, kMaxBlocks<T>);
    return wide ? f(type, Constant<int, kWidest>{}, cut) : f(type, Constant<int, 1>{}, cut);
  });
}

}  // namespace

int64_t sine_jet_backward_parts(const SineJetBackward& args) {
  return with_cut(args, [](auto, auto, const Cut& cut) { return cut.parts; });
}

cudaError_t launch_sine_jet_backward(const SineJetBackward& args, cudaStream_t stream) {
  return with_cut(args, [&](auto type, auto width, const Cut& cut) {
    using T = typename decltype(type)::type;
    constexpr int kWidth = width.value;
    const auto go = [&](auto second) {
      return launch(sine_jet_backward<T, kWidth, second.value>, cut.shape(kWidth), stream, args,
                    cut);
    };
    cudaError_t error = cudaSuccess;
    if (args.parts.second == JetSecond::kNone) {
      error = go(Constant<JetSecond, JetSecond::kNone>{});
    } else if (args.parts.second == JetSecond::kLaplacian) {
      error = go(Constant<JetSecond, JetSecond::kLaplacian>{});
    } else {
      error = go(Constant<JetSecond, JetSecond::kDiagonal>{});
    }
    if (error != cudaSuccess || args.grad_bias == nullptr || cut.parts == 1) return error;
    return launch_sum_parts<T>(args.sums, args.grad_bias, args.columns, cut, stream);
  });
}

}  // namespace treadle
