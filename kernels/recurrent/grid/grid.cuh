// Code that the forward and backward grid kernels share. A group of resident blocks keeps the
// weights of one direction and computes all steps of some rows of the batch, a tile of 8 rows at a
// time. The MMA warps keep W_hh in registers and shared memory. They wait for a tile's packets,
// multiply, and write partial sums to one of two buffers. The epilogue warps add the sums, compute
// the cell, send packets to the other blocks, and store results. So while the cell of one tile is
// computed, the next tile is multiplied, and the packets of a third tile are in flight.
//
// A packet is 32 bits that one store writes: two half-type numbers of a pair of units in one row.
// Packets travel through a ring buffer in global memory. Before the launch, the host sets all bits
// of this buffer to one. A reader polls the data itself until it changes, so no flag is needed. No
// packet has all bits set, because rounding to a half type never produces a NaN with all bits set.
// The launch is cooperative, so every block that another block waits for is running.
#pragma once

#include "kernels/recurrent/engine/resets.cuh"

namespace treadle {

// Named barriers of a block. Each of the two buffers of sums has a barrier kSumsFull and a barrier
// kSumsEmpty. The barriers of the second buffer have the next numbers. kFinishers is for all
// epilogue threads.
enum GridBarrier { kSumsFull = 1, kSumsEmpty = 3, kFinishers = 5 };

// Iterates over the visits of a pass. A visit is the computation of one tile in one step, and all
// warps of a group make their visits in this order. Tiles in which no row has the step are skipped.
template <bool backward>
struct GridVisits {
  const Group& group;
  // The visit is tile j in step s. `active`, `before` and `ahead` count the rows that have steps s,
  // s - 1 and s + 1.
  int steps, s = -1, j = 0, active = 0, before = 0, ahead;

  __device__ __forceinline__ GridVisits(const Group& group, int steps)
      : group(group), steps(steps), ahead(of(0)) {}

  __device__ __forceinline__ int of(int step) const {
    if (step >= steps) return 0;
    return group.rows.active(backward ? group.backward_time(step, steps)
                                      : group.forward_time(step, steps));
  }

  // Advances to the next visit; false if there is none.
  __device__ __forceinline__ bool next() {
    if (active > ++j * 8) return true;
    j = 0;
    do {
      if (++s >= steps) return false;
      before = active;
      active = ahead;
      ahead = of(s + 1);
    } while (active == 0);
    return true;
  }
};

// Whether any of four packets is missing. Another block may be writing them at this moment. But a
// packet is written by a single store, so it is either complete or missing.
__device__ __forceinline__ bool missing(const uint4& v) {
  return (v.x == ~0u) | (v.y == ~0u) | (v.z == ~0u) | (v.w == ~0u);
}

__device__ __forceinline__ uint4 load_words16(const char* at) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at)
               : "memory");
  return v;
}

__device__ __forceinline__ uint32_t load_word4(const char* at) {
  uint32_t x;
  asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
  return x;
}

__device__ __forceinline__ void store_word4(char* at, uint32_t x) {
  asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(at), "r"(x) : "memory");
}

// Stores the numbers of those units of a pair that exist (`real`). If H is even (`even`), one
// aligned store writes both.
__device__ __forceinline__ void store_pair(char* at, uint32_t bits, bool even,
                                           const bool (&real)[2]) {
  if (even) {
    if (real[0]) *reinterpret_cast<uint32_t*>(at) = bits;
    return;
  }
  if (real[0]) reinterpret_cast<uint16_t*>(at)[0] = static_cast<uint16_t>(bits);
  if (real[1]) reinterpret_cast<uint16_t*>(at)[1] = static_cast<uint16_t>(bits >> 16);
}

// Whether one of the warp's packets is missing. A missing packet is all ones, the largest unsigned
// number. So a maximum finds it, with one instruction per packet.
template <int n>
__device__ __forceinline__ bool any_missing(const uint4 (&v)[n]) {
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < n; ++i) most = max(max(most, max(v[i].x, v[i].y)), max(v[i].z, v[i].w));
  return __any_sync(~0u, most == ~0u);
}

// Loads a warp's packets of a tile.
template <int n>
__device__ __forceinline__ void ask(uint4 (&v)[n], const char* at) {
#pragma unroll
  for (int i = 0; i < n; ++i) v[i] = load_words16(at + i * 512);
}

// Rereads missing packets. The loads are predicated, because a packet that has arrived must not be
// read again, and branches would make the lanes diverge.
template <int n>
__device__ __forceinline__ void ask_missing(uint4 (&v)[n], const char* at, int stride = 512) {
#pragma unroll
  for (int i = 0; i < n; ++i) {
    asm volatile(
        "{\n"
        ".reg .pred missing;\n"
        "setp.ne.u32 missing, %5, 0;\n"
        "@missing ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];\n"
        "}"
        : "+r"(v[i].x), "+r"(v[i].y), "+r"(v[i].z), "+r"(v[i].w)
        : "l"(at + i * stride), "r"(static_cast<uint32_t>(missing(v[i])))
        : "memory");
  }
}

// Rereads missing packets until none is missing. The whole warp loops.
template <int n>
__device__ __forceinline__ void poll(uint4 (&v)[n], const char* at, int stride = 512) {
  while (any_missing(v)) ask_missing(v, at, stride);
}

// Byte offsets of steps in a group's exchange, the memory through which its blocks exchange
// packets. The exchange is a ring of kGridRing slots, each with all tiles of a step. In the forward
// pass the ring is followed by the h that the first step reads. A half-type tile is [chunk of 32
// elements of K, the reduction dimension][row][element], so that a warp's 16-byte loads are
// contiguous: eight consecutive lanes share a line of 128 bytes.
//
// Step s writes its packets to slot s % kGridRing and clears those of step s - 2, so that each slot
// is empty again long before the ring wraps. This is safe for two reasons:
// - All blocks have read a packet before it is cleared. A block in step s has multiplied a tile of
//   step s - 1. Each block sent its part of that tile after it had multiplied, and so read, the
//   tile of step s - 2.
// - No reader mistakes an old packet for a new one. The block that clears a packet writes the next
//   one to the same address some steps later. If different threads of that block clear and write,
//   the barrier of each step orders them. A packet's address is always read by the same thread.
//   Fences (order_exchange()) keep this thread from seeing stale data when the ring wraps. The
//   sending block has a fence between clearing a packet and sending another; the reader has one
//   between receiving that other packet and polling the slot.
struct GridRing {
  int step_bytes;

  __device__ __forceinline__ int place(int s) const {
    return static_cast<int>(static_cast<unsigned>(s) % kGridRing) * step_bytes;
  }
  __device__ __forceinline__ int before_first() const { return kGridRing * step_bytes; }
};

// Called in step s, after its sends and reads. If a packet is cleared in step s, its reader polls
// the slot again in step s + kGridRing - 2. In between, the following happen in this order:
// - a barrier of the block that cleared the packet;
// - a fence of that block, at most 8 steps after s;
// - a packet that this block sends in the step after its fence, and that the reader receives one
//   step later;
// - a fence of the reader, at most 16 steps after s.
__device__ __forceinline__ void order_exchange(int s) {
  if (s % 8 == 7) asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

// The offset of partial sums in a buffer: [warp][gate][8 pairs of units g][4 pairs of rows] x 16
// bytes. The order of the pairs of rows spreads the accesses of eight lanes over all banks.
__device__ __forceinline__ uint32_t sums_place(int g, int row_pair) {
  return (g * 4 + (row_pair ^ (g >> 1 & 1) << 1)) * 16;
}

}  // namespace treadle
