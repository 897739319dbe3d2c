// Parts of the cluster kernels for float32 on tensor cores: the operands, the products, and the
// sums that need fma. cluster/fp16x2.h describes the layout and the tiles, cluster/cluster.cuh the
// exchange of h, and engine/fp16x2.cuh the two float16 terms of a float.
#pragma once

#include "kernels/recurrent/cluster/dense.cuh"
#include "kernels/recurrent/cluster/fp16x2.h"
#include "kernels/recurrent/engine/fp16x2.cuh"

namespace treadle {

// The four B operands that a warp multiplies for a chunk of 16 elements of K (the reduction
// dimension). They contain the highs of the large tile; the lows of the large tile; highs and lows
// of the small tile together; and the highs of the small tile. Up to three chunks are in registers,
// and later ones are loaded while products run.
template <class L>
struct SplitOperands {
  static constexpr int kRing = L::kChunks < 3 ? L::kChunks : 3;
  uint2 b[kRing][4];
  const uint32_t (&from)[4];

  __device__ __forceinline__ SplitOperands(const uint32_t (&from)[4], uint32_t parity)
      : from(from) {
#pragma unroll
    for (int k = 0; k < kRing; ++k) load(k, parity);
  }

  __device__ __forceinline__ void load(int chunk, uint32_t parity) {
    if (chunk >= L::kChunks) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < 2 ? L::kWide > 0 : L::kNarrow > 0)
        b[chunk % kRing][i] = ptx::load8(from[i] + parity + chunk * L::kTileBytes);
    }
  }

  // This lane's addresses in the state of even steps.
  static __device__ __forceinline__ void places(uint32_t (&from)[4], uint32_t state, int part,
                                                int lane) {
    const int g = lane / 4, q = lane % 4;
    const int wide = g % (L::kWide > 0 ? L::kWide : 1);
    const int narrow = L::kWide + g / 2 % (L::kNarrow > 0 ? L::kNarrow : 1);
    const uint32_t base = state + part * L::kChunks * L::kTileBytes + q * 8;
    from[0] = base + wide * 32, from[1] = from[0] + L::kHalfBytes;
    from[3] = base + narrow * 32, from[2] = from[3] + g % 2 * L::kHalfBytes;
  }
};

#if TREADLE_CLUSTER_CODE

// The sums of a warp. Tensor cores truncate their accumulators instead of rounding them, so the
// products of highs are added to `total` after every two chunks. `low` is the sum of the products
// with lows, and is 2^11 times too large.
template <class L>
struct SplitSums {
  float total[L::kStateGates][2][4], high[L::kStateGates][2][4], low[L::kStateGates][2][4];

  // Tile 0 is the large tile, and tile 1 is the small tile.
  static constexpr bool has(int tile) { return tile == 0 ? L::kWide > 0 : L::kNarrow > 0; }

  __device__ __forceinline__ void multiply(const SpreadWeights<L>& weights, uint4& next,
                                           SplitOperands<L>& operands, uint32_t parity) {
#pragma unroll
    for (int k = 0; k < L::kChunks; ++k) {
      const uint2(&b)[4] = operands.b[k % operands.kRing];
#pragma unroll
      for (int m = 0; m < L::kStateGates; ++m) {
        const uint4 first = weights.take((k * L::kStateGates + m) * 2, next);
        if (has(0)) add(high[m][0], first, b[0], k % 2 == 0), add(low[m][0], first, b[1], k == 0);
        if (has(1)) add(high[m][1], first, b[2], k % 2 == 0);
        const uint4 second = weights.take((k * L::kStateGates + m) * 2 + 1, next);
        if (has(0)) add(low[m][0], second, b[0], false);
        if (has(1)) add(low[m][1], second, b[3], k == 0);
        if (k % 2 == 0 && k + 1 < L::kChunks) continue;
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (!has(tile)) continue;
            float& sum = total[m][tile][i];
            sum = k < 2 ? high[m][tile][i] : sum + high[m][tile][i];
          }
        }
      }
      operands.load(k + operands.kRing, parity);
      // Without this, the compiler would compute all products first. Their sums would occupy
      // registers that weights could use.
      if (k % 2 == 1 && L::kItems == 1) __syncwarp();
    }
  }

  // This lane's sums. In the large tile they are those of units g and g + 8 in rows 2q and 2q + 1;
  // in the small tile they are those of the same units in row q.
  __device__ __forceinline__ uint4 wide(int m) const {
    const float (&t)[4] = total[m][0];
    const float (&l)[4] = low[m][0];
    const float sums[4] = {fmaf(l[0], kLow, t[0]), fmaf(l[1], kLow, t[1]), fmaf(l[2], kLow, t[2]),
                           fmaf(l[3], kLow, t[3])};
    return words_of(sums);
  }
  __device__ __forceinline__ float2 narrow(int m) const {
    const float (&t)[4] = total[m][1];
    const float (&l)[4] = low[m][1];
    return {fmaf(t[1] + l[1], kLow, t[0]), fmaf(t[3] + l[3], kLow, t[2])};
  }

 private:
  static constexpr float kLow = 0x1p-11f;

  static __device__ __forceinline__ void add(float (&sum)[4], const uint4& a, const uint2& b,
                                             bool first) {
    if (first) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i] = 0.0f;
    }
    ptx::multiply_add<Half>(sum, a.x, a.y, a.z, a.w, b.x, b.y);
  }
};

// Reads the h of unit k of a row. If fma multiplies the row (`bits`), h is stored as a float,
// otherwise as two float16 numbers.
template <class L>
__device__ __forceinline__ float state_of(uint32_t state, int row, int k, bool bits,
                                          float inverse) {
  const uint32_t at = state + k / 16 * L::kTileBytes + row * 32;
  if (bits) return ptx::load_float(at + k % 16 / 8 * L::kHalfBytes + k % 8 * 4);
  const float high = widen_bits<Half>(ptx::load2(at + k % 16 * 2));
  const float low = widen_bits<Half>(ptx::load2(at + L::kHalfBytes + k % 16 * 2));
  return fmaf(low, 0x1p-11f, high) * inverse;
}

template <class L>
__device__ __forceinline__ void put_state(uint32_t state, int row, int k, float h, bool bits,
                                          float power) {
  const uint32_t at = state + k / 16 * L::kTileBytes + row * 32;
  if (bits) {
    ptx::store4(at + k % 16 / 8 * L::kHalfBytes + k % 8 * 4, __float_as_uint(h));
    return;
  }
  const SplitFloat split(h * power);
  ptx::store2(at + k % 16 * 2, split.high);
  ptx::store2(at + L::kHalfBytes + k % 16 * 2, split.low);
}

// Computes by fma the sums that tensor cores cannot compute. For the rows `rows` of the batch these
// are the products with all rows of W_hh. For the other rows of the batch these are the products
// with the rows of W_hh that are outside the range of fp16x2. The warps of a group of units divide
// its sums among themselves. The new sums replace those of the first slice of K, and zeros replace
// the sums of the other slices.
template <class Cell, class L>
__device__ __forceinline__ void multiply_exactly(const float* weight, int64_t hidden,
                                                 int first_unit, uint32_t base, uint32_t parity,
                                                 unsigned rows, float inverse) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int part = warp % L::kParts, group = warp / L::kParts;
#pragma unroll 1
  for (int j = part; j < 16 * L::kStateGates; j += L::kParts) {
    const int m = j / 16, unit = group * 16 + j % 16;
    const int64_t u = first_unit + unit;
    if (u >= hidden) continue;
    const bool all = ptx::load4(base + L::kExact + m * 4) >> unit & 1;
    const float* of_unit = weight + (Cell::weight_block(m) * hidden + u) * hidden;
#pragma unroll 1
    for (int r = 0; r < L::kRows; ++r) {
      const bool bits = rows >> r & 1;
      if (!all && !bits) continue;
      float sum = 0.0f;
#pragma unroll 4
      for (int k = lane; k < hidden; k += kWarp) {
        sum = fmaf(__ldg(of_unit + k), state_of<L>(base + L::kState + parity, r, k, bits, inverse),
                   sum);
      }
#pragma unroll
      for (int step = 1; step < kWarp; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
      if (lane < L::kParts) {
        const uint32_t at = lane * L::kPartBytes + (group * L::kStateGates + m) * L::kSumBytes;
        ptx::store4(base + L::kSums + at + L::word_of(unit % 16, r) * 4,
                    lane == 0 ? __float_as_uint(sum) : 0);
      }
    }
  }
}

// What a warp sends in each step: all 16-byte pieces of the block's h, to some of the blocks.
template <class L>
struct SplitSends {
  static constexpr int kBlocks = L::kBlocks / L::kWarps, kPieces = L::kOwnBytes / 16;
  static constexpr int kTurns = shapes::ceil_div(kPieces, kWarp);
  uint32_t from, to[kBlocks], barrier[kBlocks];
  bool last;  // whether this lane sends kTurns pieces, not one fewer

  __device__ __forceinline__ SplitSends(uint32_t base, int rank) {
    const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = threadIdx.x % kWarp;
    from = base + L::kOutgoing + lane * 16;
    last = lane + (kTurns - 1) * kWarp < kPieces;
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      const uint32_t there = ptx::in_block(base, warp + i * L::kWarps);
      to[i] = there + L::kState + rank * L::kOwnBytes + lane * 16;
      barrier[i] = there + L::kBarriers + rank * L::kParts / L::kBlocks * 8;
    }
  }

  // Sends the block's h from its own buffer at `parity` to the buffers at `other` of these blocks.
  __device__ __forceinline__ void send(uint32_t parity, uint32_t other) const {
    uint4 pieces[kTurns];
#pragma unroll
    for (int t = 0; t < kTurns; ++t) pieces[t] = ptx::load16(from + parity + t * kWarp * 16);
#pragma unroll
    for (int t = 0; t < kTurns; ++t) {
      const bool any = t + 1 < kTurns || kPieces % kWarp == 0 || last;
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        ptx::send16_if(any, to[i] + other + t * kWarp * 16, pieces[t], barrier[i] + other);
      }
    }
  }
};

#endif

}  // namespace treadle
