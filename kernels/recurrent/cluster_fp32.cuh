// The regime "cluster" in float32, for any cell: as cluster_forward.cuh and cluster_backward.cuh,
// but products are exact. Threads share the block's outputs by kOutputs and all K among them: each
// keeps its weights in registers, and sums over K meet first in a warp, then in shared memory.
// Rows lie one after the other in what is exchanged.
#pragma once

#include "kernels/cluster.cuh"

namespace treadle {

inline constexpr int kFloatThreads = 256, kFloatWarps = kFloatThreads / kWarp, kFloatRows = 8;

// outputs [kOutputs a thread] of a block, K of them all; arrays [kFloatRows, units] in a slice.
template <int outputs, int each, int all_k, int units, int arrays, int sent>
struct ClusterFloat {
  static constexpr int kEach = each;
  static constexpr int kGroups = outputs / each, kSplits = kFloatThreads / kGroups;
  static constexpr int kDepth = all_k / kSplits;                                // of K, a thread
  static constexpr int kWidth = kDepth % 4 == 0 ? 4 : kDepth % 2 == 0 ? 2 : 1;  // floats a load
  static constexpr int kAhead = 6, kSlices = 8;

  // In bytes. `sent` floats of a row go to each block.
  static constexpr int kStateBytes = kFloatRows * all_k * 4, kStagedBytes = kFloatRows * sent * 4;
  static constexpr int kSliceBytes = arrays * kFloatRows * units * 4;
  static constexpr int kState = 0, kSums = 2 * kStateBytes;
  static constexpr int kStaged = kSums + kFloatWarps * kFloatRows * outputs * 4;
  static constexpr int kInput = kStaged + 2 * kStagedBytes;
  static constexpr int kBarriers = kInput + kSlices * kSliceBytes;
  static constexpr int kSharedBytes = kBarriers + 16;
  static_assert(kGroups <= kWarp && kWarp % kGroups == 0 && all_k % kSplits == 0);
};

// Products of all rows with this thread's weights, summed over the warp's part of K.
template <class Is, int all_k, int outputs>
__device__ __forceinline__ void multiply_rows(const float (&weights)[Is::kEach][Is::kDepth],
                                              const float* state, float* sums, int rows) {
  const int thread = threadIdx.x, lane = thread % kWarp, warp = thread / kWarp;
  const int split = thread / Is::kGroups, group = thread % Is::kGroups;
  using Load = Vector<float, Is::kWidth>;
  constexpr int kAtOnce = Is::kDepth <= 12 ? 4 : 1;  // rows, where registers allow
#pragma unroll kAtOnce
  for (int r = 0; r < rows; ++r) {
    const float* at = state + r * all_k + split * Is::kDepth;
    float sum[Is::kEach] = {};
#pragma unroll
    for (int k = 0; k < Is::kDepth; k += Is::kWidth) {
      const Load x = *reinterpret_cast<const Load*>(at + k);
#pragma unroll
      for (int i = 0; i < Is::kWidth; ++i) {
#pragma unroll
        for (int o = 0; o < Is::kEach; ++o) sum[o] = fmaf(weights[o][k + i], x.value[i], sum[o]);
      }
    }
#pragma unroll
    for (int o = 0; o < Is::kEach; ++o) {
#pragma unroll
      for (int step = Is::kGroups; step < kWarp; step *= 2) {
        sum[o] += __shfl_xor_sync(~0u, sum[o], step);
      }
    }
    if (lane < Is::kGroups) {
      float* to = sums + (warp * kFloatRows + r) * outputs + group * Is::kEach;
#pragma unroll
      for (int o = 0; o < Is::kEach; ++o) to[o] = sum[o];
    }
  }
}

template <int outputs>
__device__ __forceinline__ float sum_of_warps(const float* sums, int row, int output) {
  float parts[kFloatWarps];
#pragma unroll
  for (int w = 0; w < kFloatWarps; ++w) {
    parts[w] = sums[(w * kFloatRows + row) * outputs + output];
  }
  return sum_in_pairs(parts);
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
// 16 bytes of what this block gives, to all blocks; `sent` floats of a row from each, in rows of
// `all` floats.
template <int blocks, int sent, int all>
__device__ __forceinline__ void send_rows(uint32_t staged, uint32_t state, uint32_t barrier,
                                          int rank, int rows) {
  // A warp sends to one block at a time, to which its pieces are next to each other.
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int block = threadIdx.x / kWarp; block < blocks; block += kFloatWarps) {
    const uint32_t to = ptx::in_block(state, block) + rank * sent * 4;
    const uint32_t there = ptx::in_block(barrier, block);
#pragma unroll 1
    for (int piece = lane; piece < rows * (sent / 4); piece += kWarp) {
      const int r = piece / (sent / 4), quad = piece % (sent / 4);
      ptx::send16(to + r * all * 4 + quad * 16, ptx::load16(staged + piece * 16), there);
    }
  }
}
#endif

// Four floats of a row, or as many as there are.
__device__ __forceinline__ void store_floats_of(float* at, const float* from, int count,
                                                bool vector) {
  if (vector) {
    *reinterpret_cast<float4*>(at) = *reinterpret_cast<const float4*>(from);
    return;
  }
  for (int i = 0; i < 4; ++i) {
    if (i < count) at[i] = from[i];
  }
}

}  // namespace treadle
