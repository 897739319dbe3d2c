// The shapes of the persistent kernels and the layouts of a block's shared memory.
// This header needs neither torch nor CUDA. The planner uses these numbers before a launch, and the
// kernels are compiled for them. `gates` is the number of gates of a unit; `state_gates` is how
// many of them have a product with h (kernels/math/cells).
#pragma once

#include <cstdint>

#include "kernels/common/dtype.h"
#include "kernels/recurrent/cluster/kernels.h"
#include "kernels/recurrent/grid/shapes.h"

namespace treadle {

namespace shapes {

constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace shapes

// The registers per thread if a multiprocessor runs one block of `threads` threads.
constexpr int registers_of(int threads) {
  return 65536 / threads < 255 ? 65536 / threads / 8 * 8 : 255;
}

// ---- cluster

// The half-type forward kernel. A block has `units` hidden units and all their gates. A warp
// computes the products of 16 units over one of kSplits slices of K, the reduction dimension.
template <int gates, int state_gates, int units, int blocks, int tiles>
struct ClusterForward {
  static constexpr int kUnits = units, kBlocks = blocks, kTiles = tiles, kGates = gates;
  static constexpr int kHidden = units * blocks, kRows = 8 * tiles;
  static constexpr int kGroups = units / 16;           // of 16 units
  static constexpr int kSplits = units >= 64 ? 2 : 4;  // slices of K
  static constexpr int kWarps = kGroups * kSplits, kComputing = kWarp * kWarps;
  static constexpr int kChunks = kHidden / 16 / kSplits;  // per warp; 16 elements of K each
  // An extra warp copies between global and shared memory, so that no sum waits for copies. If the
  // weights need more registers than a ninth warp would leave, the computing warps copy instead.
  // With nine warps, one of the four schedulers has three warps, which leaves 168 registers per
  // thread.
  static constexpr bool kCopyWarp = units <= 32 && kChunks * 4 * state_gates <= 96;
  static constexpr int kThreads = kComputing + (kCopyWarp ? kWarp : 0);
  static constexpr int kCopying = kCopyWarp ? kWarp : kComputing;
  // Items per lane. An item is a unit in a row of the batch, for which the lane computes the cell.
  static constexpr int kItems = 4 * tiles >= kSplits ? 4 * tiles / kSplits : 1;
  // Counts per thread: 16-byte chunks to send, 16-byte chunks to prefetch, and 8-byte stores of h.
  static constexpr int kSends = shapes::ceil_div(kHidden * tiles, kComputing);
  static constexpr int kChunks16 = shapes::ceil_div(gates * kRows * units / 8, kCopying);
  static constexpr int kQuads = shapes::ceil_div(kRows * units / 4, kCopying);
  // How many chunks have their weights in registers. Addresses take 44 or 64 registers of a thread
  // (found by trial); sums, items and sends also take some, and weights get the rest. The weights
  // of the other chunks are in shared memory.
  static constexpr int kFree = (registers_of(kThreads) - (kCopyWarp ? 44 : 64) -
                                4 * state_gates * tiles - 5 * kItems - 3 * kSends) /
                               (4 * state_gates);
  static constexpr int kInRegisters = kChunks < kFree ? kChunks : kFree;
  // A stage is a buffer for the input products of one step, which are loaded kAhead steps ahead.
  static constexpr int kDepth = tiles == 1 ? 8 : 4, kAhead = kDepth - 2;

  // Sizes and offsets in bytes.
  static constexpr int kStateBytes = kHidden * kRows * 2;   // h of all units; double-buffered
  static constexpr int kOutgoingBytes = units * kRows * 2;  // h of own units; double-buffered
  static constexpr int kStageRow = units * 2 + 16;          // a row in a stage, with padding
  static constexpr int kStageBytes = gates * kRows * kStageRow;
  static constexpr int kState = 0, kSums = kState + 2 * kStateBytes;
  static constexpr int kOutgoing = kSums + kSplits * state_gates * tiles * units * 8 * 4;
  static constexpr int kStages = kOutgoing + 2 * kOutgoingBytes;
  static constexpr int kBias = kStages + kDepth * kStageBytes;
  static constexpr int kWeights = kBias + gates * units * 4;
  static constexpr int kBarriers = kWeights + kWarps * (kChunks - kInRegisters) * state_gates * 512;
  static constexpr int kSharedBytes = kBarriers + 2 * kSplits * 8;
  // Only with resets: bit masks of the rows that reset, and two buffers for output. A row that
  // resets before the next step sends the h to which it resets, so its output needs another buffer.
  static constexpr int kMarks = kSharedBytes, kUnsent = kMarks + 16;
  static constexpr int kResetsBytes = kUnsent + 2 * kOutgoingBytes;
};

// The half-type backward kernel. K runs over the state gates of all units, and is divided among all
// warps.
template <int gates, int state_gates, int units, int blocks>
struct ClusterBackward {
  static constexpr int kGates = gates, kStateGates = state_gates, kUnits = units,
                       kHidden = units * blocks, kRows = 8;
  static constexpr int kGroups = units / 16;                             // of 16 units
  static constexpr int kWarps = units == 16 ? 4 : units == 48 ? 12 : 8;  // one slice of K each
  static constexpr int kComputing = kWarp * kWarps;
  static constexpr int kChunks = state_gates * kHidden / 16 / kWarps;            // 16 elements each
  static constexpr bool kCopyWarp = units <= 32 && kChunks * 4 * kGroups <= 96;  // as in forward
  static constexpr int kThreads = kComputing + (kCopyWarp ? kWarp : 0);
  static constexpr int kCopying = kCopyWarp ? kWarp : kComputing;
  static constexpr int kItems = units / 4 / kWarps;  // items per lane
  // Counts per thread: 16-byte chunks to send, 16-byte chunks to prefetch (first of gates and
  // grad_output, then of c), and 8-byte stores of grad_gates.
  static constexpr int kSends = shapes::ceil_div(state_gates * kHidden, kComputing);
  static constexpr int kChunks16 = shapes::ceil_div((gates + 1) * kRows * units / 8, kCopying);
  static constexpr int kCChunks16 = shapes::ceil_div(kRows * units / 4, kCopying);
  static constexpr int kQuads = shapes::ceil_div(gates * kRows * units / 4, kCopying);
  // How many chunks have their weights in registers, as in ClusterForward.
  static constexpr int kFree =
      (registers_of(kThreads) - (kCopyWarp ? 40 : 50) - 16 * kItems - 3 * kSends) / (4 * kGroups);
  static constexpr int kInRegisters = kChunks < kFree ? kChunks : kFree;
  static constexpr int kDepth = units == 48 ? 6 : 8;  // stages of saved values
  static constexpr int kAhead = kDepth - 2;

  // Sizes and offsets in bytes.
  static constexpr int kOutgoingBytes =
      gates * units * kRows * 2;  // own gradients; double-buffered
  // The gradients of the state gates of all blocks; double-buffered.
  static constexpr int kStateBytes = blocks * state_gates * units * kRows * 2;
  static constexpr int kStageRow = units * 2 + 16, kCRow = units * 4 + 16;
  // A stage has the saved values of one step: gates and the gradient of the output, then c (at
  // kCStates).
  static constexpr int kCStates = (gates + 1) * kRows * kStageRow;
  static constexpr int kStageBytes = kCStates + kRows * kCRow;
  static constexpr int kState = 0, kSums = kState + 2 * kStateBytes;
  static constexpr int kOutgoing = kSums + kWarps * units * 8 * 4;
  static constexpr int kStages = kOutgoing + 2 * kOutgoingBytes;
  static constexpr int kWeights = kStages + kDepth * kStageBytes;
  static constexpr int kBarriers = kWeights + kWarps * (kChunks - kInRegisters) * kGroups * 512;
  static constexpr int kSharedBytes = kBarriers + 2 * kWarps * 8;
  static constexpr int kMarks = kSharedBytes, kResetsBytes = kMarks + 16;  // as in forward
  static_assert(units / 4 % kWarps == 0 && state_gates * kHidden / 16 % kWarps == 0);
};

// The largest numbers of float32 weights that a thread has in registers and in shared memory. In a
// single block each unit has two threads, and each of them has half of K. A block of a cluster has
// 256 threads. Each of them computes 2 * state_gates outputs, or 4 in the backward pass. If some
// weights are in shared memory, less of it is left for rows.
inline constexpr int kFp32Weights = 192, kFp32SharedWeights = 64;

constexpr int fp32_cluster_rows(int weights) { return weights <= kFp32Weights ? 8 : 4; }

constexpr int fp32_weights(const ClusterShape& shape, int state_gates) {
  return shape.blocks == 1 ? state_gates * shape.units / 2
                           : state_gates * static_cast<int>(shape.hidden()) * shape.units / 256;
}

// The most rows of the batch that a shape supports in float32.
constexpr int fp32_rows(const ClusterShape& shape, int state_gates) {
  return shape.blocks == 1 ? shape.rows() : fp32_cluster_rows(fp32_weights(shape, state_gates));
}

}  // namespace treadle
