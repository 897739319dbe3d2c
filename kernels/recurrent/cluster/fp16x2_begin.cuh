// The setup of a block of cluster/fp16x2_forward.cuh before the first step.
#pragma once

#include "kernels/recurrent/cluster/fp16x2.cuh"

namespace treadle {

#if TREADLE_CLUSTER_CODE

// Writes the first h of `count` rows, first(row, unit), to the buffer of even steps, and zeros for
// the other rows. Returns a bit for each row whose h is too large for fp16x2. Such rows are
// multiplied by fma, which is slow. All threads must call this function, and all blocks of a
// cluster get the same result.
template <class L, class First>
__device__ __forceinline__ unsigned put_first_states(const First& first, int count, int hidden,
                                                     uint32_t base) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const auto each = [&](const auto& f) {
    for (int e = threadIdx.x; e < L::kRows * L::kHidden; e += L::kThreads) {
      const int r = e / L::kHidden, k = e % L::kHidden;
      f(r, k, r < count && k < hidden ? first(r, k) : 0.0f);
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
