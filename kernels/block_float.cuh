// The regime "cluster" in float32 for layers so narrow that one block keeps all weights, for any
// cell; products are exact. Nothing is exchanged between blocks, so a step is bound by what its
// warps wait for. A warp has some units whole, all their gates in all rows, and four lanes share
// their sums over K: they add them up among themselves, after which each lane has one unit of one
// row. What it computes stays in its registers but for what all warps multiply at the next step,
// for which they meet once a step.
#pragma once

#include "kernels/cluster.cuh"

namespace treadle {

inline constexpr int kBlockFloatThreads = 256;

// `made` numbers of a unit are given at each step, and `arrays` taken; K of all units, `sums` a
// unit.
template <int units, int sums, int all_k, int arrays>
struct BlockFloat {
  static constexpr int kSharers = 4;                                   // lanes that share K
  static constexpr int kUnits = units / (kBlockFloatThreads / kWarp);  // of a warp
  static constexpr int kOwn = kUnits / (kWarp / kSharers);             // of four lanes
  static constexpr int kRows = kWarp / kUnits;                         // at most
  static constexpr int kSums = sums, kArrays = arrays;
  static constexpr int kDepth = all_k / kSharers;
  static constexpr int kParts = sums * kOwn > 2 ? 1 : 4 / kOwn;  // chains of each sum
  // So far apart that what a warp gives at once lies in different banks.
  static constexpr int kRowFloats = all_k + kUnits;
  static constexpr int kAhead = 7, kSlots = 8;  // steps; one is read while one is overwritten

  static constexpr int kStateFloats = kRows * kRowFloats;
  static constexpr int kSlotFloats = arrays * kBlockFloatThreads;
  static constexpr int kSharedBytes = (2 * kStateFloats + kSlots * kSlotFloats) * 4;
  static_assert(kOwn * kRows == kSharers && kDepth % 4 == 0);
  static_assert(sums * kOwn * kDepth <= 192);  // weights that the registers of a thread hold
};

// This thread's place.
template <class Is>
struct BlockThread {
  int share, first_unit;  // its part of K; the first unit of its four lanes
  int unit, row;          // its own

  __device__ __forceinline__ BlockThread() {
    const int lane = threadIdx.x % kWarp;
    share = lane % Is::kSharers;
    first_unit =
        static_cast<int>(threadIdx.x) / kWarp * Is::kUnits + lane / Is::kSharers * Is::kOwn;
    unit = first_unit + share % Is::kOwn;
    row = share / Is::kOwn;
  }
};

// The K of a thread's i-th weight, behind that of its first: four lanes read 64 bytes.
__device__ __forceinline__ constexpr int block_k(int i) { return i / 4 * 16 + i % 4; }

// A row of the batch from step to step, in the order in which they are computed.
struct BlockRow {
  bool backward;      // in time
  int first, length;  // of its steps, and how many

  __device__ __forceinline__ BlockRow(const GroupRows& rows, int row, int steps, bool real,
                                      bool backward_)
      : backward(backward_), length(real ? rows.length(row, steps) : 0) {
    first = backward ? steps - length : 0;
  }
  __device__ __forceinline__ bool runs(int s) const {
    return static_cast<unsigned>(s - first) < static_cast<unsigned>(length);
  }
};

// By how many rows of S the next step lies behind this one, for all rows. Without branches: a step
// waits for one result after the other, between which there is time for this.
__device__ __forceinline__ int rows_to_next(const PersistentSizes& sizes, bool backward, int s) {
  const int last = static_cast<int>(sizes.steps) - 1;
  const int64_t* const at = sizes.starts + (backward ? last - s - 1 : s);
  const bool any = s < last, packed = sizes.starts != nullptr && any;
  const int64_t here = packed ? __ldg(at) : 0, next = packed ? __ldg(at + 1) : 0;
  const int rows = packed ? static_cast<int>(next - here) : static_cast<int>(sizes.batch);
  return backward ? -rows : rows;
}

// Of four lanes each gets the sum over them of its own one of four numbers.
__device__ __forceinline__ float sum_of_own(const float (&x)[4], int share) {
  const bool upper = (share & 2) != 0, odd = (share & 1) != 0;
  const float a = (upper ? x[2] : x[0]) + __shfl_xor_sync(~0u, upper ? x[0] : x[2], 2);
  const float b = (upper ? x[3] : x[1]) + __shfl_xor_sync(~0u, upper ? x[1] : x[3], 2);
  return (odd ? b : a) + __shfl_xor_sync(~0u, odd ? a : b, 1);
}

// W_hh's products with what the last step gave, of this thread's unit and row. Sums of a long K are
// of `kParts` each, so that additions need not wait for each other.
template <class Is>
__device__ __forceinline__ void multiply_state(
    const float (&weights)[Is::kSums][Is::kOwn][Is::kDepth], const float* state, int rows,
    const BlockThread<Is>& thread, float (&found)[Is::kSums]) {
  float sums[Is::kSums][Is::kSharers] = {};
#pragma unroll
  for (int r = 0; r < Is::kRows; ++r) {
    if (r > 0 && r >= rows) break;
    const float* at = state + r * Is::kRowFloats + thread.share * 4;
    float parts[Is::kSums][Is::kOwn][Is::kParts] = {};
#pragma unroll
    for (int i = 0; i < Is::kDepth; i += 4) {
      const auto x = *reinterpret_cast<const Vector<float, 4>*>(at + i * 4);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
#pragma unroll
        for (int m = 0; m < Is::kSums; ++m) {
#pragma unroll
          for (int o = 0; o < Is::kOwn; ++o) {
            float& sum = parts[m][o][e % Is::kParts];
            sum = fmaf(weights[m][o][i + e], x.value[e], sum);
          }
        }
      }
    }
#pragma unroll
    for (int m = 0; m < Is::kSums; ++m) {
#pragma unroll
      for (int o = 0; o < Is::kOwn; ++o) sums[m][r * Is::kOwn + o] = sum_in_pairs(parts[m][o]);
    }
  }
  if (Is::kOwn == 1 && rows == 1) {  // all four have it at once; the bits are the same
#pragma unroll
    for (int m = 0; m < Is::kSums; ++m) {
      const float half = sums[m][0] + __shfl_xor_sync(~0u, sums[m][0], 2);
      found[m] = half + __shfl_xor_sync(~0u, half, 1);
    }
    return;
  }
#pragma unroll
  for (int m = 0; m < Is::kSums; ++m) found[m] = sum_of_own(sums[m], thread.share);
}

}  // namespace treadle
