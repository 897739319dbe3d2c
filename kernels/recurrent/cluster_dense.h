// The cluster kernels of half types: the layouts of a block's shared memory. The rows of a tile are
// a constant (`stride`). A batch is dense if all its rows have all steps, none of them resets, and
// H is a multiple of 8; any other one is `ragged`, and kernels for those take dense batches, too.
// Neither torch nor CUDA, as shapes.h.
#pragma once

#include "kernels/recurrent/shapes.h"

namespace treadle {

// What `reserve` registers leave for fragments of weights, of four registers each.
constexpr int kept_fragments(int warps, int reserve, int fragments) {
  const int kept = (registers_of_warps(warps) - reserve) / 4;
  return kept < fragments ? kept : fragments;
}

// Shared memory of a ragged batch: rows of steps (StepRing) and marks of resets (SharedMarks).
constexpr int ragged_bytes(int depth) { return 2 * depth * 16 + 16; }

// Forward: warp (group of 16 units, split of K), as ClusterForward.
template <int gates, int state_gates, int units, int blocks, int tiles, int stride,
          bool ragged = false>
struct DenseForward {
  static constexpr bool kRagged = ragged;
  static constexpr int kUnits = units, kBlocks = blocks, kTiles = tiles, kStride = stride;
  static constexpr int kGates = gates, kStateGates = state_gates;
  static constexpr int kHidden = units * blocks, kRows = stride * tiles;
  static constexpr int kGroups = units / 16, kSplits = units >= 64 ? 2 : 4;
  static constexpr int kWarps = kGroups * kSplits, kComputing = kWarp * kWarps;
  // A fifth warp that copies hides what saving gates costs. A ninth one would take a third of the
  // registers of all.
  static constexpr bool kCopyWarp = units == 16;
  static constexpr int kThreads = kComputing + (kCopyWarp ? kWarp : 0);
  static constexpr int kCopying = kCopyWarp ? kWarp : kComputing;
  static constexpr int kChunks = kHidden / 16 / kSplits;  // of 16 k, a warp
  // Sums of 16 units lie as lanes hold them, in kPairs pairs of rows; a warp takes 32 of them at a
  // time, and finishes at most kItems such slots.
  static constexpr int kPairs = (stride + 1) / 2, kSumBytes = 8 * kPairs * 16;
  static constexpr int kSlots = tiles * kPairs, kItems = shapes::ceil_div(kSlots, kSplits);
  // 16-byte pieces to send, to prefetch and (gates) to store; 8-byte stores of h.
  static constexpr int kSends = kHidden * kRows / 8;
  static constexpr int kFetches = gates * kRows * units / 8;
  static constexpr int kQuads = kRows * units / 4;
  static constexpr int kFragments = kChunks * state_gates;
  static constexpr int kReserve = 52 + 4 * state_gates * tiles + 8 * tiles + (gates + 3) * kItems +
                                  3 * shapes::ceil_div(kSends, kComputing) +
                                  4 * shapes::ceil_div(kFetches, kComputing) +
                                  (ragged ? (units < 64 ? 12 : 16) + 3 * kItems : 0);
  static constexpr int kKept = kept_fragments(kThreads / kWarp, kReserve, kFragments);
  static constexpr int kDepth = tiles == 1 ? 8 : 4, kAhead = kDepth - 2;  // stages of the input

  // In bytes. Of each parity: h of all units, h of own units, barriers, and own h of rows of which
  // another one is sent, since they reset.
  static constexpr int kTileBytes = 32 * stride;  // of 16 units
  static constexpr int kState = 0, kOutgoing = kHidden * kRows * 2;
  static constexpr int kOwnBytes = units * kRows * 2;
  static constexpr int kBarriers = kOutgoing + kOwnBytes;
  static constexpr int kUnsent = kBarriers + shapes::ceil_div(kSplits, 2) * 16;
  static constexpr int kParity = kUnsent + (ragged ? kOwnBytes : 0);
  static constexpr int kSums = 2 * kParity;
  static constexpr int kStages = kSums + kSplits * kGroups * state_gates * tiles * kSumBytes;
  static constexpr int kStageRow = units * 2 + 16, kStageBytes = gates * kRows * kStageRow;
  static constexpr int kBias = kStages + kDepth * kStageBytes;
  static constexpr int kWeights = kBias + gates * units * 4;
  static constexpr int kSteps = kWeights + kWarps * (kFragments - kKept) * 512;
  static constexpr int kSharedBytes = kSteps + (ragged ? ragged_bytes(kDepth) : 0);
};

// Backward. A block multiplies the gradients of its own gates, which are its part of K, and sends
// each block that block's part of the sums: these are fewer bytes than the gradients that they are
// sums of, and need no second sum in shared memory. A warp multiplies kWide tiles of 16 units of
// the whole layer.
template <int gates, int state_gates, int units, int blocks, int tiles, int stride,
          bool ragged = false>
struct DenseBackward {
  static constexpr bool kRagged = ragged;
  static constexpr int kUnits = units, kBlocks = blocks, kTiles = tiles, kStride = stride;
  static constexpr int kGates = gates, kStateGates = state_gates;
  static constexpr int kHidden = units * blocks, kRows = stride * tiles;
  static constexpr int kGroups = units / 16;
  static constexpr int kWarps = units == 16 ? 4 : units == 48 ? 12 : 8;
  static constexpr int kThreads = kWarp * kWarps, kCopying = kThreads;
  static constexpr int kChunks = state_gates * kGroups;  // of 16 k
  static constexpr int kWide = kHidden / 16 / kWarps;    // tiles of 16 units, a warp
  // As forward; all warps share the slots.
  static constexpr int kPairs = (stride + 1) / 2, kSumBytes = 8 * kPairs * 16;
  static constexpr int kSlots = kGroups * tiles * kPairs;
  static constexpr int kItems = shapes::ceil_div(kSlots, kWarps);
  // Items whose slopes are computed before the sums arrive: registers hold no more of them.
  static constexpr int kEarly = kItems < 2 ? kItems : kWarps > 8 ? 1 : 2;
  static constexpr int kHalfFetches = (gates + 1) * kRows * units / 8;  // gates and grad_output
  static constexpr int kFetches = kHalfFetches + kRows * units / 4;     // and c
  static constexpr int kQuads = gates * kRows * units / 4;
  static constexpr int kFragments = kChunks * kWide;
  static constexpr int kReserve =
      (kWarps > 8 && tiles > 1 ? 54 : 34 + 24 * tiles) + (state_gates == 4 ? 13 : 10) * kEarly +
      5 * kItems + 2 * kWide + 5 * shapes::ceil_div(kFetches, kThreads) +
      3 * shapes::ceil_div(kQuads, kThreads) + (ragged ? 14 + 2 * kItems : 0);
  static constexpr int kKept = kept_fragments(kWarps, kReserve, kFragments);
  // Stages of what forward saved.
  static constexpr int kDepth = tiles > 1 ? 4 : units == 48 ? 6 : 8, kAhead = kDepth - 2;

  // In bytes. Of each parity: sums by block, of own units; own gradients; a barrier.
  static constexpr int kTileBytes = 32 * stride;  // gradients of a gate of 16 units
  static constexpr int kBlockSums = kGroups * tiles * kSumBytes;
  static constexpr int kState = 0, kStateBytes = blocks * kBlockSums, kOutgoing = kStateBytes;
  static constexpr int kBarriers = kOutgoing + gates * units * kRows * 2;
  static constexpr int kUnread = kBarriers + 8, kParity = kBarriers + 16;
  static constexpr int kStages = 2 * kParity;
  static constexpr int kStageRow = units * 2 + 16, kCRow = units * 4 + 16;
  static constexpr int kCStates = (gates + 1) * kRows * kStageRow;  // in a stage
  static constexpr int kStageBytes = kCStates + kRows * kCRow;
  // At first, in place of all but weights: a warp's part of 16 rows of W_hh, to be transposed.
  static constexpr int kTurnRow = kWide * 32 + 16, kTurnBytes = 16 * kTurnRow;
  static constexpr int kWeights = kStages + kDepth * kStageBytes > kWarps* kTurnBytes
                                      ? kStages + kDepth * kStageBytes
                                      : kWarps * kTurnBytes;
  static constexpr int kSteps = kWeights + kWarps * (kFragments - kKept) * 512;
  static constexpr int kSharedBytes = kSteps + (ragged ? ragged_bytes(kDepth) : 0);
  static_assert(kHidden / 16 % kWarps == 0 && kWide % 2 == 0);
};

}  // namespace treadle
