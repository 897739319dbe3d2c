// The two GEMMs of fused_backward.cu, which consume grad_z (g).
#pragma once

#include "kernels/sine_linear/fused_backward.cuh"

namespace treadle::sine_fused_backward {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Accumulates g^T x over all tiles of the block, [kOut / 2, kInputs] per warpgroup, and stores it
// as this block's part of grad_weight.
template <class T, int kOut, int kBlocks>
__device__ __forceinline__ void accumulate_grad_weight(const Memory<kOut, kBlocks>& memory,
                                                       const SineLinearFusedBackward& args,
                                                       const Tiles& tiles, float* part) {
  using Layout = FusedLayout<kOut, kBlocks>;
  const int group = threadIdx.x / kWarpgroup, lane = threadIdx.x % 32;
  float c[Layout::kChunks][64];
  ptx::Ring<kStages> grads;
  ptx::Ring<kInputStages> inputs;
  bool add = false;
  for (int tile = tiles.first; tile < tiles.count; tile += tiles.step) {
    ptx::wait_barrier(memory.input_full(inputs.stage), inputs.parity());
    ptx::wait_barrier(memory.grad_z_full(grads.stage), grads.parity());
    ptx::publish_to_products();
    // Both operands are transposed, because the GEMM sums over the 64 rows of the tile.
    const uint64_t x = ptx::matrix(memory.input(inputs.stage), Layout::kBlockBytes);
    const uint64_t g =
        ptx::matrix(memory.grad_z(grads.stage) + group * Layout::kChunks * Layout::kBlockBytes);
    ptx::begin_products();
#pragma unroll
    for (int k = 0; k < kTileRows / 16; ++k) {
      constexpr int kNext = 16 * 128 >> 4;
#pragma unroll
      for (int j = 0; j < Layout::kChunks; ++j) {
        ptx::multiply_tile<T, true, true>(c[j], g + (j * Layout::kBlockBytes >> 4) + k * kNext,
                                          x + k * kNext, add || k > 0);
      }
    }
    add = true;
    ptx::commit_products();
    ptx::wait_products<0>();
    // Release g to the producers of all blocks, because each producer writes to all blocks. Release
    // x to this block's loading thread.
    if (lane < kBlocks) ptx::arrive_at(memory.grad_z_empty(grads.stage), lane);
    if (lane == 0) ptx::arrive_at(memory.input_empty(inputs.stage), tiles.rank);
    grads.advance();
    inputs.advance();
  }
  // Store the accumulators, in wgmma's order (multiply_tile), as float2.
  const int row = threadIdx.x % kWarpgroup / 32 * 16 + lane / 4;
  const int first = tiles.rank * kInputs + lane % 4 * 2;
  const int columns = static_cast<int>(args.columns), all = static_cast<int>(args.inputs);
#pragma unroll
  for (int j = 0; j < Layout::kChunks; ++j) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int column = (group * Layout::kChunks + j) * 64 + row + i % 2 * 8;
      const int input = first + i / 2 * 8;
      if (column < columns && input < all) {
        *reinterpret_cast<float2*>(part + column * all + input) =
            float2{c[j][2 * i], c[j][2 * i + 1]};
      }
    }
  }
}

// Stores a tile's g W [64, kInputs] to global memory, through shared memory and TMA.
template <class T>
__device__ __forceinline__ void store_grad_input(const float (&c)[64], uint32_t memory,
                                                 const CUtensorMap& map, int row, int input) {
  constexpr int kBlockBytes = kTileRows * 128;
  const int thread = threadIdx.x % kWarpgroup, lane = thread % 32;
  // Wait until TMA has read the previous tile.
  if (thread == 0) ptx::wait_stores();
  ptx::sync_threads(1, kWarpgroup);
  const int in_tile = thread / 32 * 16 + lane % 16;
#pragma unroll
  for (int j = 0; j < kInputs / 8; j += 2) {
    Vector<T, 8> values;
    float these[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) these[e] = c[4 * j + e];
    narrow(these, values);
    const auto& x = reinterpret_cast<const uint32_t (&)[4]>(values);
    const uint32_t block = memory + j / 8 * kBlockBytes;
    ptx::store_matrices(block + in_tile * 128 + ((j % 8 + lane / 16) ^ (in_tile % 8)) * 16, x);
  }
  ptx::publish_to_products();
  ptx::sync_threads(1, kWarpgroup);
  if (thread == 0) {
    ptx::store_tile(&map, input, row, memory);
    ptx::store_tile(&map, input + kAcross, row, memory + kBlockBytes);
  }
}

// Loads x and W by TMA, and multiplies g by W for grad_input.
template <class T, int kOut, int kBlocks, bool kMultiply>
__device__ __forceinline__ void multiply_by_weight(const Memory<kOut, kBlocks>& memory,
                                                   const CUtensorMap& x, const CUtensorMap& w,
                                                   const CUtensorMap& grad_input,
                                                   const Tiles& tiles) {
  using Layout = FusedLayout<kOut, kBlocks>;
  const bool loads = threadIdx.x % kWarpgroup == 0;
  const int lane = threadIdx.x % 32, input = tiles.rank * kInputs;
  const uint16_t self = static_cast<uint16_t>(1 << tiles.rank);
  ptx::Ring<kInputStages> inputs;
  const auto load_input = [&](int tile) {
    if (tile >= tiles.count) return;
    const int stage = inputs.stage;
    ptx::wait_barrier(memory.input_empty(stage), inputs.parity() ^ 1);
    ptx::arrive_expecting(memory.input_full(stage), Layout::kInputBytes);
    for (int i = 0; i < kInputs / kAcross; ++i) {
      ptx::copy_tile(memory.input(stage) + i * Layout::kBlockBytes, &x, input + i * kAcross,
                     tile * kTileRows, memory.input_full(stage), self);
    }
    inputs.advance();
  };
  if (loads) {
    if constexpr (kMultiply) {
      ptx::arrive_expecting(memory.weight_full(), kInputs / kAcross * Layout::kWeightHalf);
      for (int i = 0; i < kInputs / kAcross; ++i) {
        ptx::copy_tile(memory.weight(i), &w, input + i * kAcross, 0, memory.weight_full(), self);
      }
    }
    load_input(tiles.first);
  }
  __syncwarp();
  // W stays in shared memory for all tiles.
  if constexpr (kMultiply) ptx::wait_barrier(memory.weight_full(), 0);
  ptx::Ring<kStages> ring;
  for (int tile = tiles.first; tile < tiles.count; tile += tiles.step) {
    if (loads) load_input(tile + tiles.step);
    __syncwarp();
    if constexpr (kMultiply) {
      ptx::wait_barrier(memory.grad_z_full(ring.stage), ring.parity());
      ptx::publish_to_products();
      float c[64];
      const uint64_t g = ptx::matrix(memory.grad_z(ring.stage));
      const uint64_t weight = ptx::matrix(memory.weight(0), Layout::kWeightHalf);
      ptx::begin_products();
#pragma unroll
      for (int k = 0; k < kOut / 16; ++k) {
        ptx::multiply_tile<T, false, true>(c, g + k / 4 * (Layout::kBlockBytes >> 4) + k % 4 * 2,
                                           weight + k * (16 * 128 >> 4), k > 0);
      }
      ptx::commit_products();
      ptx::wait_products<0>();
      if (lane < kBlocks) ptx::arrive_at(memory.grad_z_empty(ring.stage), lane);
      ring.advance();
      store_grad_input<T>(c, memory.result(), grad_input, tile * kTileRows, input);
    }
  }
  if (loads) ptx::finish_stores();
}

#endif

}  // namespace treadle::sine_fused_backward
