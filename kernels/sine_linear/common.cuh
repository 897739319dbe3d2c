// Code that the sine layer's kernels share: vector loads and stores, launch shapes, and functions
// that compute sine and cosine from the values that the forward pass saved.
#pragma once

#include "kernels/common/convert.cuh"
#include "kernels/common/fast_divide.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/math/sine_linear.h"
#include "kernels/sine_linear/args.h"

namespace treadle {

// The number of elements of T in 16 bytes, the widest access.
template <class T>
inline constexpr int kWide = 16 / sizeof(T);

// The columns of a group. In the products of the fused kernels, the columns of each group are
// permuted so that the four threads of a row have n = kWide consecutive columns each: column
// 4na + nb + 2c + d of the output is column 4na + 8c + 2b + d of the product.
template <class T>
inline constexpr int kGroup = 4 * kWide<T>;

template <class T, int kWidth>
__device__ __forceinline__ Vector<T, kWidth> load_at(const void* data, int64_t element) {
  return *reinterpret_cast<const Vector<T, kWidth>*>(static_cast<const T*>(data) + element);
}

template <class T, int kWidth>
__device__ __forceinline__ void store_at(void* data, int64_t element,
                                         const Vector<T, kWidth>& vector) {
  *reinterpret_cast<Vector<T, kWidth>*>(static_cast<T*>(data) + element) = vector;
}

template <class T, int kWidth>
__device__ __forceinline__ void store_rounded(void* data, int64_t element,
                                              const acc_t<T> (&values)[kWidth]) {
  Vector<T, kWidth> stored;
  narrow(values, stored);
  store_at(data, element, stored);
}

// Whether any |u| exceeds kNearPhase or is NaN.
template <class T, int kWidth>
__device__ __forceinline__ bool any_far(const acc_t<T> (&u)[kWidth]) {
  bool near = true;
#pragma unroll
  for (int e = 0; e < kWidth; ++e) near &= fabs(u[e]) <= math::kNearPhase<T>;
  return !near;
}

// The saved values of kWidth elements. The constructor loads only the values that the requested
// waves (sine, cosine) need.
template <class T, int kWidth, bool kSine, bool kCosine>
struct Kept {
  using Layer = math::SineLinear<T>;
  static constexpr bool kOutput = (kSine && Layer::template kReadsOutput<false>) ||
                                  (kCosine && Layer::template kReadsOutput<true>);
  static constexpr bool kPhase = (kSine && Layer::template kReadsPhase<false>) ||
                                 (kCosine && Layer::template kReadsPhase<true>);
  Vector<T, kWidth> output;
  Vector<typename Layer::phase_t, kWidth> phase;

  Kept() = default;
  __device__ __forceinline__ Kept(const void* outputs, const void* phases, int64_t element) {
    if constexpr (kOutput) output = load_at<T, kWidth>(outputs, element);
    if constexpr (kPhase) phase = load_at<typename Layer::phase_t, kWidth>(phases, element);
  }
};

// The sines of kWidth phases if kSine, and their cosines if kCosine.
template <class T, int kWidth, bool kSine, bool kCosine>
struct Waves {
  using Layer = math::SineLinear<T>;
  using Stored = Kept<T, kWidth, kSine, kCosine>;
  using acc = acc_t<T>;
  acc sine[kWidth], cosine[kWidth];

  __device__ __forceinline__ explicit Waves(const Stored& kept) {
    acc y[kWidth] = {};
    typename Layer::Phase p[kWidth] = {};
    if constexpr (Stored::kOutput) widen(kept.output, y);
    if constexpr (Stored::kPhase) {
#pragma unroll
      for (int e = 0; e < kWidth; ++e) p[e] = kept.phase.value[e];
    }
    // In double the saved phase is u itself, which may exceed kNearPhase. Other types save a 16-bit
    // phase, which never needs the far path.
    bool far = false;
    if constexpr (std::is_same_v<T, double>) far = any_far<T>(p);
    if (far) {
      compute<true>(y, p);
    } else {
      compute<false>(y, p);
    }
  }

 private:
  template <bool kFar>
  __device__ __forceinline__ void compute(const acc (&y)[kWidth],
                                          const typename Layer::Phase (&p)[kWidth]) {
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      if constexpr (kSine) sine[e] = Layer::template wave<false, kFar>(y[e], p[e]);
      if constexpr (kCosine) cosine[e] = Layer::template wave<true, kFar>(y[e], p[e]);
    }
  }
};

// Finds the row of a flat index into a [rows, columns] array.
struct Columns {
  int64_t numel, columns;
  FastDivide by_columns;
  bool narrow;

  Columns(int64_t rows, int64_t columns)
      : numel(rows * columns), columns(columns), narrow(numel < (int64_t{1} << 31)) {
    if (narrow) by_columns = FastDivide(static_cast<uint32_t>(columns));
  }

  __device__ int64_t row(int64_t element) const {
    return narrow ? by_columns(static_cast<uint32_t>(element)) : element / columns;
  }
};

inline bool aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

inline bool aligned(const SineLinearSlope& args) {
  return aligned(args.grad) && aligned(args.factor) && aligned(args.output) &&
         aligned(args.phase) && aligned(args.result);
}

inline LaunchShape sine_linear_shape(int64_t numel, int width) {
  const auto grid = ceil_div(numel, int64_t{width} * kBlockSize);
  return {static_cast<unsigned>(grid), 1, 1, kBlockSize, 0, width, width};
}

// With fewer elements than this, the threads do not fill the GPU. More threads with narrow accesses
// are then faster than fewer threads with wide ones.
inline constexpr int64_t kWideFrom = int64_t{1} << 17;

}  // namespace treadle
