// What the half-precision cluster kernels do for ragged batches (cluster_dense.h): rows that have
// fewer steps than others, and rows that reset. Nothing of it lies between h and its sending, where
// every instruction would count: a step knows beforehand which rows it has and which of them reset.
#pragma once

#include "kernels/recurrent/cluster_dense.cuh"

namespace treadle {

// The rows of a step: where it begins among all S rows, and how many of the group have it.
struct StepRows {
  int64_t start;
  int count;
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// The rows of steps for all threads of a block. One warp asks for them, and each step leaves those
// of the step that is fetched in the next one. An entry is read last when its gates are stored, a
// step late; so kAhead + 3 of them are alive.
template <class Layout, bool backward>
struct StepRing {
  static constexpr int kEntries = 2 * Layout::kDepth;
  static_assert(kEntries >= Layout::kAhead + 3);
  const Group& group;
  int steps;
  uint32_t entries;
  int64_t begin, end;  // of the step that is left next

  // p counts steps in the order of the pass; beyond the last one there are no rows.
  __device__ __forceinline__ void ask(int p) {
    const int t = backward ? group.backward_time(p, steps) : group.forward_time(p, steps);
    begin = end = 0;
    if (p < steps) begin = group.rows.start(t), end = group.rows.start(t + 1);
  }

  __device__ __forceinline__ void put(int p) const {
    const int64_t rows = end - begin - group.rows.first;
    const int most = group.rows.count, count = rows < most ? static_cast<int>(rows) : most;
    ptx::store16(entries + p % kEntries * 16,
                 {static_cast<uint32_t>(begin), static_cast<uint32_t>(begin >> 32),
                  static_cast<uint32_t>(count < 0 ? 0 : count), 0});
  }

  // Those that are needed before step 0 has left any, a lane each.
  __device__ __forceinline__ void leave_first(int lane) {
    ask(lane);
    if (lane <= Layout::kAhead) put(lane);
    ask(Layout::kAhead + 1);
  }

  // In step s, by a whole warp.
  __device__ __forceinline__ void leave(int s, int lane) {
    keep(begin), keep(end);  // else the compiler asks, and so waits, where it loads
    if (lane == 0) put(s + Layout::kAhead + 1);
    ask(s + Layout::kAhead + 2);
  }

  __device__ __forceinline__ StepRows of(int p) const {
    const uint4 x = ptx::load16(entries + p % kEntries * 16);
    return {static_cast<int64_t>(uint64_t{x.y} << 32 | x.x), static_cast<int>(x.z)};
  }
};

// The items (unit, row) of a thread whose row resets, forward: `marks` is the word of step s
// (SharedMarks). All of this happens while the step's products run.
template <class Layout, int items>
struct ForwardResets {
  const GroupResets<Layout::kRagged>& resets;
  int first_unit;
  const int (&unit)[items], (&row)[items];
  const uint32_t (&place)[items];  // of h in what is sent

  // c before this step, and h before the next one into what is sent, which was last read two steps
  // ago.
  __device__ __forceinline__ void begin(uint32_t marks, int s, uint32_t parity,
                                        float (&c)[items]) const {
    const uint32_t now = marks & 0xffff, ahead = marks >> 16;
#pragma unroll
    for (int i = 0; i < items; ++i) {
      if (now >> row[i] & 1) c[i] = 0;
      if (ahead >> row[i] & 1) ptx::store2(place[i] + parity, 0);
    }
    if (!resets.given() || marks == 0) return;
#pragma unroll
    for (int i = 0; i < items; ++i) {
      // Hidden: else every step computes addresses, or registers hold them, for the few that need
      // them.
      uint32_t p = s, r = row[i], u = first_unit + unit[i];
      keep(p), keep(r), keep(u);
      if (now >> row[i] & 1) c[i] = resets.c(resets.template time<false>(p), r, u);
      if (ahead >> row[i] & 1) {
        const int t = resets.template time<false>(p + 1);
        ptx::store2(place[i] + parity, resets.template h<uint16_t>(t, r, u));
      }
    }
  }

  // Where h goes: to what is sent, or to the output alone.
  __device__ __forceinline__ uint32_t place_of(uint32_t marks, int i, uint32_t parity) const {
    constexpr int kUnsent = Layout::kUnsent - Layout::kOutgoing;
    uint32_t to = place[i] + parity + (marks >> 16 >> row[i] & 1 ? kUnsent : 0);
    keep(to);  // else the compiler computes it after h
    return to;
  }
};

#endif

}  // namespace treadle
