// The layouts of a block's shared memory in the dense cluster kernels. These kernels compute dense
// batches (in which every row takes every step), with or without resets, if H is a multiple of 8.
// The number of rows in a tile (`stride`) is a template argument here; the general kernels in
// cluster/{forward,backward}.cuh read it at run time. Like engine/shapes.h, this header needs
// neither torch nor CUDA.
#pragma once

#include "kernels/recurrent/engine/shapes.h"

namespace treadle {

// How many of a warp's `fragments` fragments of weights fit in registers, if each thread keeps
// `reserve` registers for other values. A fragment is an A operand of mma.sync, which takes four
// registers per thread.
constexpr int kept_fragments(int warps, int reserve, int fragments) {
  const int kept = (registers_of_warps(warps) - reserve) / 4;
  return kept < fragments ? kept : fragments;
}

// The additional bytes that a kernel with resets needs: 4 bytes of marks (elements of `reset`) for
// each of 64 steps, and 32 bytes of addresses and bounds for loading them
// (cluster/dense_resets.cuh).
inline constexpr int kDenseMarksBytes = 64 * 4 + 32;

// The layout L of a cell's kernel.
template <template <int...> class L, class Cell, int... shape>
using DenseLayout = L<Cell::kGates, Cell::kStateGates, Cell::kCParts, shape...>;

// The forward kernel. As in ClusterForward (engine/shapes.h), a warp computes the products of 16
// units over one of kSplits slices of K, the reduction dimension.
template <int gates, int state_gates, int c_parts, int units, int blocks, int tiles, int stride>
struct DenseForward {
  static constexpr int kUnits = units, kBlocks = blocks, kTiles = tiles, kStride = stride;
  static constexpr int kGates = gates, kStateGates = state_gates;
  static constexpr int kHidden = units * blocks, kRows = stride * tiles;
  static constexpr int kGroups = units / 16, kSplits = units >= 64 ? 2 : 4;
  static constexpr int kWarps = kGroups * kSplits, kThreads = kWarp * kWarps;
  static constexpr int kChunks = kHidden / 16 / kSplits;  // per warp; 16 elements of K each
  // Partial sums are stored in the order in which the mma accumulators of the lanes hold them: 16
  // bytes contain the sums of units g and g + 8 (g is lane / 4) for a pair of rows. A tile has
  // kPairs pairs. A slot is 32 consecutive sums. One warp computes the cell from them, one sum per
  // lane. A warp has at most kItems slots.
  static constexpr int kPairs = (stride + 1) / 2, kSumBytes = 8 * kPairs * 16;
  static constexpr int kSlots = tiles * kPairs, kItems = shapes::ceil_div(kSlots, kSplits);
  // Counts per block and step. kSends: 16-byte pieces of h to send. kFetches: 16-byte pieces of
  // input products to prefetch, and as many pieces of gates to store. kQuads: 8-byte stores of h.
  static constexpr int kSends = kHidden * kRows / 8;
  static constexpr int kFetches = gates * kRows * units / 8;
  static constexpr int kQuads = kRows * units / 4;
  static constexpr int kFragments = kChunks * state_gates;
  static constexpr int kReserve =
      52 + 4 * state_gates * tiles + 8 * tiles + (gates + c_parts + 2) * kItems +
      3 * shapes::ceil_div(kSends, kThreads) + 4 * shapes::ceil_div(kFetches, kThreads);
  static constexpr int kKept = kept_fragments(kWarps, kReserve, kFragments);
  // A stage is a buffer for the input products of one step, which are loaded kAhead steps ahead.
  static constexpr int kDepth = tiles == 1 ? 8 : 4, kAhead = kDepth - 2;

  // Sizes and offsets in bytes. The first kParity bytes exist twice, for even and for odd steps: h
  // of all units, h of the block's own units, and mbarriers.
  static constexpr int kTileBytes = 32 * stride;  // h of 16 units of a tile
  static constexpr int kState = 0, kOutgoing = kHidden * kRows * 2;
  static constexpr int kOwnBytes = units * kRows * 2;
  static constexpr int kBarriers = kOutgoing + kOwnBytes;
  static constexpr int kParity = kBarriers + shapes::ceil_div(kSplits, 2) * 16;
  static constexpr int kSums = 2 * kParity;
  static constexpr int kStages = kSums + kSplits * kGroups * state_gates * tiles * kSumBytes;
  static constexpr int kStageRow = units * 2 + 16, kStageBytes = gates * kRows * kStageRow;
  static constexpr int kBias = kStages + kDepth * kStageBytes;
  static constexpr int kWeights = kBias + gates * units * 4;
  static constexpr int kSharedBytes = kWeights + kWarps * (kFragments - kKept) * 512;
  static constexpr int kMarks = kSharedBytes, kMarksBytes = kDenseMarksBytes;
  static constexpr int kResetsBytes = kMarks + kMarksBytes;
};

// The backward kernel. A block multiplies the gradients of its own gates by its rows of W_hh. The
// result is a partial sum for every unit of the layer, and each block is sent the partial sums of
// its own units. The partial sums have fewer bytes than the gradients. A warp computes such a sum
// by itself, so the block's warps need not combine sums in shared memory before they send.
template <int gates, int state_gates, int c_parts, int units, int blocks, int tiles, int stride>
struct DenseBackward {
  static constexpr int kUnits = units, kBlocks = blocks, kTiles = tiles, kStride = stride;
  static constexpr int kGates = gates, kStateGates = state_gates, kCParts = c_parts;
  static constexpr int kHidden = units * blocks, kRows = stride * tiles;
  static constexpr int kGroups = units / 16;
  static constexpr int kWarps = units == 16 ? 4 : units == 48 ? 12 : 8;
  static constexpr int kThreads = kWarp * kWarps;
  static constexpr int kChunks = state_gates * kGroups;  // 16 elements of K each
  static constexpr int kWide = kHidden / 16 / kWarps;    // tiles of 16 units per warp
  // As in DenseForward, except that the slots are divided among all warps of the block.
  static constexpr int kPairs = (stride + 1) / 2, kSumBytes = 8 * kPairs * 16;
  static constexpr int kSlots = kGroups * tiles * kPairs;
  static constexpr int kItems = shapes::ceil_div(kSlots, kWarps);
  // A lane has one item (unit, row) per slot. The slopes of the first kEarly items are computed
  // before the sums arrive; the registers have no room for more.
  static constexpr int kEarly = kItems < 2 ? kItems : kWarps > 8 ? 1 : 2;
  static constexpr int kHalfFetches = (gates + 1) * kRows * units / 8;  // of gates and grad_output
  static constexpr int kFetches = kHalfFetches + c_parts * kRows * units / 4;  // and of c
  static constexpr int kQuads = gates * kRows * units / 4;
  static constexpr int kFragments = kChunks * kWide;
  static constexpr int kReserve =
      (kWarps > 8 && tiles > 1 ? 54 : 34 + 24 * tiles) + (state_gates == 4 ? 13 : 10) * kEarly +
      8 * (c_parts - 1) * kEarly + (4 + c_parts) * kItems + 2 * kWide +
      5 * shapes::ceil_div(kFetches, kThreads) + 3 * shapes::ceil_div(kQuads, kThreads);
  static constexpr int kKept = kept_fragments(kWarps, kReserve, kFragments);
  // A stage is a buffer for the saved values of one step, which are loaded kAhead steps ahead.
  static constexpr bool kWideC = c_parts > 1 && units == 64;
  static constexpr int kDepth = tiles > 1 || (kWideC && blocks > 4) ? 4
                                : kWideC || units == 48             ? 6
                                                                    : 8;
  static constexpr int kAhead = kDepth - 2;

  // Sizes and offsets in bytes. The first kParity bytes exist twice, for even and for odd steps:
  // the partial sums of the block's own units, grouped by the block that sends them; the gradients
  // of its own gates; and an mbarrier.
  static constexpr int kTileBytes = 32 * stride;  // gradients of one gate of 16 units of a tile
  static constexpr int kBlockSums = kGroups * tiles * kSumBytes;
  static constexpr int kState = 0, kStateBytes = blocks * kBlockSums, kOutgoing = kStateBytes;
  static constexpr int kBarriers = kOutgoing + gates * units * kRows * 2;
  static constexpr int kUnread = kBarriers + 8, kParity = kBarriers + 16;
  static constexpr int kStages = 2 * kParity;
  static constexpr int kStageRow = units * 2 + 16, kCRow = units * 4 + 16;
  static constexpr int kCStates = (gates + 1) * kRows * kStageRow;  // offset of c in a stage
  static constexpr int kStageBytes = kCStates + c_parts * kRows * kCRow;
  // Before the first step, each warp transposes its part of W_hh, 16 rows at a time, in memory that
  // later holds sums and stages.
  static constexpr int kTurnRow = kWide * 32 + 16, kTurnBytes = 16 * kTurnRow;
  static constexpr int kWeights = kStages + kDepth * kStageBytes > kWarps* kTurnBytes
                                      ? kStages + kDepth * kStageBytes
                                      : kWarps * kTurnBytes;
  static constexpr int kSharedBytes = kWeights + kWarps * (kFragments - kKept) * 512;
  static constexpr int kMarks = kSharedBytes, kMarksBytes = kDenseMarksBytes;
  static constexpr int kResetsBytes = kMarks + kMarksBytes;
  static_assert(kHidden / 16 % kWarps == 0 && kWide % 2 == 0);
};

}  // namespace treadle
