// The regime "cluster" in float32, for any cell: as cluster_forward.cuh and cluster_backward.cuh,
// but products are exact. Threads share the block's outputs by kOutputs and all K among them: each
// keeps its weights in registers, and sums over K meet first in a warp, then in shared memory.
// Rows lie one after the other in what is exchanged. A narrow layer has a block alone, which keeps
// all weights: it writes what it gives straight where it reads it at the next step.
#pragma once

#include "kernels/cluster.cuh"

namespace treadle {

inline constexpr int kFloatThreads = 256, kFloatWarps = kFloatThreads / kWarp;

// outputs [kOutputs a thread] of a block, K of them all; arrays [kRows, units] in a slice.
template <int outputs, int each, int all_k, int units, int arrays, int sent>
struct ClusterFloat {
  static constexpr int kEach = each;
  // At most; each unit of a row has a thread.
  static constexpr int kRows = kFloatThreads / units < 8 ? kFloatThreads / units : 8;
  static constexpr int kGroups = outputs / each, kSplits = kFloatThreads / kGroups;
  static constexpr int kDepth = all_k / kSplits;                                // of K, a thread
  static constexpr int kWidth = kDepth % 4 == 0 ? 4 : kDepth % 2 == 0 ? 2 : 1;  // floats a load
  static constexpr int kAhead = 6, kSlices = 8;

  // In bytes. `sent` floats of a row go to each block; one alone needs no copy to send.
  static constexpr bool kAlone = sent == all_k;
  static constexpr int kStateBytes = kRows * all_k * 4,
                       kStagedBytes = kAlone ? 0 : kRows * sent * 4;
  // Of 16 bytes, in a slice. Those of the first rows come first.
  static constexpr int kQuads = units / 4, kOfRow = arrays * kQuads, kPieces = kRows * kOfRow;
  static constexpr int kSliceBytes = kPieces * 16;
  static constexpr int kState = 0, kSums = 2 * kStateBytes;
  static constexpr int kStaged = kSums + kFloatWarps * kRows * outputs * 4;
  static constexpr int kInput = kStaged + 2 * kStagedBytes;
  static constexpr int kBarriers = kInput + kSlices * kSliceBytes;
  static constexpr int kSharedBytes = kBarriers + 16;
  static_assert(kGroups <= kWarp && kWarp % kGroups == 0 && all_k % kSplits == 0);
  static_assert(kEach * kDepth <= 192);  // weights that the registers of a thread hold
};

template <class Is>
struct Piece {
  int row, array, quad;

  __device__ __forceinline__ explicit Piece(int number)
      : row(number / Is::kOfRow),
        array(number / Is::kQuads % (Is::kOfRow / Is::kQuads)),
        quad(number % Is::kQuads) {}

  __device__ __forceinline__ int in_slice() const {
    return ((array * Is::kRows + row) * Is::kQuads + quad) * 16;
  }
};

// What a block gives at step s: alone, where the next step reads it.
template <class Is>
__device__ __forceinline__ float* given_at(unsigned char* memory, int s) {
  return reinterpret_cast<float*>(memory + (Is::kAlone ? Is::kState + (~s & 1) * Is::kStateBytes
                                                       : Is::kStaged + (s & 1) * Is::kStagedBytes));
}

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
      float* to = sums + (warp * Is::kRows + r) * outputs + group * Is::kEach;
#pragma unroll
      for (int o = 0; o < Is::kEach; ++o) to[o] = sum[o];
    }
  }
}

template <class Is, int outputs>
__device__ __forceinline__ float sum_of_warps(const float* sums, int row, int output) {
  float parts[kFloatWarps];
#pragma unroll
  for (int w = 0; w < kFloatWarps; ++w) {
    parts[w] = sums[(w * Is::kRows + row) * outputs + output];
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
