// Code that the single-block kernels share: block_forward and block_backward, which algorithm
// `cluster` uses for small layers and on GPUs without clusters. The registers of one thread block
// hold all weights as floats. Each block computes one or two rows of the batch by itself, without
// exchanging data with other blocks. So the time of a step is the latency of its chain of dependent
// instructions.
//
// Products use IEEE fma, not tensor cores. Two lanes of a warp share a unit. Each sums over half of
// K (the reduction dimension) for all gates of the unit and up to two rows. A shuffle adds the two
// halves, and then each lane computes the unit for one row. The state stays in registers. Only the
// operands of the next product go through shared memory, as floats, with one barrier per step. For
// a half type T, the operands are first rounded to T, as are all values that are stored.
#pragma once

#include "kernels/recurrent/block/word_halves.h"
#include "kernels/recurrent/engine/resets.cuh"

namespace treadle {

// Whether the kernels have a body. In half types on sm_90, clusters are faster than a block with
// more than kHalfBlockUnits units, so such a block has none.
constexpr bool block_has_code(bool sm90, bool half, int units) {
  return !sm90 || !half || units <= kHalfBlockUnits;
}

// The sizes of a block's arrays in registers and shared memory. `all_k` is the size of K, and
// `sums` is the number of sums per unit. `arrays` is the number of values that each thread
// prefetches per step.
template <int units, int sums, int all_k, int arrays>
struct Block {
  static constexpr int kThreads = 2 * units;
  static constexpr int kRows = kBlockRows;  // at most
  static constexpr int kSums = sums;
  static constexpr int kDepth = all_k / 2;
  // The number of independent chains of additions per sum. With a single chain, a warp that has a
  // scheduler to itself would wait for each addition.
  static constexpr int kChains = sums > 1 ? (kThreads > 128 ? 1 : 2) : 4;
  // Rows are padded, so that the two rows that a warp stores together are in different banks.
  static constexpr int kRowFloats = all_k + kWarp / 2;
  static constexpr int kAhead = 7, kStages = 8;  // one stage is read while another is overwritten

  static constexpr int kStateFloats = kRows * kRowFloats;
  static constexpr int kStageFloats = arrays * kThreads;
  static constexpr int kSharedBytes = (2 * kStateFloats + kStages * kStageFloats) * 4;
  static_assert(kDepth % 4 == 0 && kAhead < kStages && kAhead <= 32);
  static_assert(sums * kDepth <= kFp32Weights);
};

// The position in K of a thread's i-th weight, relative to its first weight. The two lanes of a
// unit alternate every four elements, so that together they read 32 contiguous bytes of the state.
__device__ __forceinline__ constexpr int block_k(int i) { return i / 4 * 8 + i % 4; }

// Loads an element as float, through the read-only cache: the kernel must not write to this array.
template <class T>
__device__ __forceinline__ float load_wide(const void* from, int64_t at) {
  if constexpr (is_half_type<T>) {
    return widen_bits<T>(__ldg(static_cast<const uint16_t*>(from) + at));
  } else {
    return __ldg(static_cast<const T*>(from) + at);
  }
}

// Returns x rounded to T. For bfloat16 this converts a pair whose other number is 0, because the
// instruction for a single number is slower.
template <class T>
__device__ __forceinline__ float rounded_to(float x) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(0.0f, x);
    return __uint_as_float(reinterpret_cast<const uint32_t&>(pair));
  } else {
    return widen(Narrow<T>::from(x));
  }
}

// A thread's prefetches from an array of T. Each value occupies a 4-byte word of a stage. In half
// types, the word also contains a neighbouring value, which this thread ignores. No thread may
// write to the neighbour during the copy, so results must not overwrite inputs. cp.async reads
// whole words regardless of its src-size. So if an array has an odd number of elements, its memory
// must include the whole last word.
template <class T, int ahead>
struct Prefetched {
  WordHalves<ahead> halves;

  static __device__ __forceinline__ void copy(uint32_t to, const T* from) {
    if constexpr (is_half_type<T>) {
      ptx::copy4_async(to,
                       reinterpret_cast<const void*>(word_of(reinterpret_cast<uintptr_t>(from))));
    } else {
      ptx::copy4_async(to, from);
    }
  }

  // Must be called once per step, whether or not the step's numbers were copied.
  __device__ __forceinline__ void note(const T* at) {
    if constexpr (is_half_type<T>) halves.note(reinterpret_cast<uintptr_t>(at));
  }

  // Returns gate m of the current step, which is `ahead` - 1 steps before the last copied step.
  __device__ __forceinline__ float get(const float* slot, int m = 0, int64_t apart = 0) const {
    if constexpr (is_half_type<T>) {
      return widen(reinterpret_cast<const T*>(slot)[halves.of_oldest(m, apart)]);
    } else {
      return *slot;
    }
  }
};

// The steps of one row of the batch, in the order in which they are computed.
struct BlockRow {
  bool backward;      // whether time runs backward
  int first, length;  // the first step, and the number of steps
  int64_t begin;      // the index of the row at step 0 among the rows of all steps

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

// Points to one element of a row, in an array with the rows of all steps. The pointer advances from
// step to step.
template <class T>
struct RowIterator {
  T* at;
  int64_t row_elements, step;

  __device__ __forceinline__ RowIterator(T* first, const BlockRow& row,
                                         const PersistentSizes& sizes, int64_t row_elements_)
      : at(first + row.begin * row_elements_),
        row_elements(row_elements_),
        step((row.backward ? -sizes.batch : sizes.batch) * row_elements_ * int64_t{sizeof(T)}) {
    keep(step);
  }

  // Moves from the s-th step to the next one. This is on the critical path, so for dense batches it
  // is one addition.
  __device__ __forceinline__ void advance(const BlockRow& row, const PersistentSizes& sizes,
                                          int s) {
    if (sizes.starts == nullptr) {
      at = reinterpret_cast<T*>(reinterpret_cast<intptr_t>(at) + step);
    } else if (s + 1 < static_cast<int>(sizes.steps)) {
      const int t = row.backward ? static_cast<int>(sizes.steps) - 2 - s : s;
      const int64_t rows = __ldg(sizes.starts + t + 1) - __ldg(sizes.starts + t);
      at += (row.backward ? -rows : rows) * row_elements;
    }
  }
};

// Computes the product of W_hh with the state, for this thread's unit and row. All lanes of the
// warp must call this together, because of the shuffles.
template <class Layout>
__device__ __forceinline__ void multiply_state(
    const float (&weights)[Layout::kSums][Layout::kDepth], const float* state, int rows, int half,
    float (&found)[Layout::kSums]) {
  float sums[Layout::kRows][Layout::kSums] = {};
#pragma unroll
  for (int r = 0; r < Layout::kRows; ++r) {
    if (r > 0 && r >= rows) break;
    const float* at = state + r * Layout::kRowFloats + half * 4;
    float parts[Layout::kSums][Layout::kChains] = {};
#pragma unroll
    for (int i = 0; i < Layout::kDepth; i += 4) {
      const auto x = *reinterpret_cast<const Vector<float, 4>*>(at + i * 2);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
#pragma unroll
        for (int m = 0; m < Layout::kSums; ++m) {
          float& sum = parts[m][e % Layout::kChains];
          sum = fmaf(weights[m][i + e], x.value[e], sum);
        }
      }
    }
#pragma unroll
    for (int m = 0; m < Layout::kSums; ++m) sums[r][m] = sum_in_pairs(parts[m]);
  }
#pragma unroll
  for (int m = 0; m < Layout::kSums; ++m) {
    const float own = half == 0 ? sums[0][m] : sums[1][m];
    found[m] = own + __shfl_xor_sync(~0u, half == 0 ? sums[1][m] : sums[0][m], 1);
  }
}

}  // namespace treadle
