// The sine layer forward on sm_90, behind its product: sines of a tile of sums that lie in
// registers (sine_linear_product.cu).
#pragma once

#include "kernels/sine_linear.cuh"

namespace treadle {
namespace {

constexpr int kTile = 128;  // rows of x, and of W
template <class T>
constexpr int kGroup = 4 * kWide<T>;  // columns that change their order among themselves
// Elements of which a thread asks together whether any is far, so that none waits alone.
constexpr int kTogether = 16;

// Large numbers and NaN. Rare, and so out of the way of the registers.
template <class T>
__device__ __noinline__ void store_far_sines(const SineLinearForward& args, int64_t element,
                                             const float* u) {
  constexpr int n = kWide<T>;
  Vector<T, n> y;
  Vector<int16_t, n> phase;
  for (int e = 0; e < n; ++e) {
    const auto result = math::SineLinear<T>::template forward<true>(u[e]);
    y.value[e] = Narrow<T>::from(result.y);
    phase.value[e] = static_cast<int16_t>(result.phase);
  }
  store_at(args.output, element, y);
  if (args.phase != nullptr) store_at(args.phase, element, phase);
}

template <class T>
struct Sines {
  static constexpr int n = kWide<T>;
  Vector<T, n> y;
  Vector<uint32_t, n / 2> phase;

  __device__ __forceinline__ explicit Sines(const float (&u)[n]) {
    using Layer = math::SineLinear<T>;
#pragma unroll
    for (int e = 0; e < n; e += 2) {
      const auto a = Layer::near(u[e]), b = Layer::near(u[e + 1]);
      y.value[e] = Narrow<T>::from(a.y);
      y.value[e + 1] = Narrow<T>::from(b.y);
      phase.value[e / 2] = __byte_perm(a.phase, b.phase, 0x5410);
      // Of half types half a turn is not to be kNaN.
      if constexpr (sizeof(T) == 2) phase.value[e / 2] = __vmaxs2(phase.value[e / 2], 0x80018001u);
    }
  }

  template <bool kSave>
  __device__ __forceinline__ void store(const SineLinearForward& args, int64_t element) const {
    store_at(args.output, element, y);
    if constexpr (kSave) {
      store_at(args.phase, element, reinterpret_cast<const Vector<int16_t, n>&>(phase));
    }
  }
};

// c is what multiply_tile (warpgroup.cuh) gives for two halves of the rows, and for columns in the
// order of sine_linear_product.cu: n of a thread follow each other.
template <class T, bool kSave>
__device__ __forceinline__ void store_sines_of(const SineLinearForward& args, int64_t first_row,
                                               int first_column, const float (&c)[2][64]) {
  constexpr int n = kWide<T>, kVectors = kTogether / n;
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int64_t row = first_row + warp * 16 + lane / 4;
  const int column = first_column + lane % 4 * n;
  const float omega = static_cast<float>(args.omega);
#pragma unroll
  for (int group = 0; group < kTile / kGroup<T>; ++group) {
    const int at = column + group * kGroup<T>;
    if (at >= args.columns) return;
    float bias[n] = {};
    if (args.bias != nullptr) widen(load_at<T, n>(args.bias, at), bias);
#pragma unroll
    for (int e = 0; e < n; ++e) bias[e] *= omega;
#pragma unroll
    for (int first = 0; first < 4; first += kVectors) {
      const auto row_of = [&](int v) {
        const int part = first + v;
        return row + part / 2 * (kTile / 2) + part % 2 * 8;
      };
      float u[kVectors][n];
      bool far = false;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const int part = first + v;
#pragma unroll
        for (int e = 0; e < n; ++e) {
          const int j = n / 2 * group + e / 2;
          u[v][e] = fmaf(omega, c[part / 2][4 * j + part % 2 * 2 + e % 2], bias[e]);
        }
        far |= any_far<T>(u[v]);
      }
      if (far) {
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          float copy[n];
#pragma unroll
          for (int e = 0; e < n; ++e) copy[e] = u[v][e];
          if (row_of(v) < args.rows) store_far_sines<T>(args, row_of(v) * args.columns + at, copy);
        }
        continue;
      }
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const Sines<T> found(u[v]);
        if (row_of(v) < args.rows) found.template store<kSave>(args, row_of(v) * args.columns + at);
      }
    }
  }
}

}  // namespace
}  // namespace treadle
