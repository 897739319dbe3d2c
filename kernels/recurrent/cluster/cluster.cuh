// Code that the forward and backward cluster kernels share. A cluster of blocks computes all steps
// of some rows of the batch. Each block keeps the rows of W_hh for its hidden units on the chip.
// For step t + 1 every block needs all of h_t, so the blocks send their parts of it into each
// other's shared memory with st.async.
//
// The exchanged state is stored in the order of the B operand of mma.sync: [chunk of 16 units]
// [lane & 3][row] x 4 units. Lane q of a quad owns k = 2q, 2q+1, 2q+8, 2q+9 of a product; k is
// permuted so that these are units 4q .. 4q+3, which one 8-byte load reads. The weights have the
// same permutation, so the sum over k is the same.
#pragma once

#include "kernels/recurrent/engine/resets.cuh"

// Whether cluster kernels have a body. sm_120 also has clusters, but a block has too little shared
// memory for these kernels.
#ifdef __CUDA_ARCH__
#define TREADLE_CLUSTER_CODE (__CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1100)
#else
#define TREADLE_CLUSTER_CODE 0
#endif

namespace treadle {

// Named barriers. All threads pass kStepBarrier once per step; after it, the copy warp stores the
// outgoing state and the gates. The computing threads pass kSendBarrier once the outgoing state is
// complete.
inline constexpr int kStepBarrier = 15, kSendBarrier = 14;

// Layouts of the half-type kernels for a cell (engine/shapes.h).
template <class Cell, int units, int blocks, int tiles>
using ClusterForwardOf = ClusterForward<Cell::kGates, Cell::kStateGates, units, blocks, tiles>;
template <class Cell, int units, int blocks>
using ClusterBackwardOf = ClusterBackward<Cell::kGates, Cell::kStateGates, units, blocks>;

#if TREADLE_CLUSTER_CODE

// Initialises `count` mbarriers and arms them: each then expects `bytes` bytes (arrive.expect_tx).
// Called by one thread of a block. The fence makes them visible to the cluster before its first
// barrier, after which other blocks may send.
template <int count>
__device__ __forceinline__ void init_barriers(uint32_t barriers, uint32_t bytes) {
  for (int i = 0; i < count; ++i) ptx::init_barrier(barriers + 8 * i);
  ptx::publish_barriers();
  for (int i = 0; i < count; ++i) ptx::arrive_expecting(barriers + 8 * i, bytes);
}

// The code of the exchange is duplicated in cluster/{forward,backward}.cuh, because a shared struct
// would change their machine code. Both do the following.
//
// A thread sends some of the block's data in 16-byte chunks by st.async, and sends the same chunks
// to every block. A warp waits only for its slice of k. st.async counts its bytes on an mbarrier of
// the receiving block. Data and signal are one message, so no fence is needed. Two buffers, for
// even and odd steps, are enough: a block sends h_t only after it has received all of h_{t-1}, and
// by then each sender had finished reading the buffer of h_{t-2}, which h_t overwrites.
//
// Step s waits for phase (s - 1) / 2 of its mbarrier, by that phase's parity. One thread arms the
// mbarrier again once all warps of this slice of k have passed the wait. The next bytes that the
// mbarrier counts are sent in step s + 1, by blocks that have received this block's data of step s.
// That data is sent after the mbarrier is armed, so no byte can arrive too early.

#endif

}  // namespace treadle
