// What the sine layer's kernels share: vectors of a row, and how many threads there are.
#pragma once

#include "kernels/convert.cuh"
#include "kernels/launch.cuh"
#include "kernels/math/sine_linear.h"

namespace treadle {

// Elements that an access of 16 bytes has.
template <class T>
inline constexpr int kWide = 16 / sizeof(T);

template <class T, int kWidth>
__device__ __forceinline__ Vector<T, kWidth> load_at(const void* data, int64_t element) {
  return *reinterpret_cast<const Vector<T, kWidth>*>(static_cast<const T*>(data) + element);
}

template <class T, int kWidth>
__device__ __forceinline__ void store_at(void* data, int64_t element,
                                         const Vector<T, kWidth>& vector) {
  *reinterpret_cast<Vector<T, kWidth>*>(static_cast<T*>(data) + element) = vector;
}

// Or NaN.
template <class T, int kWidth>
__device__ __forceinline__ bool any_far(const acc_t<T> (&u)[kWidth]) {
  bool near = true;
#pragma unroll
  for (int e = 0; e < kWidth; ++e) near &= fabs(u[e]) <= math::kNearPhase<T>;
  return !near;
}

inline bool aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

inline LaunchShape sine_linear_shape(int64_t numel, int width) {
  const auto grid = ceil_div(numel, int64_t{width} * kBlockSize);
  return {static_cast<unsigned>(grid), 1, 1, kBlockSize, 0, width, width};
}

// Below this many elements the chip is not filled, and more threads beat wider accesses.
inline constexpr int64_t kWideFrom = int64_t{1} << 17;

}  // namespace treadle
