// The grid's backward pass in pairs of blocks (grid_backward.cuh). What bounds that pass is what a
// block reads: the gradients of all gates of all units, 48 KB for each tile. Two blocks of a
// cluster therefore share their 64 units. Each multiplies the units of both by half of K, for which
// it reads half of the blocks' words and keeps as many weights as a block alone, and sends the
// other one's 32 units their partial sums. Both then add up the two parts, in any order the same
// bits, and finish their own units.
//
// The hand-over. Products are numbered n = 0, 1, 2, ...: tiles with rows, in order of steps. Both
// blocks read the lengths from one table, so they have the same ones; a tile whose rows have all
// ended has none, and for it nothing is sent or awaited. There are two buffers for received sums,
// and an mbarrier of each: that of n has the parity of n. Each of the 128 threads that finish,
//   1. awaits the own warps' sums of n (kSumsFull), adds up those of the other block's units and
//      sends them to the thread of its number there, 8 bytes that the buffer's mbarrier counts;
//   2. adds up those of the own units and gives the sums' buffer back (kSumsEmpty);
//   3. awaits phase n / 2 of the mbarrier, which ends with the 8 bytes of all 128 threads of the
//      other block; one thread arms it for n + 2; and reads what it has received.
//
// - Nothing is overwritten. A thread sends n + 2 behind its wait of n + 1, which ends after every
//   thread of the other block has sent n + 1, each behind its own step 3 of n: all have read the
//   buffer of n, its phase has ended, and it is armed for n + 2. One buffer would not do: who sends
//   n + 1 knows of the other block only that it has sent n. The own sums are awaited and given back
//   as in a block alone, where both steps have read them.
// - Nobody waits for ever. Order what is done by the step in which a tile is finished, by the tile,
//   and there: multiplied, steps 1 to 3, sent to all. Whatever waits, waits for what is before it
//   in this order: a multiplication for words of the step before, the same warps' product before,
//   and step 2 of n - 2; step 1 for the multiplication; step 3 for step 1 of the other block. All
//   blocks run, since the launch is cooperative.
// - No block leaves while the other one sends to it: whatever is sent is awaited, the last product
//   by the iteration behind the last step. Before the first, both have set up their mbarriers.
// - The ring (GridRing) needs that all have read what is put back in step s, the words of step
//   s - 2. Each has one reader in each pair. Who puts it back has received both parts of a product
//   with the words of step s - 1, and so of every block's. Each block has sent those after it had
//   both parts of that tile's product with the words of step s - 2: it or its neighbour is the
//   reader, and had read the word. Fences order a word between its one writer and its readers,
//   whichever block multiplies it.
#pragma once

#include "kernels/recurrent/grid.cuh"

namespace treadle {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// Before any thread of the pair sends.
template <class Layout>
__device__ __forceinline__ void begin_pair(uint32_t base) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) ptx::init_barrier(base + Layout::kReceivedBarriers + i * 8);
    ptx::publish_barriers();
    for (int i = 0; i < 2; ++i) {
      ptx::arrive_expecting(base + Layout::kReceivedBarriers + i * 8, Layout::kReceivedBytes);
    }
  }
  ptx::sync_cluster();
}

// Where a thread that finishes finds the sums of its pair of units of a row of a tile, and, of two
// blocks that share units, what it exchanges with the thread of its number in the other one.
template <class Layout, bool alone>
struct GridSums {
  static constexpr bool kPair = Layout::kSharing == 2;
  const uint32_t own, others, received, barriers;
  uint32_t to_other = 0;  // what an address there is more than the same one here
  uint32_t product = 0;   // the next one
  int buffer = 0;

  __device__ __forceinline__ GridSums(uint32_t base, int rank, int thread, int pair,
                                      int row_in_tile)
      : own(base + rank % Layout::kSharing * 1024 + pair / 8 * 512 +
            sums_place(pair % 8, row_in_tile / 2) + row_in_tile % 2 * 8),
        others(own + (rank % 2 == 0 ? 1024 : -1024)),
        received(base + Layout::kReceived + thread * 8),
        barriers(base + Layout::kReceivedBarriers) {
    if constexpr (kPair) {
      to_other = ptx::in_block(base, static_cast<uint32_t>(rank % 2 ^ 1)) - base;
    }
  }

  // Over the part of K that the block has.
  __device__ __forceinline__ void add_up(uint32_t from, float (&sums)[2]) const {
    float parts[2][Layout::kMultiplyingWarps];
#pragma unroll
    for (int w = 0; w < Layout::kMultiplyingWarps; ++w) {
      const uint2 both = ptx::load8(from + buffer * Layout::kSumBytes + w * Layout::kTiles * 512);
      parts[0][w] = __uint_as_float(both.x), parts[1][w] = __uint_as_float(both.y);
    }
    sums[0] = sum_in_pairs(parts[0]), sums[1] = sum_in_pairs(parts[1]);
  }

  // Sends the other block what it needs, takes the own sums, and gives their buffer back.
  __device__ __forceinline__ void take(float (&sums)[2]) {
    ptx::sync_threads(kSumsFull + buffer, Layout::kThreads);
    if constexpr (kPair) {
      add_up(others, sums);
      const uint32_t to = product & 1;
      ptx::send_floats(received + to_other + to * Layout::kReceivedBytes, sums[0], sums[1],
                       barriers + to_other + to * 8);
    }
    add_up(own, sums);
    ptx::arrive_threads(kSumsEmpty + buffer, Layout::kThreads);
    if (!alone) buffer ^= 1;
  }

  // Adds what the other block has sent.
  __device__ __forceinline__ void add_received(float (&sums)[2], bool arms) {
    const uint32_t at = product & 1, barrier = barriers + at * 8;
    ptx::wait_barrier(barrier, product >> 1 & 1);
    if (arms) ptx::arrive_expecting(barrier, Layout::kReceivedBytes);
    const uint2 theirs = ptx::load8(received + at * Layout::kReceivedBytes);
    sums[0] += __uint_as_float(theirs.x), sums[1] += __uint_as_float(theirs.y);
    ++product;
  }
};

#endif

}  // namespace treadle
