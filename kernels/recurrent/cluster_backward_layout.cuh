// Cluster kernel, backward: sizes, and the layout of a block's shared memory. A block has `units`
// hidden units; K are the gates of all units, divided among all warps.
#pragma once

#include "kernels/recurrent/cluster.cuh"

namespace treadle {

template <int gates, int units, int blocks>
struct ClusterBackward {
  static constexpr int kGates = gates, kUnits = units, kHidden = units * blocks, kRows = 8;
  static constexpr int kGroups = units / 16;                             // of 16 units
  static constexpr int kWarps = units == 16 ? 4 : units == 48 ? 12 : 8;  // and parts of K
  static constexpr int kComputing = kWarp * kWarps;
  static constexpr bool kCopyWarp = units <= 32;  // as forward
  static constexpr int kThreads = kComputing + (kCopyWarp ? kWarp : 0);
  static constexpr int kCopying = kCopyWarp ? kWarp : kComputing;
  static constexpr int kChunks = gates * kHidden / 16 / kWarps;  // of 16 k, a warp
  static constexpr int kItems = units / 4 / kWarps;  // of a lane: one unit of one row each
  // A thread's 16-byte chunks to send, and to prefetch of gates and grad_output, and of c; its
  // 8-byte stores of grad_gates.
  static constexpr int kSends = ceil_div(gates * kHidden, kComputing);
  static constexpr int kChunks16 = ceil_div((gates + 1) * kRows * units / 8, kCopying);
  static constexpr int kCChunks16 = ceil_div(kRows * units / 4, kCopying);
  static constexpr int kQuads = ceil_div(gates * kRows * units / 4, kCopying);
  // As forward: registers that addresses, items and sends leave for weights.
  static constexpr int kFree =
      (registers_of(kThreads) - (kCopyWarp ? 40 : 50) - 16 * kItems - 3 * kSends) / (4 * kGroups);
  static constexpr int kInRegisters = kChunks < kFree ? kChunks : kFree;
  static constexpr int kDepth = units == 48 ? 6 : 8;  // stages of what forward saved
  static constexpr int kAhead = kDepth - 2;

  // In bytes.
  static constexpr int kOutgoingBytes = gates * units * kRows * 2;  // own gradients; two of them
  static constexpr int kStateBytes = blocks * kOutgoingBytes;       // everybody's; two of them
  static constexpr int kStageRow = units * 2 + 16, kCRow = units * 4 + 16;
  static constexpr int kCStates = (gates + 1) * kRows * kStageRow;  // in a stage, after gates and
  static constexpr int kStageBytes = kCStates + kRows * kCRow;      // the gradient of the output
  static constexpr int kState = 0, kSums = kState + 2 * kStateBytes;
  static constexpr int kOutgoing = kSums + kWarps * units * 8 * 4;
  static constexpr int kStages = kOutgoing + 2 * kOutgoingBytes;
  static constexpr int kWeights = kStages + kDepth * kStageBytes;
  static constexpr int kBarriers = kWeights + kWarps * (kChunks - kInRegisters) * kGroups * 512;
  static constexpr int kSharedBytes = kBarriers + 2 * kWarps * 8;
  static_assert(units / 4 % kWarps == 0 && gates * kHidden / 16 % kWarps == 0);
};

}  // namespace treadle
