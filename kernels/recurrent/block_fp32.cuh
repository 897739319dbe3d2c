// The regime "cluster" in float32 for layers so narrow that one block keeps all weights, for any
// cell; products are exact. Nothing is exchanged between blocks, so a step is bound by what its
// warps wait for: one result after the other, with nothing else to do for them. Two lanes have a
// unit, all its gates in up to two rows, and half of K each: they add up what the other one needs,
// after which each has its unit of one row. What it computes stays in its registers but for what
// all warps multiply at the next step, for which they meet once a step.
#pragma once

#include "kernels/cluster.cuh"

namespace treadle {

// At each step `arrays` numbers of a unit are taken; K of all units, `sums` a unit.
template <int units, int sums, int all_k, int arrays>
struct BlockFloat {
  static constexpr int kThreads = 2 * units;
  static constexpr int kRows = 2;  // at most
  static constexpr int kSums = sums;
  static constexpr int kDepth = all_k / 2;
  // Chains of each sum. A warp that is alone with its scheduler waits for each of its additions.
  static constexpr int kChains = sums > 1 ? (kThreads > 128 ? 1 : 2) : 4;
  // So far apart that what a warp gives at once lies in different banks.
  static constexpr int kRowFloats = all_k + kWarp / 2;
  static constexpr int kAhead = 7, kSlots = 8;  // steps; one is read while one is overwritten

  static constexpr int kStateFloats = kRows * kRowFloats;
  static constexpr int kSlotFloats = arrays * kThreads;
  static constexpr int kSharedBytes = (2 * kStateFloats + kSlots * kSlotFloats) * 4;
  static_assert(kDepth % 4 == 0);
  static_assert(sums * kDepth <= 192);  // weights that the registers of a thread hold
};

// The K of a thread's i-th weight, behind that of its first: two lanes read 32 bytes.
__device__ __forceinline__ constexpr int block_k(int i) { return i / 4 * 8 + i % 4; }

// A row of the batch from step to step, in the order in which they are computed.
struct BlockRow {
  bool backward;      // in time
  int first, length;  // of its steps, and how many
  int64_t begin;      // of S, where it is at the first step of all

  __device__ __forceinline__ BlockRow(const GroupRows& rows, int row, int steps, bool real,
                                      bool backward_)
      : backward(backward_), length(real ? rows.length(row, steps) : 0) {
    first = backward ? steps - length : 0;
    begin = rows.start(backward ? steps - 1 : 0) + rows.first + row;
  }
  __device__ __forceinline__ bool runs(int s) const {
    return static_cast<unsigned>(s - first) < static_cast<unsigned>(length);
  }
};

// An element of a row in an array of S, from step to step.
template <class T>
struct BlockWalk {
  T* at;
  int64_t row_elements, step;

  __device__ __forceinline__ BlockWalk(T* first, const BlockRow& row, const PersistentSizes& sizes,
                                       int64_t row_elements_)
      : at(first + row.begin * row_elements_),
        row_elements(row_elements_),
        step((row.backward ? -sizes.batch : sizes.batch) * row_elements_ * int64_t{sizeof(T)}) {
    keep(step);
  }

  // To the step behind the s-th, while all wait for this: in one addition if all rows have it.
  __device__ __forceinline__ void go_on(const BlockRow& row, const PersistentSizes& sizes, int s) {
    if (sizes.starts == nullptr) {
      at = reinterpret_cast<T*>(reinterpret_cast<intptr_t>(at) + step);
    } else if (s + 1 < static_cast<int>(sizes.steps)) {
      const int t = row.backward ? static_cast<int>(sizes.steps) - 2 - s : s;
      const int64_t rows = __ldg(sizes.starts + t + 1) - __ldg(sizes.starts + t);
      at += (row.backward ? -rows : rows) * row_elements;
    }
  }
};

// W_hh's products with what the last step gave, of this thread's unit and row. Sums are of several
// parts, so that additions need not wait for each other.
template <class Is>
__device__ __forceinline__ void multiply_state(const float (&weights)[Is::kSums][Is::kDepth],
                                               const float* state, int rows, int half,
                                               float (&found)[Is::kSums]) {
  float sums[Is::kRows][Is::kSums] = {};
#pragma unroll
  for (int r = 0; r < Is::kRows; ++r) {
    if (r > 0 && r >= rows) break;
    const float* at = state + r * Is::kRowFloats + half * 4;
    float parts[Is::kSums][Is::kChains] = {};
#pragma unroll
    for (int i = 0; i < Is::kDepth; i += 4) {
      const auto x = *reinterpret_cast<const Vector<float, 4>*>(at + i * 2);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
#pragma unroll
        for (int m = 0; m < Is::kSums; ++m) {
          float& sum = parts[m][e % Is::kChains];
          sum = fmaf(weights[m][i + e], x.value[e], sum);
        }
      }
    }
#pragma unroll
    for (int m = 0; m < Is::kSums; ++m) sums[r][m] = sum_in_pairs(parts[m]);
  }
#pragma unroll
  for (int m = 0; m < Is::kSums; ++m) {
    const float own = half == 0 ? sums[0][m] : sums[1][m];
    found[m] = own + __shfl_xor_sync(~0u, half == 0 ? sums[1][m] : sums[0][m], 1);
  }
}

}  // namespace treadle
