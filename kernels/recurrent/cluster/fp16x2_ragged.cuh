// What the float32 cluster kernel on tensor cores (cluster/fp16x2_forward.cuh) needs for batches
// that are packed or have resets: which rows have a step, where its rows begin, and which rows
// reset.
#pragma once

#include "kernels/recurrent/cluster/fp16x2.cuh"
#include "kernels/recurrent/engine/resets.cuh"

namespace treadle {

#if TREADLE_CLUSTER_CODE

// A step of a group: the index of the group's first row among the rows of all steps, how many of
// the group's rows have the step, and a bit for each of them that is marked in `reset`.
struct RaggedStep {
  int64_t start;
  int active;
  uint32_t marked;

  __device__ __forceinline__ unsigned rows() const { return (1u << active) - 1; }
};

// A ring buffer of steps in shared memory, which one warp fills. So no other warp waits for global
// memory. Steps are counted in the order in which they are computed. Starts and counts of kWarp
// steps are written together, at least kWarp steps early. In each step the warp loads the marks of
// one more step, kMarksAhead + 1 steps early, and writes the marks that it loaded in the step
// before.
template <class L, bool any>
struct RaggedRing {
  static constexpr int kMarksAhead = 4;
  const GroupResets<any>& resets;
  uint32_t base;
  uint32_t ahead = 0;  // the mark of this lane's row that is being loaded

  __device__ __forceinline__ RaggedRing(const GroupResets<any>& resets, uint32_t memory)
      : resets(resets), base(memory + L::kRagged) {}

  __device__ __forceinline__ uint32_t place(int s) const {
    return base + s % static_cast<unsigned>(kRaggedSteps) * 16;
  }

  // Writes starts and counts of steps s to s + kWarp - 1.
  __device__ __forceinline__ void put_steps(int s) const {
    s += static_cast<int>(threadIdx.x) % kWarp;
    const int t = resets.template time<false>(s), steps = static_cast<int>(resets.sizes.steps);
    const GroupRows& rows = resets.group.rows;
    const bool exists = s < steps;
    const int64_t start = exists ? rows.start(t) + rows.first : 0;
    const int active = exists ? rows.active(t) : 0;
    ptx::store16(place(s), {static_cast<uint32_t>(start), static_cast<uint32_t>(start >> 32),
                            static_cast<uint32_t>(active), 0});
    __syncwarp();
  }

  __device__ __forceinline__ void load_marks(int s) {
    if (resets.resets.marks == nullptr) return;
    const int row = static_cast<int>(threadIdx.x) % kWarp;
    const RaggedStep step = of(s);
    const auto* at = reinterpret_cast<const unsigned char*>(resets.resets.marks) + step.start + row;
    ahead = row < step.active ? __ldg(at) : 0;
  }

  __device__ __forceinline__ void put_marks(int s) {
    keep(ahead);  // otherwise the compiler votes, and so waits, right after the load
    const uint32_t marked = __ballot_sync(~0u, ahead != 0);
    if (threadIdx.x % kWarp == 0) ptx::store4(place(s) + 12, marked);
  }

  // begin() and advance(), in each step s, are called by all lanes of one warp.
  __device__ __forceinline__ void begin() {
    put_steps(0);
    for (int s = 0; s < kMarksAhead; ++s) load_marks(s), put_marks(s);
    load_marks(kMarksAhead);
  }

  __device__ __forceinline__ void advance(int s) {
    if (s % static_cast<unsigned>(kWarp) == 0) put_steps(s + kWarp);
    put_marks(s + kMarksAhead);
    load_marks(s + kMarksAhead + 1);
  }

  __device__ __forceinline__ RaggedStep of(int s) const {
    const uint4 x = ptx::load16(place(s));
    return {static_cast<int64_t>(uint64_t{x.y} << 32 | x.x), static_cast<int>(x.z), x.w};
  }

  // A bit for each row that resets after step s, before the next one. In direction 1, the marks of
  // a step mean that rows reset after it.
  __device__ __forceinline__ uint32_t resets_after(int s) const {
    if (s + 1 >= static_cast<int>(resets.sizes.steps)) return 0;
    return ptx::load4(place(s + 1 - resets.group.reverse) + 12);
  }
};

// The rows, of those in `rows`, whose replacement h before step t is too large for fp16x2. Called
// by whole warps.
template <bool any>
__device__ __forceinline__ unsigned too_large(const GroupResets<any>& resets, unsigned rows,
                                              int t) {
  if (resets.resets.h == nullptr) return 0;
  const int hidden = static_cast<int>(resets.sizes.hidden);
  unsigned found = 0;
#pragma unroll 1
  for (; rows != 0; rows &= rows - 1) {
    const int row = __ffs(static_cast<int>(rows)) - 1;
    const float* const h =
        static_cast<const float*>(resets.resets.h) + resets.place(t, row) * hidden;
    bool large = false;
#pragma unroll 4
    for (int k = static_cast<int>(threadIdx.x) % kWarp; k < hidden; k += kWarp) {
      large = large || fabsf(__ldg(h + k)) > kSplitLargest;
    }
    if (__any_sync(~0u, large)) found |= 1u << row;
  }
  return found;
}

#endif

}  // namespace treadle
