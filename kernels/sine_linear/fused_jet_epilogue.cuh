// Epilogue of fused_jet.cu: computes the layer's output jet from accumulator tiles in registers.
#pragma once

#include "kernels/math/sine_jet.h"
#include "kernels/sine_linear/common.cuh"
#include "kernels/sine_linear/jet_args.h"

namespace treadle {
namespace {

constexpr int kTile = 64;  // points and rows of W in a tile

// The value part of n elements: the stored results, and the slopes.
template <class T>
struct JetValue {
  static constexpr int n = kWide<T>;
  float y[n], first[n], second[n];
  Vector<int16_t, n> phase;

  template <bool kFar>
  __device__ __forceinline__ void compute(const float (&u)[n], float omega) {
    using Layer = math::SineLinear<T>;
#pragma unroll
    for (int e = 0; e < n; ++e) {
      const auto result = Layer::template forward<kFar>(u[e]);
      y[e] = result.y;
      phase.value[e] = static_cast<int16_t>(result.phase);
      const math::SineSlopes<float> slopes(omega, result.y,
                                           math::jet_cosine<T, false>(result.y, result.phase));
      first[e] = slopes.first;
      second[e] = slopes.second;
    }
  }
};

// For large arguments and NaN. These are rare, so not inlining the function saves registers.
template <class T>
__device__ __noinline__ void compute_far(JetValue<T>& value, const float (&u)[kWide<T>],
                                         float omega) {
  value.template compute<true>(u, omega);
}

// Stores n elements of each part, from `element` of the output on. z has the products of each part,
// before the value's bias is added and before multiplication by omega.
template <class T, int d, JetSecond kSecond, int kParts>
__device__ __forceinline__ void store_jet(const SineJetForward& args, int64_t element,
                                          const float (&bias)[kWide<T>],
                                          float (&z)[kParts][kWide<T>]) {
  constexpr int n = kWide<T>;
  const float omega = static_cast<float>(args.omega);
  JetValue<T> value;
  float u[n];
#pragma unroll
  for (int e = 0; e < n; ++e) u[e] = omega * (z[0][e] + bias[e]);
  if (any_far<T>(u)) {
    JetValue<T> far;
    float copy[n];
#pragma unroll
    for (int e = 0; e < n; ++e) copy[e] = u[e];
    compute_far<T>(far, copy, omega);
    value = far;
  } else {
    value.template compute<false>(u, omega);
  }
  store_rounded<T>(args.output, element, value.y);
  if (args.phase != nullptr) store_at(args.phase, element, value.phase);
  float square[n] = {};
#pragma unroll
  for (int k = 1; k <= d; ++k) {
#pragma unroll
    for (int e = 0; e < n; ++e) {
      square[e] += z[k][e] * z[k][e];
      z[k][e] *= value.first[e];
    }
    store_rounded<T>(args.output, element + k * args.part_stride, z[k]);
  }
  if constexpr (kSecond == JetSecond::kLaplacian) {
#pragma unroll
    for (int e = 0; e < n; ++e) {
      z[d + 1][e] = value.first[e] * z[d + 1][e] + value.second[e] * square[e];
    }
    store_rounded<T>(args.output, element + (d + 1) * args.part_stride, z[d + 1]);
  }
}

// c has 64 points of each part, in the register layout of multiply_columns (wgmma_groups.cuh).
// fused_jet.cu loads W in an order that makes n columns of a thread consecutive.
template <class T, int d, JetSecond kSecond, int kParts>
__device__ __forceinline__ void store_jets_of(const SineJetForward& args, int64_t first_row,
                                              int first_column, const float (&c)[kParts][32]) {
  constexpr int n = kWide<T>;
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int64_t row = first_row + warp * 16 + lane / 4;
  const int columns = static_cast<int>(args.columns);
#pragma unroll
  for (int group = 0; group < kTile / kGroup<T>; ++group) {
    const int column = first_column + group * kGroup<T> + lane % 4 * n;
    if (column >= columns) return;
    float bias[n] = {};
    if (args.bias != nullptr) widen(load_at<T, n>(args.bias, column), bias);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (row + 8 * r >= args.rows) continue;
      float z[kParts][n];
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
#pragma unroll
        for (int e = 0; e < n; ++e) z[p][e] = c[p][4 * (n / 2 * group + e / 2) + 2 * r + e % 2];
      }
      store_jet<T, d, kSecond>(args, (row + 8 * r) * columns + column, bias, z);
    }
  }
}

}  // namespace
}  // namespace treadle
