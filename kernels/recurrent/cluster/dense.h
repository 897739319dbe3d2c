// The layouts of a block's shared memory in the dense cluster kernels. These kernels compute dense
// batches, with or without resets, if H is a multiple of 8. The number of rows in a tile (`stride`)
// is a template argument here; the general kernels in cluster/{forward,backward}.cuh read it at run
// time. Like engine/shapes.h, this header needs neither torch nor CUDA.
#pragma once

#include "kernels/recurrent/engine/shapes.h"

namespace treadle {

// The number of fragments of weights, of four registers each, that fit in a thread's registers if
// `reserve` registers are left for other values.
constexpr int kept_fragments(int warps, int reserve, int fragments) {
  const int kept = (registers_of_warps(warps) - reserve) / 4;
  return kept < fragments ? kept : fragments;
}

// The extra bytes with resets: the marks of 64 steps, and where to load them from
// (cluster/dense_resets.cuh).
inline constexpr int kDenseMarksBytes = 64 * 4 + 32;

// Forward. A warp computes the products of a group of 16 units over one of kSplits slices of K, as
// in ClusterForward.
template <int gates, int state_gates, int units, int blocks, int tiles, int stride>
struct DenseForward {
  static constexpr int kUnits = units, kBlocks = blocks, kTiles = tiles, kStride = stride;
  static constexpr int kGates = gates, kStateGates = state_gates;
  static constexpr int kHidden = units * blocks, kRows = stride * tiles;
  static constexpr int kGroups = units / 16, kSplits = units >= 64 ? 2 : 4;
  static constexpr int kWarps = kGroups * kSplits, kThreads = kWarp * kWarps;
  static constexpr int kChunks = kHidden / 16 / kSplits;  // of 16 along K, per warp
  // The sums for 16 units are stored lane by lane in accumulator order, as kPairs pairs of rows. A
  // slot is 32 of these sums, one per lane. A warp runs the epilogue of at most kItems slots.
  static constexpr int kPairs = (stride + 1) / 2, kSumBytes = 8 * kPairs * 16;
  static constexpr int kSlots = tiles * kPairs, kItems = shapes::ceil_div(kSlots, kSplits);
  // kSends: 16-byte pieces to send. kFetches: 16-byte pieces of products to prefetch, and of gates
  // to store. kQuads: 8-byte stores of h.
  static constexpr int kSends = kHidden * kRows / 8;
  static constexpr int kFetches = gates * kRows * units / 8;
  static constexpr int kQuads = kRows * units / 4;
  static constexpr int kFragments = kChunks * state_gates;
  static constexpr int kReserve = 52 + 4 * state_gates * tiles + 8 * tiles + (gates + 3) * kItems +
                                  3 * shapes::ceil_div(kSends, kThreads) +
                                  4 * shapes::ceil_div(kFetches, kThreads);
  static constexpr int kKept = kept_fragments(kWarps, kReserve, kFragments);
  static constexpr int kDepth = tiles == 1 ? 8 : 4, kAhead = kDepth - 2;  // stages of the input

  // In bytes. Two copies, for even and odd steps, of: h of all units, h of the block's own units,
  // barriers.
  static constexpr int kTileBytes = 32 * stride;  // of 16 units
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

// Backward. A block multiplies the gradients of its own gates, which are its part of K, and sends
// each block that block's part of the sums. The sums have fewer bytes than the gradients and need
// no second summation in shared memory. A warp computes kWide tiles of 16 units of the whole
// layer.
template <int gates, int state_gates, int units, int blocks, int tiles, int stride>
struct DenseBackward {
  static constexpr int kUnits = units, kBlocks = blocks, kTiles = tiles, kStride = stride;
  static constexpr int kGates = gates, kStateGates = state_gates;
  static constexpr int kHidden = units * blocks, kRows = stride * tiles;
  static constexpr int kGroups = units / 16;
  static constexpr int kWarps = units == 16 ? 4 : units == 48 ? 12 : 8;
  static constexpr int kThreads = kWarp * kWarps;
  static constexpr int kChunks = state_gates * kGroups;  // of 16 along K
  static constexpr int kWide = kHidden / 16 / kWarps;    // tiles of 16 units per warp
  // As in forward; all warps share the slots.
  static constexpr int kPairs = (stride + 1) / 2, kSumBytes = 8 * kPairs * 16;
  static constexpr int kSlots = kGroups * tiles * kPairs;
  static constexpr int kItems = shapes::ceil_div(kSlots, kWarps);
  // Items whose slopes are computed before the sums arrive: as many as fit in registers.
  static constexpr int kEarly = kItems < 2 ? kItems : kWarps > 8 ? 1 : 2;
  static constexpr int kHalfFetches = (gates + 1) * kRows * units / 8;  // gates and grad_output
  static constexpr int kFetches = kHalfFetches + kRows * units / 4;     // and c
  static constexpr int kQuads = gates * kRows * units / 4;
  static constexpr int kFragments = kChunks * kWide;
  static constexpr int kReserve = (kWarps > 8 && tiles > 1 ? 54 : 34 + 24 * tiles) +
                                  (state_gates == 4 ? 13 : 10) * kEarly + 5 * kItems + 2 * kWide +
                                  5 * shapes::ceil_div(kFetches, kThreads) +
                                  3 * shapes::ceil_div(kQuads, kThreads);
  static constexpr int kKept = kept_fragments(kWarps, kReserve, kFragments);
  // Stages of saved values.
  static constexpr int kDepth = tiles > 1 ? 4 : units == 48 ? 6 : 8, kAhead = kDepth - 2;

  // In bytes. Two copies, for even and odd steps, of: the sums of the block's own units, by sending
  // block; the gradients of its own gates; a barrier.
  static constexpr int kTileBytes = 32 * stride;  // gradients of a gate of 16 units
  static constexpr int kBlockSums = kGroups * tiles * kSumBytes;
  static constexpr int kState = 0, kStateBytes = blocks * kBlockSums, kOutgoing = kStateBytes;
  static constexpr int kBarriers = kOutgoing + gates * units * kRows * 2;
  static constexpr int kUnread = kBarriers + 8, kParity = kBarriers + 16;
  static constexpr int kStages = 2 * kParity;
  static constexpr int kStageRow = units * 2 + 16, kCRow = units * 4 + 16;
  static constexpr int kCStates = (gates + 1) * kRows * kStageRow;  // in a stage
  static constexpr int kStageBytes = kCStates + kRows * kCRow;
  // Before the first step, each warp transposes its part of W_hh, 16 rows at a time, in the memory
  // before the weights.
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
