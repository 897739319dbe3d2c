// Code that the forward and backward float32 cluster kernels share. These kernels work like those
// of cluster/cluster.cuh, but the products use IEEE float32 fma on CUDA cores, and the weights are
// in registers. Weights that do not fit there are in shared memory, which then has room for fewer
// rows. Threads divide the block's outputs (kEach per thread) and K (the reduction dimension) among
// themselves. Their partial sums are added by shuffles within a warp, then through shared memory.
// The exchanged state is [row][K] floats.
#pragma once

#include "kernels/recurrent/cluster/cluster.cuh"

namespace treadle {

inline constexpr int kFp32Threads = 256, kFp32Warps = kFp32Threads / kWarp;

// The layout of a block, which has `outputs` outputs (sums over K) per row. A thread computes
// `each` of them. `all_k` is K of the whole layer. A stage has `arrays` arrays of [kRows, units]
// floats. `outgoing` is the number of floats per row that the block sends or stores.
template <int outputs, int each, int all_k, int units, int arrays, int outgoing>
struct ClusterFp32 {
  static constexpr int kEach = each;
  static constexpr int kGroups = outputs / each, kSplits = kFp32Threads / kGroups;
  static constexpr int kDepth = all_k / kSplits;                                // K per thread
  static constexpr int kWidth = kDepth % 4 == 0 ? 4 : kDepth % 2 == 0 ? 2 : 1;  // floats per load
  static constexpr int kRows = fp32_cluster_rows(kDepth * each);                // at most
  // The elements of K per thread whose weights are in registers. If others are in shared memory,
  // fewer are in registers than would fit, because loading the others also needs registers.
  static constexpr int kHeld = kDepth * each <= kFp32Weights ? kDepth : kFp32Weights / each - 4;
  static constexpr int kAhead = 6, kStages = 8;

  // Sizes and offsets in bytes.
  static constexpr int kStateBytes = kRows * all_k * 4;
  static constexpr int kOutgoingBytes = kRows * outgoing * 4;
  static constexpr int kStageBytes = arrays * kRows * units * 4;
  static constexpr int kState = 0, kSums = 2 * kStateBytes;
  static constexpr int kOutgoing = kSums + kFp32Warps * kRows * outputs * 4;
  static constexpr int kInput = kOutgoing + 2 * kOutgoingBytes;
  static constexpr int kWeights = kInput + kStages * kStageBytes;
  static constexpr int kBarriers = kWeights + (kDepth - kHeld) * each * kFp32Threads * 4;
  static constexpr int kSharedBytes = kBarriers + 16;
  static_assert(kGroups <= kWarp && kWarp % kGroups == 0 && all_k % kSplits == 0);
  static_assert(kHeld == kDepth || (kHeld % kWidth == 0 && each % 4 == 0));
};

// A thread's weights. Those of its first kHeld elements of K are in registers (the caller owns the
// array). The others are in shared memory, and are loaded for four outputs at a time.
template <class Layout>
struct Fp32Weights {
  float (&registers)[Layout::kEach][Layout::kHeld];
  float* shared;  // of all threads of the block

  __device__ __forceinline__ float* address(int output, int k) const {
    const int four = (k - Layout::kHeld) * (Layout::kEach / 4) + output / 4;
    return shared + (four * kFp32Threads + threadIdx.x) * 4 + output % 4;
  }
  __device__ __forceinline__ void set(int output, int k, float weight) const {
    if (k < Layout::kHeld) {
      registers[output][k < Layout::kHeld ? k : 0] = weight;
    } else {
      *address(output, k) = weight;
    }
  }
  // Adds to `sum` the weights of element k of K, multiplied by x.
  __device__ __forceinline__ void multiply(int k, float x, float (&sum)[Layout::kEach]) const {
    if (k < Layout::kHeld) {
#pragma unroll
      for (int o = 0; o < Layout::kEach; ++o) {
        sum[o] = fmaf(registers[o][k < Layout::kHeld ? k : 0], x, sum[o]);
      }
      return;
    }
#pragma unroll
    for (int o = 0; o < Layout::kEach / 4 * 4; o += 4) {
      const uint4 four = ptx::load16(ptx::shared_address(address(o, k)));
      const uint32_t bits[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[o + i] = fmaf(__uint_as_float(bits[i]), x, sum[o + i]);
    }
  }
};

// Loads a weight. If some weights are in shared memory, the compiler would keep the addresses of
// all weights in registers, and would spill. A plain load instead of __ldg, together with the
// caller's barriers, prevents that.
template <class Layout>
__device__ __forceinline__ float load_weight(const float* at) {
  return Layout::kHeld < Layout::kDepth ? *at : __ldg(at);
}

// Computes W x state for `rows` rows over the warp's slice of K, and stores it in
// sums[warp][row][output].
template <class Layout, int all_k, int outputs>
__device__ __forceinline__ void multiply_rows(const Fp32Weights<Layout>& weights,
                                              const float* state, float* sums, int rows) {
  const int thread = threadIdx.x, lane = thread % kWarp, warp = thread / kWarp;
  const int split = thread / Layout::kGroups, group = thread % Layout::kGroups;
  using Load = Vector<float, Layout::kWidth>;
  // The number of rows computed at a time. More rows hide the latency of loads and shuffles, but
  // need more registers.
  constexpr int kAtOnce = Layout::kDepth <= 12 ? 4 : 1;
#pragma unroll kAtOnce
  for (int r = 0; r < rows; ++r) {
    const float* at = state + r * all_k + split * Layout::kDepth;
    float sum[Layout::kEach] = {};
#pragma unroll
    for (int k = 0; k < Layout::kDepth; k += Layout::kWidth) {
      const Load x = *reinterpret_cast<const Load*>(at + k);
#pragma unroll
      for (int i = 0; i < Layout::kWidth; ++i) weights.multiply(k + i, x.value[i], sum);
    }
#pragma unroll
    for (int o = 0; o < Layout::kEach; ++o) {
#pragma unroll
      for (int step = Layout::kGroups; step < kWarp; step *= 2) {
        sum[o] += __shfl_xor_sync(~0u, sum[o], step);
      }
    }
    if (lane < Layout::kGroups) {
      float* to = sums + (warp * Layout::kRows + r) * outputs + group * Layout::kEach;
#pragma unroll
      for (int o = 0; o < Layout::kEach; ++o) to[o] = sum[o];
    }
  }
}

template <class Layout, int outputs>
__device__ __forceinline__ float sum_of_warps(const float* sums, int row, int output) {
  float parts[kFp32Warps];
#pragma unroll
  for (int w = 0; w < kFp32Warps; ++w) {
    parts[w] = sums[(w * Layout::kRows + row) * outputs + output];
  }
  return sum_in_pairs(parts);
}

#if TREADLE_CLUSTER_CODE
// Sends the block's part of the state to all blocks: `rows` rows of `sent` floats, which are
// `apart` floats apart here and `all` floats apart at the receiver.
template <int blocks, int sent, int all, int apart = sent>
__device__ __forceinline__ void send_rows(uint32_t outgoing, uint32_t state, uint32_t barrier,
                                          int rank, int rows) {
  // A warp sends to one block at a time, so that its 16-byte chunks are contiguous in that
  // block.
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int block = threadIdx.x / kWarp; block < blocks; block += kFp32Warps) {
    const uint32_t to = ptx::in_block(state, block) + rank * sent * 4;
    const uint32_t there = ptx::in_block(barrier, block);
#pragma unroll 1
    for (int chunk16 = lane; chunk16 < rows * (sent / 4); chunk16 += kWarp) {
      const int r = chunk16 / (sent / 4), quad = chunk16 % (sent / 4);
      ptx::send16(to + r * all * 4 + quad * 16, ptx::load16(outgoing + r * apart * 4 + quad * 16),
                  there);
    }
  }
}
#endif

// Stores the first `count` of four floats of a row. If `vector`, rows are aligned to 16 bytes and
// all four are stored.
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
