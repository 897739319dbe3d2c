// Code that the forward and backward dense cluster kernels share. cluster/dense.h defines their
// layouts, and cluster/cluster.cuh explains how blocks exchange states. A block may have fewer rows
// or units than its layout. The lanes of missing rows and units compute like all others, which
// avoids branches, but store no results. Their computations are harmless, because rows are
// independent of each other and missing units send zeros.
#pragma once

#include "kernels/recurrent/cluster/cluster.cuh"
#include "kernels/recurrent/cluster/dense.h"

namespace treadle {

// The B operands that a warp multiplies, for `columns` tiles of the batch's rows. They are loaded
// in `turns` rounds of 16 elements of K (the reduction dimension). After `chunks` rounds, loading
// starts again with the first elements. Registers hold the operands of up to four rounds. The
// operands of later rounds are loaded while products run. `state` is the address of this lane's
// part of the first operand.
template <class Layout, int columns, int chunks, int turns>
struct Operands {
  static constexpr int kRing = turns < 4 ? turns : 4;
  uint2 b[kRing][columns];
  uint32_t state;

  __device__ __forceinline__ explicit Operands(uint32_t state) : state(state) {
#pragma unroll
    for (int turn = 0; turn < kRing; ++turn) load(turn);
  }

  __device__ __forceinline__ void load(int turn) {
    if (turn >= turns) return;
#pragma unroll
    for (int j = 0; j < columns; ++j) {
      b[turn % kRing][j] = ptx::load8(state + (turn % chunks * columns + j) * Layout::kTileBytes);
    }
  }

  __device__ __forceinline__ uint2 get(int turn, int column) const {
    return b[turn % kRing][column];
  }
};

// A warp's part of W_hh as fragments of the A operand, in the order in which they are multiplied.
// Fragments that do not fit in registers are in shared memory, interleaved evenly with the others,
// so that each is loaded while products with fragments in registers run.
template <class Layout>
struct SpreadWeights {
  static constexpr int kFragments = Layout::kFragments, kKept = Layout::kKept;
  static constexpr int kShared = kFragments - kKept;
  uint32_t (&registers)[kKept * 4];
  uint32_t shared;  // address of this lane's part of the first fragment there

  __device__ __forceinline__ SpreadWeights(uint32_t (&registers)[kKept * 4], uint32_t base,
                                           int warp, int lane)
      : registers(registers), shared(base + warp * kShared * 512 + lane * 16) {}

  static constexpr int shared_before(int fragment) { return fragment * kShared / kFragments; }
  static constexpr bool in_shared(int fragment) {
    return shared_before(fragment + 1) > shared_before(fragment);
  }

  // Stores this lane's part of a fragment. `a` has k = 4q and 4q + 1 of rows g and g + 8 of the
  // tile, then k = 4q + 2 and 4q + 3, where g is lane / 4 and q is lane % 4.
  __device__ __forceinline__ void set(int fragment, uint4 a) const {
    if (in_shared(fragment)) {
      ptx::store16(shared + shared_before(fragment) * 512, a);
    } else {
      uint32_t* to = registers + (fragment - shared_before(fragment)) * 4;
      to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
    }
  }

  // Loads the first fragment in shared memory, which is the initial `next` of take() and
  // multiply().
  __device__ __forceinline__ uint4 first() const {
    if constexpr (kShared == 0) return {};
    return ptx::load16(shared);
  }

  // Returns a fragment. `next` is the next fragment in shared memory, loaded in advance. If the
  // fragment comes from there, take() loads the one after it into `next`.
  __device__ __forceinline__ uint4 take(int fragment, uint4& next) const {
    const int before = shared_before(fragment);
    if (!in_shared(fragment)) {
      const uint32_t* from = registers + (fragment - before) * 4;
      return {from[0], from[1], from[2], from[3]};
    }
    const uint4 a = next;
    if (before + 1 < kShared) next = ptx::load16(shared + (before + 1) * 512);
    return a;
  }

  // Adds W b to `sum`, in order of k, for `rows` tiles of W's rows and `columns` tiles of the
  // batch's rows. The fragments from `begin` on are ordered [chunk of 16 elements of K][tile of W's
  // rows]. `next` is as for take().
  template <class T, int rows, int columns, int chunks, int turns>
  __device__ __forceinline__ void multiply(int begin, uint4& next,
                                           Operands<Layout, columns, chunks, turns>& operands,
                                           float (&sum)[rows][columns][4]) const {
#pragma unroll
    for (int k = 0; k < chunks; ++k) {
      const int turn = begin / rows + k;
#pragma unroll
      for (int m = 0; m < rows; ++m) {
        const int fragment = begin + k * rows + m, before = shared_before(fragment);
        const bool from_shared = in_shared(fragment);
        const uint32_t* from = registers + (from_shared ? 0 : fragment - before) * 4;
        const uint4 a = from_shared ? next : uint4{from[0], from[1], from[2], from[3]};
#pragma unroll
        for (int j = 0; j < columns; ++j) {
          const uint2 b = operands.get(turn, j);
          ptx::multiply_add<T>(sum[m][j], a.x, a.y, a.z, a.w, b.x, b.y);
        }
        if (from_shared && before + 1 < kShared) next = ptx::load16(shared + (before + 1) * 512);
      }
      operands.load(turn + operands.kRing);
    }
  }
};

#if TREADLE_CLUSTER_CODE

// What a thread sends in each step: 16-byte pieces of its block's h, each to one block. Some
// threads send one fewer piece than others.
template <class Layout>
struct DenseSends {
  static constexpr int kMost = shapes::ceil_div(Layout::kSends, Layout::kThreads);
  static constexpr int kPieces = Layout::kOwnBytes / 16;  // sent to each block
  uint32_t from[kMost], to[kMost], barrier[kMost];
  bool last;  // whether this thread sends kMost pieces, not one fewer

  // `bytes` is the number of bytes of h that one mbarrier counts.
  __device__ __forceinline__ DenseSends(uint32_t base, int rank, int bytes)
      : last(static_cast<int>(threadIdx.x) + (kMost - 1) * Layout::kThreads < Layout::kSends) {
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      const int e = static_cast<int>(threadIdx.x) + i * Layout::kThreads;
      const int piece = e % kPieces, block = e / kPieces;
      const int at = rank * Layout::kOwnBytes + piece * 16;
      const uint32_t there = ptx::in_block(base, block < Layout::kBlocks ? block : 0);
      from[i] = base + Layout::kOutgoing + piece * 16;
      to[i] = there + Layout::kState + at;
      barrier[i] = there + Layout::kBarriers + at / bytes * 8;
    }
  }

  // Sends the block's h from its own buffer at `parity` to the buffers at `other` of all blocks.
  __device__ __forceinline__ void send(uint32_t parity, uint32_t other) const {
    uint4 pieces[kMost];
#pragma unroll
    for (int i = 0; i < kMost; ++i) pieces[i] = ptx::load16(from[i] + parity);
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      const bool any = i + 1 < kMost || Layout::kSends % Layout::kThreads == 0 || last;
      ptx::send16_if(any, to[i] + other, pieces[i], barrier[i] + other);
    }
  }
};

// The bits of a lane's part of an accumulator tile of 16 units and 8 rows. The lane has units g and
// g + 8 of rows 2q and 2q + 1. If a tile has fewer than 8 rows, only lanes with q < kPairs have
// rows.
__device__ __forceinline__ uint4 words_of(const float (&sum)[4]) {
  return {__float_as_uint(sum[0]), __float_as_uint(sum[1]), __float_as_uint(sum[2]),
          __float_as_uint(sum[3])};
}

// The unit and row that a lane computes in a slot, and the offset of their sum among the sums of 16
// units (cluster/dense.h describes the order of sums).
template <class Layout>
struct SlotPlace {
  int unit, row, byte;
  bool exists;  // false for the second row of the last pair if kStride is odd

  __device__ __forceinline__ SlotPlace(int slot, int lane) {
    const int word = slot % Layout::kPairs * kWarp + lane, pair = word / 4 % Layout::kPairs;
    const int in_pair = pair * 2 + word % 2;
    unit = word / (4 * Layout::kPairs) + word / 2 % 2 * 8;
    exists = in_pair < Layout::kStride;
    row = exists ? in_pair : 0;
    byte = word * 4;
  }
};

// Calls f(Constant<int, n>), where n is the warp's number of slots: `most` or, unless `all`, one
// fewer. If the warp has no slots, f is not called. f computes its slots together, so that the
// instructions of one slot hide the latency of another's.
template <int most, class F>
__device__ __forceinline__ void with_slots(bool all, bool any, const F& f) {
  if (all) {
    f(Constant<int, most>{});
  } else if constexpr (most > 1) {
    if (any) f(Constant<int, most - 1>{});
  }
}

// Initialises the mbarriers, and arms those of odd steps for step 1. Those of even steps expect no
// bytes, because the data of step 0 is already there.
template <class Layout, int count>
__device__ __forceinline__ void begin_barriers(uint32_t base, uint32_t bytes) {
  for (int i = 0; i < 2 * count; ++i) {
    ptx::init_barrier(base + Layout::kBarriers + i % 2 * Layout::kParity + i / 2 * 8);
  }
  ptx::publish_barriers();
  for (int i = 0; i < count; ++i) {
    ptx::arrive_expecting(base + Layout::kBarriers + i * 8, 0);
    ptx::arrive_expecting(base + Layout::kBarriers + Layout::kParity + i * 8, bytes);
  }
}

// Writes zeros to a stage, so that the values of missing rows and units are finite.
template <class Layout>
__device__ __forceinline__ void clear(uint32_t from, int bytes) {
  for (int e = static_cast<int>(threadIdx.x) * 16; e < bytes; e += Layout::kThreads * 16) {
    ptx::store16(from + e, {0, 0, 0, 0});
  }
}

#endif

}  // namespace treadle
