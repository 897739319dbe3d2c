// Cluster kernel, forward: sizes, and the layout of a block's shared memory. A block has `units`
// hidden units and all their gates; a warp multiplies 16 units by a part of K (kSplits parts).
#pragma once

#include "kernels/recurrent/cluster.cuh"

namespace treadle {

template <int gates, int units, int blocks, int tiles>
struct ClusterForward {
  static constexpr int kUnits = units, kBlocks = blocks, kTiles = tiles, kGates = gates;
  static constexpr int kHidden = units * blocks, kRows = 8 * tiles;
  static constexpr int kGroups = units / 16;           // of 16 units
  static constexpr int kSplits = units >= 64 ? 2 : 4;  // of K
  static constexpr int kWarps = kGroups * kSplits, kComputing = kWarp * kWarps;
  // One more warp copies between global and shared memory, so that no sum waits for it. Where the
  // weights need the registers that it would cost, the computing warps copy.
  static constexpr bool kCopyWarp = units <= 32;
  static constexpr int kThreads = kComputing + (kCopyWarp ? kWarp : 0);
  static constexpr int kCopying = kCopyWarp ? kWarp : kComputing;
  static constexpr int kChunks = kHidden / 16 / kSplits;  // of 16 k, a warp
  // Items (unit, row) of a lane.
  static constexpr int kItems = 4 * tiles >= kSplits ? 4 * tiles / kSplits : 1;
  // A thread's 16-byte chunks to send, 16-byte chunks to prefetch, and 8-byte stores of h.
  static constexpr int kSends = ceil_div(kHidden * tiles, kComputing);
  static constexpr int kChunks16 = ceil_div(gates * kRows * units / 8, kCopying);
  static constexpr int kQuads = ceil_div(kRows * units / 4, kCopying);
  // Chunks whose weights stay in registers: what is left of the register file after addresses (44
  // or 64, found by trial), sums, items and sends. The other chunks lie in shared memory.
  static constexpr int kFree = (registers_of(kThreads) - (kCopyWarp ? 44 : 64) - 4 * gates * tiles -
                                5 * kItems - 3 * kSends) /
                               (4 * gates);
  static constexpr int kInRegisters = kChunks < kFree ? kChunks : kFree;
  static constexpr int kDepth = tiles == 1 ? 8 : 4, kAhead = kDepth - 2;  // stages of the input

  // In bytes.
  static constexpr int kStateBytes = kHidden * kRows * 2;   // h of all units; two of them
  static constexpr int kOutgoingBytes = units * kRows * 2;  // h of own units; two of them
  static constexpr int kStageRow = units * 2 + 16;          // of the input: kDepth stages
  static constexpr int kStageBytes = gates * kRows * kStageRow;
  static constexpr int kState = 0, kSums = kState + 2 * kStateBytes;
  static constexpr int kOutgoing = kSums + kSplits * gates * tiles * units * 8 * 4;
  static constexpr int kStages = kOutgoing + 2 * kOutgoingBytes;
  static constexpr int kBias = kStages + kDepth * kStageBytes;
  static constexpr int kWeights = kBias + gates * units * 4;
  static constexpr int kBarriers = kWeights + kWarps * (kChunks - kInRegisters) * gates * 512;
  static constexpr int kSharedBytes = kBarriers + 2 * kSplits * 8;
};

}  // namespace treadle
