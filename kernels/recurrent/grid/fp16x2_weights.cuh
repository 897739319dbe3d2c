// An MMA warp's part of W_hh in the float32 grid kernels, as fragments of float16 numbers. Some are
// in registers, the others in shared memory.
#pragma once

#include "kernels/recurrent/grid/grid.cuh"

namespace treadle {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800

template <class Layout>
struct GridSplitWeights {
  static constexpr int kAhead = 2;
  static_assert(Layout::kInShared % kAhead == 0);

  uint32_t weights[Layout::kInRegisters * 4] = {};
  uint4 ahead[kAhead];  // the next fragments from shared memory
  uint32_t in_shared;

  __device__ __forceinline__ explicit GridSplitWeights(uint32_t base)
      : in_shared(base + Layout::kWeights + threadIdx.x / kWarp * (Layout::kInShared * 512) +
                  threadIdx.x % kWarp * 16) {
    keep(in_shared);
  }

  // Fragments in shared memory are interleaved with the others.
  static constexpr __device__ __forceinline__ int shared_before(int f) {
    return f * Layout::kInShared / Layout::kFragments;
  }
  static constexpr __device__ __forceinline__ bool shared(int f) {
    return shared_before(f + 1) > shared_before(f);
  }

  __device__ __forceinline__ void put(int f, const uint4& of) {
    if (shared(f)) {  // each lane reads only what it has stored
      ptx::store16(in_shared + shared_before(f) * 512, of);
    } else {
      uint32_t* const to = weights + (f - shared_before(f)) * 4;
      to[0] = of.x, to[1] = of.y, to[2] = of.z, to[3] = of.w;
    }
  }

  // Must be called after the last put() and before the first take().
  __device__ __forceinline__ void ask_first() {
    if constexpr (Layout::kInShared > 0) {
#pragma unroll
      for (int n = 0; n < kAhead; ++n) ahead[n] = ptx::load16(in_shared + n * 512);
    }
  }

  // Returns fragment f. If it is in shared memory, this loads the fragment that will be taken from
  // there kAhead such fragments later.
  __device__ __forceinline__ uint4 take(int f) {
    if constexpr (Layout::kInShared > 0) {
      if (shared(f)) {
        const int n = shared_before(f);
        const uint4 of = ahead[n % kAhead];
        ahead[n % kAhead] = ptx::load16(in_shared + (n + kAhead) % Layout::kInShared * 512);
        return of;
      }
    }
    const uint32_t* const w = weights + (f - shared_before(f)) * 4;
    return {w[0], w[1], w[2], w[3]};
  }
};

#endif

}  // namespace treadle
