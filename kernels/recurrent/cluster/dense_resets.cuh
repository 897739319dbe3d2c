// This file determines which rows of a group reset before a step of the dense cluster kernels. A
// step reads this from a word of shared memory that was written many steps before. So resets add
// only one select instruction to the chain of instructions between the arrival of h and the sends
// of the next h.
#pragma once

#include "kernels/recurrent/cluster/dense.cuh"
#include "kernels/recurrent/engine/resets.cuh"

namespace treadle {

#if TREADLE_CLUSTER_CODE

// A ring buffer of words in shared memory. It has one word for each step, with a bit for each row's
// mark, which says whether the row resets. The ring has two halves of kWarp steps. During the steps
// of one half, one warp fills the other half: each lane collects the marks of one of its steps, and
// loads the mark of one row during each step. So no step waits for these loads, and a lane needs
// only two registers for marks. p counts steps as in PassMarks. The addresses of the marks are in
// shared memory too, because registers are needed for weights.
template <class L, bool any, bool backward>
struct MarkRing {
  static constexpr int kSteps = 2 * kWarp, kPlace = L::kMarks + kSteps * 4;
  static_assert(kPlace + 32 == L::kMarks + L::kMarksBytes && L::kRows < kWarp);
  uint32_t base;
  uint32_t gathered = 0, ahead = 0;  // marks so far, the last in bit 31; the mark being loaded

  __device__ __forceinline__ explicit MarkRing(uint32_t base) : base(base) {}

  // Fills the first half. All lanes of the warp that calls gather() must call it.
  __device__ __forceinline__ void begin(const bool* marks, const PersistentSizes& sizes,
                                        const Group& group) const {
    const bool ascending = (group.reverse == 0) != backward;
    const int64_t batch = sizes.batch;
    const auto from = reinterpret_cast<uintptr_t>(marks) + group.rows.first +
                      (ascending ? 0 : sizes.steps * batch);
    // The first p that can have a mark. Rows can reset before the first step of a pass only in the
    // forward pass of direction 0. If the pass runs backward in time, p = 0 is the time after the
    // last step.
    const int first = !backward && group.reverse == 0 ? 0 : 1;
    const int count = static_cast<int>(sizes.steps) - (ascending ? first : 0);
    const int64_t each = ascending ? batch : -batch;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    if (lane == 0) {
      ptx::store16(base + kPlace, {static_cast<uint32_t>(from), static_cast<uint32_t>(from >> 32),
                                   static_cast<uint32_t>(each), 0});
      ptx::store16(base + kPlace + 16, {static_cast<uint32_t>(first), static_cast<uint32_t>(count),
                                        static_cast<uint32_t>(group.rows.count), 0});
    }
    __syncwarp();
    uint32_t word = 0;
#pragma unroll 4
    for (int row = 0; row < L::kRows; ++row) word |= mark(lane, row) << row;
    ptx::store4(base + L::kMarks + lane * 4, word);
  }

  __device__ __forceinline__ uint32_t mark(int p, int row) const {
    const uint4 where = ptx::load16(base + kPlace), bounds = ptx::load16(base + kPlace + 16);
    if (p - bounds.x >= bounds.y || row >= static_cast<int>(bounds.z)) return 0;
    const auto from = static_cast<uintptr_t>(uint64_t{where.y} << 32 | where.x);
    const int64_t at = int64_t{p} * static_cast<int>(where.z) + row;
    return __ldg(reinterpret_cast<const unsigned char*>(from) + at);
  }

  // Called in each step s. Loads one more mark for this lane's step of the next half, or stores all
  // marks of that step.
  __device__ __forceinline__ void gather(int s) {
    const int row = static_cast<int>(s % uint32_t{kWarp});
    const int p = s - row + kWarp + static_cast<int>(threadIdx.x) % kWarp;
    if (row > L::kRows) return;
    keep(ahead);  // otherwise the compiler would shift it, and thus wait, right after its load
    gathered = gathered >> 1 | ahead << 31;
    if (row < L::kRows) {
      ahead = mark(p, row);
    } else {
      ptx::store4(base + L::kMarks + p % uint32_t{kSteps} * 4, gathered >> (kWarp - L::kRows));
    }
  }

  __device__ __forceinline__ uint32_t of(int s) const {
    if constexpr (any) return ptx::load4(base + L::kMarks + s % uint32_t{kSteps} * 4);
    return 0;
  }
};

// The c that replaces a unit's c before step t. `at` is the index of its row and unit in [D, B, H].
template <class C>
__device__ __forceinline__ C given_c(const GroupResets<true>& resets, int t, int64_t at) {
  const PersistentSizes& sizes = resets.sizes;
  C found{};
  if (resets.resets.c == nullptr) return found;
  if (resets.resets.per_step) {
    at += (resets.group.direction * (int64_t{sizes.steps} - 1) + t) * sizes.batch * sizes.hidden;
  }
#pragma unroll
  for (int p = 0; p < math::kPartCount<C>; ++p) {
    const int64_t part = part_at<C>(at, sizes.hidden, p);
    math::part(found, p) = __ldg(static_cast<const float*>(resets.resets.c) + part);
  }
  return found;
}

// Used in the forward pass if rows reset to given states. Overwrites the h of these rows before it
// is multiplied by W_hh. Each warp writes the slice of K that it will read itself. Warps that read
// the same slice write the same values.
template <class L>
__device__ __forceinline__ void replace_rows(const GroupResets<true>& resets, uint32_t rows, int t,
                                             uint32_t state, int split) {
  const int hidden = static_cast<int>(resets.sizes.hidden);
  const bool vector = reinterpret_cast<uintptr_t>(resets.resets.h) % 8 == 0;
#pragma unroll 1
  for (; rows != 0; rows &= rows - 1) {
    const int r = __ffs(static_cast<int>(rows)) - 1;
    const uint16_t* const h = resets.h_row(t, r);
#pragma unroll 1
    for (int e = static_cast<int>(threadIdx.x) % kWarp; e < L::kChunks * 4; e += kWarp) {
      const int four = split * L::kChunks * 4 + e, count = h == nullptr ? 0 : hidden - four * 4;
      const uint2 x = load_four(h + four * 4, count, vector);
      ptx::store_floats(state + (four / 4 * L::kTiles + r / L::kStride) * L::kTileBytes +
                            four % 4 * 8 * L::kStride + r % L::kStride * 8,
                        __uint_as_float(x.x), __uint_as_float(x.y));
    }
  }
  __syncwarp();
}

#endif

}  // namespace treadle
