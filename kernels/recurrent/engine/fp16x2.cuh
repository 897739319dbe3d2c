// Float32 products on tensor cores. A float is represented by two float16 numbers, high and low, as
// (high + 2^-11 low) times a power of two. The product of two floats is computed as
// high high + 2^-11 (high low + low high), without low low. Tensor cores do not round products of
// float16 numbers.
#pragma once

#include "kernels/recurrent/engine/persistent.cuh"

namespace treadle {

// The weights of a row of W_hh are multiplied by the power of two that brings the largest magnitude
// into the range from 2^14 to 2^15. Then the float16 rounding of `low` loses at most 2^-50 of the
// largest weight. If the exponent of the largest weight is not between kSplitLeast and kSplitMost,
// or the weight is not finite, the row is multiplied by fma.
inline constexpr int kSplitTop = 14, kSplitLeast = -60, kSplitMost = 15;

// h is multiplied by 2^kSplitState. If its magnitude exceeds kSplitLargest, fma is used instead.
inline constexpr int kSplitState = 12;
inline constexpr float kSplitLargest = 15.0f;

// 2^n, n between -126 and 127.
__device__ __forceinline__ float power_of_two(int n) { return __int_as_float((n + 127) << 23); }

// Represents x as high + 2^-11 low, where both are float16. |x| must be below 2^16, unless x is
// NaN.
struct SplitFloat {
  uint16_t high, low;

  __device__ __forceinline__ explicit SplitFloat(float x) {
    const Half first = Narrow<Half>::from(x);
    high = first.bits;
    low = Narrow<Half>::from((x - widen(first)) * 2048.0f).bits;
  }
};

// The fp16x2 scale of a row of W_hh, from the exponent of its largest magnitude. `exact` means that
// the row is outside the range of fp16x2, so fma computes its sums.
struct SplitRow {
  float scale;  // multiplies the sums of products with 2^kSplitState h
  bool exact;

  __device__ __forceinline__ explicit SplitRow(float largest) {
    const int exponent = (__float_as_int(largest) >> 23) - 127;  // 128 for inf and NaN
    exact = largest != 0.0f && !(exponent >= kSplitLeast && exponent <= kSplitMost);
    const bool zeros = exact || largest == 0.0f;
    scale = zeros ? 1.0f : power_of_two(exponent - kSplitTop - kSplitState);
  }

  // The factor by which weights are multiplied, from the scale of their sums.
  static __device__ __forceinline__ float factor_of(float scale) {
    return __int_as_float((254 << 23) - __float_as_int(scale)) * power_of_two(-kSplitState);
  }
};

// The bits of the larger magnitude; NaN counts as larger than inf.
__device__ __forceinline__ uint32_t larger(uint32_t most, float x) {
  const uint32_t magnitude = __float_as_uint(x) & 0x7fffffffu;
  return magnitude > most ? magnitude : most;
}

// The highs and lows of four floats.
struct SplitFour {
  uint2 high, low;

  __device__ __forceinline__ SplitFour(float4 x, float factor) {
    const SplitFloat a(x.x * factor), b(x.y * factor), c(x.z * factor), d(x.w * factor);
    high = {word(a.high, b.high), word(c.high, d.high)};
    low = {word(a.low, b.low), word(c.low, d.low)};
  }

 private:
  static __device__ __forceinline__ uint32_t word(uint16_t a, uint16_t b) {
    return uint32_t{a} | uint32_t{b} << 16;
  }
};

// weight_hh_of() returns W_hh of a direction. in_fours() tells whether its rows can be loaded four
// floats at a time.
template <class Cell>
__device__ __forceinline__ const float* weight_hh_of(const PersistentForward& args, int64_t d) {
  return static_cast<const float*>(args.weight_hh) +
         d * Cell::kStateGates * args.sizes.hidden * args.sizes.hidden;
}
__device__ __forceinline__ bool in_fours(const float* weight, int64_t hidden) {
  return hidden % 4 == 0 && reinterpret_cast<uintptr_t>(weight) % 16 == 0;
}

// Loads four floats of a row; elements from `count` on are zeros. `vector` means that `at` is
// aligned to 16 bytes.
__device__ __forceinline__ float4 load_four_floats(const float* at, int64_t count, bool vector) {
  if (count >= 4 && vector) return __ldg(reinterpret_cast<const float4*>(at));
  float x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = i < count ? __ldg(at + i) : 0.0f;
  return {x[0], x[1], x[2], x[3]};
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800

// For each of the block's rows of W_hh, writes to shared memory the row's bias, its scale, and
// whether fma multiplies it. All threads of the block must call this function.
template <class Cell, class L>
__device__ __forceinline__ void describe_rows(const PersistentForward& args, int64_t d,
                                              unsigned char* memory, int first_unit) {
  const uint32_t base = ptx::shared_address(memory);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t hidden = args.sizes.hidden;
  const float* const weight = weight_hh_of<Cell>(args, d);
  const bool vector = in_fours(weight, hidden);
  if (threadIdx.x < 4) ptx::store4(base + L::kExact + threadIdx.x * 4, 0);
  __syncthreads();
#pragma unroll 4
  for (int e = warp; e < L::kGates * L::kUnits; e += L::kWarps) {
    const int m = e / L::kUnits;
    const int64_t u = first_unit + e % L::kUnits;
    uint32_t most = 0;
    if (u < hidden && m < L::kStateGates) {
      const float* row = weight + (Cell::weight_block(m) * hidden + u) * hidden;
#pragma unroll
      for (int i = 0; i < L::kHidden / 128; ++i) {
        const int64_t k = i * 128 + lane * 4;
        const float4 x = load_four_floats(row + k, hidden - k, vector);
        most = larger(larger(larger(larger(most, x.x), x.y), x.z), x.w);
      }
    }
    const SplitRow split(__uint_as_float(__reduce_max_sync(~0u, most)));
    if (lane == 0) {
      const float bias = u < hidden ? bias_of<Cell, float>(args, d, m, u) : 0.0f;
      ptx::store_floats(base + L::kBias + e * 8, bias, split.scale);
      if (split.exact) {
        atomicOr(reinterpret_cast<unsigned*>(memory + L::kExact) + m, 1u << e % L::kUnits);
      }
    }
  }
  __syncthreads();
}

#endif

}  // namespace treadle
