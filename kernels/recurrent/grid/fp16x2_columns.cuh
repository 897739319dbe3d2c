// The fma products of grid/fp16x2_backward.cuh, and the scales of the tensor-core products. Columns
// of W_hh are converted to fp16x2 (engine/fp16x2.cuh) like rows in grid/fp16x2_forward.cuh. The
// range of gradients is not known beforehand. So in each row of the batch, the gradients of all
// gates of 16 units (a span) share a power of two, which is sent with them. If a gradient of a pair
// of units is too large, the pair's highs are sent as kLargePair, and a reader that needs the pair
// loads it from grad_gates.
#pragma once

#include "kernels/recurrent/grid/fp16x2_terms.cuh"

namespace treadle {

// The biased exponent of the largest gradient of a row in a span is clamped to this range.
inline constexpr int kSplitGradLeast = 30, kSplitGradMost = 187;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800

// For each of the block's columns of W_hh, writes to shared memory the column's scale and whether
// fma multiplies it. All threads of the block must call this function.
template <class Cell, class L>
__device__ __forceinline__ void describe_columns(const PersistentBackward& args, int64_t d,
                                                 unsigned char* memory, int first_unit) {
  const uint32_t base = ptx::shared_address(memory);
  auto* const columns = reinterpret_cast<unsigned*>(memory + L::kColumns);
  const int64_t hidden = args.sizes.hidden, rows = L::kStateGates * hidden;
  const float* const weight = static_cast<const float*>(args.weight_hh) + d * rows * hidden;
  const int thread = static_cast<int>(threadIdx.x), unit = thread % L::kUnits;
  if (thread < L::kUnits) columns[thread] = 0;
  if (thread == 0) ptx::store4(base + L::kExact, 0);
  __syncthreads();
  uint32_t most = 0;
  if (first_unit + unit < hidden) {
    const float* const at = weight + first_unit + unit;
#pragma unroll 8
    for (int64_t k = thread / L::kUnits; k < rows; k += L::kThreads / L::kUnits) {
      most = larger(most, __ldg(at + k * hidden));
    }
  }
  atomicMax(columns + unit, most);
  __syncthreads();
  if (thread < L::kUnits) {
    const SplitRow split(__uint_as_float(columns[thread]));
    reinterpret_cast<float*>(columns)[thread] = split.scale;
    if (split.exact) atomicOr(reinterpret_cast<unsigned*>(memory + L::kExact), 1u << thread);
  }
  __syncthreads();
}

// The scale of a row's gradients in a span.
struct SplitSpan {
  int exponent;

  // `most` has the bits of the largest magnitude.
  __device__ __forceinline__ explicit SplitSpan(uint32_t most)
      : exponent(min(max(static_cast<int>(most >> 23), kSplitGradLeast), kSplitGradMost)) {}

  // The factor that makes the largest gradient less than 2^(kSplitTop + 1).
  __device__ __forceinline__ float factor() const {
    return __int_as_float((254 + kSplitTop - exponent) << 23);
  }
  // The exponent byte of 2^kSplitState / factor(). SplitRow's scale divides by 2^kSplitState,
  // because h is multiplied by that. Gradients are not, so this byte cancels the division.
  __device__ __forceinline__ uint32_t byte() const {
    return static_cast<uint32_t>(exponent - kSplitTop + kSplitState);
  }
};

__device__ __forceinline__ bool is_large_gradient(float x) {
  return (__float_as_uint(x) & 0x7fffffffu) >> 23 > kSplitGradMost;
}

// The products of a row of gradients with a pair of columns of W_hh. They are rarely needed, so
// this code is slow and uses few registers.
template <class Cell, class Layout>
struct GridSplitColumns {
  const PersistentBackward& args;
  const Group& group;
  const char* tile;    // in the exchange; sent in the previous step
  const float* grads;  // the row's gradients in that step: gate 0 of unit 0
  int unit, row;       // the first unit; the row in the tile

  __device__ __forceinline__ void multiply(float (&sum)[2]) const {
    const int64_t hidden = args.sizes.hidden;
    sum[0] = sum[1] = 0;
#pragma unroll 1
    for (int span = 0; span * 16 < hidden; ++span) {
      const uint32_t bytes = arrived4(tile + Layout::scale_of(span, row / 4));
      const int exponent = static_cast<int>(bytes >> row % 4 * 8 & 255) - 127 - kSplitState;
#pragma unroll 1
      for (int m = 0; m < Cell::kStateGates; ++m) {
        float part[2] = {};
#pragma unroll 1
        for (int pair = 0; pair < 8; ++pair) {
          const char* const at = tile + Layout::word_of(span * 8 + pair) + m * 512 + row * 64;
          const uint32_t highs = arrived4(at);
          const uint32_t lows = Layout::kWords == 2 ? arrived4(at + Layout::kLowAt) : 0;
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int64_t k = span * 16 + pair * 2 + i;
            if (k >= hidden) continue;
            const float grad = highs == kLargePair
                                   ? large(m, k)
                                   : joined(highs >> i * 16, lows >> i * 16, exponent);
            part[0] = fmaf(weight(m, k, 0), grad, part[0]);
            part[1] = fmaf(weight(m, k, 1), grad, part[1]);
          }
        }
        sum[0] += part[0], sum[1] += part[1];
      }
    }
  }

  // Loads a packet that MMA warps have already received.
  static __device__ __forceinline__ uint32_t arrived4(const char* at) {
    uint32_t x = ~0u;
    while (x == ~0u) x = load_word4(at);
    return x;
  }

  static __device__ __forceinline__ float joined(uint32_t high, uint32_t low, int exponent) {
    return fmaf(widen_bits<Half>(static_cast<uint16_t>(low)), 0x1p-11f,
                widen_bits<Half>(static_cast<uint16_t>(high))) *
           power_of_two(exponent);
  }

  __device__ __forceinline__ float weight(int m, int64_t k, int i) const {
    const int64_t hidden = args.sizes.hidden;
    if (unit + i >= hidden) return 0.0f;
    const float* const all = static_cast<const float*>(args.weight_hh) +
                             group.direction * Cell::kStateGates * hidden * hidden;
    return __ldg(all + (Cell::weight_block(m) * hidden + k) * hidden + unit + i);
  }

  // A gradient that was sent as kLargePair. Called after its packet has been read.
  __device__ __forceinline__ float large(int m, int64_t k) const {
    __threadfence();  // the sender stored the value before the packet
    return __ldcg(grads + m * args.sizes.hidden + k);
  }
};

#endif

}  // namespace treadle
