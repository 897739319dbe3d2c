// What a block of cluster_split_forward.cuh does before the first step.
#pragma once

#include "kernels/recurrent/cluster_split.cuh"

namespace treadle {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// To shared memory: of each row of W_hh that is the block's, its bias and scale, and whether fma
// multiplies it. By all threads.
template <class Cell, class L>
__device__ __forceinline__ void describe_rows(const PersistentForward& args, int64_t d,
                                              const float* weight, bool vector,
                                              unsigned char* memory, int first_unit) {
  const uint32_t base = ptx::shared_address(memory);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t hidden = args.sizes.hidden;
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

// Puts h0 of `count` rows into the state of parity 0, and zeros of the others. The rows, in bits,
// that are too large to be split: fma multiplies those, which is slow. By all threads, and each
// block of a cluster finds the same.
template <class L>
__device__ __forceinline__ unsigned put_first_states(const float* h0, int count, int hidden,
                                                     uint32_t base) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const auto each = [&](const auto& f) {
    for (int e = threadIdx.x; e < L::kRows * L::kHidden; e += L::kThreads) {
      const int r = e / L::kHidden, k = e % L::kHidden;
      f(r, k, r < count && k < hidden ? __ldg(h0 + int64_t{r} * hidden + k) : 0.0f);
    }
  };
  unsigned own = 0, exact = 0;
  each([&](int r, int, float h) {
    if (fabsf(h) > kSplitLargest) own |= 1u << r;
  });
  own = __reduce_or_sync(~0u, own);
  if (lane == 0) ptx::store4(base + L::kSums + warp * 4, own);
  __syncthreads();
  for (int w = 0; w < L::kWarps; ++w) exact |= ptx::load4(base + L::kSums + w * 4);
  const float power = power_of_two(kSplitState);
  each([&](int r, int k, float h) {
    put_state<L>(base + L::kState, r, k, h, exact >> r & 1, power);
  });
  return exact;
}

#endif

}  // namespace treadle
