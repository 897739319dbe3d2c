// The dense cluster kernels: which there are, and the layouts of a block's shared memory. They take
// batches whose rows all have all steps, without resets, of a width H that is a multiple of 8, and
// have as constants what cluster_{forward,backward}.cuh ask at run time: the rows of a tile
// (`stride`) and whether gates are saved. Neither torch nor CUDA, as shapes.h.
#pragma once

#include "kernels/recurrent/shapes.h"

namespace treadle {

// Registers a thread may have with one block of `warps` warps on a multiprocessor, whose four
// schedulers share the warps and have a quarter of the registers each.
constexpr int registers_of_warps(int warps) {
  const int each = 65536 / 4 / shapes::ceil_div(warps, 4) / kWarp / 8 * 8;
  return each < 255 ? each : 255;
}

// What `reserve` registers leave for fragments of weights, of four registers each.
constexpr int kept_fragments(int warps, int reserve, int fragments) {
  const int kept = (registers_of_warps(warps) - reserve) / 4;
  return kept < fragments ? kept : fragments;
}

// Forward: warp (group of 16 units, split of K), as ClusterForward.
template <int gates, int state_gates, int units, int blocks, int tiles, int stride>
struct DenseForward {
  static constexpr int kUnits = units, kBlocks = blocks, kTiles = tiles, kStride = stride;
  static constexpr int kGates = gates, kStateGates = state_gates;
  static constexpr int kHidden = units * blocks, kRows = stride * tiles;
  static constexpr int kGroups = units / 16, kSplits = units >= 64 ? 2 : 4;
  static constexpr int kWarps = kGroups * kSplits, kThreads = kWarp * kWarps;
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
                                  3 * shapes::ceil_div(kSends, kThreads) +
                                  4 * shapes::ceil_div(kFetches, kThreads);
  static constexpr int kKept = kept_fragments(kWarps, kReserve, kFragments);
  static constexpr int kDepth = tiles == 1 ? 8 : 4, kAhead = kDepth - 2;  // stages of the input

  // In bytes. Of each parity: h of all units, h of own units, barriers.
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
};

// Backward. A block multiplies the gradients of its own gates, which are its part of K, and sends
// each block that block's part of the sums: these are fewer bytes than the gradients that they are
// sums of, and need no second sum in shared memory. A warp multiplies kWide tiles of 16 units of
// the whole layer.
template <int gates, int state_gates, int units, int blocks, int tiles, int stride>
struct DenseBackward {
  static constexpr int kUnits = units, kBlocks = blocks, kTiles = tiles, kStride = stride;
  static constexpr int kGates = gates, kStateGates = state_gates;
  static constexpr int kHidden = units * blocks, kRows = stride * tiles;
  static constexpr int kGroups = units / 16;
  static constexpr int kWarps = units == 16 ? 4 : units == 48 ? 12 : 8;
  static constexpr int kThreads = kWarp * kWarps;
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
  static constexpr int kReserve = (kWarps > 8 && tiles > 1 ? 54 : 34 + 24 * tiles) +
                                  (state_gates == 4 ? 13 : 10) * kEarly + 5 * kItems + 2 * kWide +
                                  5 * shapes::ceil_div(kFetches, kThreads) +
                                  3 * shapes::ceil_div(kQuads, kThreads);
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
  static constexpr int kSharedBytes = kWeights + kWarps * (kFragments - kKept) * 512;
  static_assert(kHidden / 16 % kWarps == 0 && kWide % 2 == 0);
};

// ---- which there are

// Rows of a tile. A batch with other rows takes the next ones: a few more are sent.
inline constexpr int kDenseStrides[] = {1, 2, 3, 4, 5, 6, 8};
inline constexpr size_t kStrides = sizeof(kDenseStrides) / sizeof(kDenseStrides[0]);

// Those that are worth a kernel. Backward, pairs of rows are sent.
constexpr bool uses_stride(const ClusterShape& s, int stride, bool backward) {
  if (s.units == 32 && s.blocks == 4) return false;  // float32's
  const bool even = stride == 2 || stride == 4 || stride == 8;
  // Forward with four warps, copies are in the way of what computes.
  if (s.units == 16) return backward && s.tiles == 1 && even;
  if (s.tiles > 1) return stride == 5 || stride == 8;
  const bool wide = s.hidden() > 256;
  if (backward) return even || (wide && stride == 6);
  return (wide && stride <= 3) || stride == 2 || stride == 5 || stride == 8;
}

// Whether the units of a shape have a kernel of as many tiles, or fewer, that takes any batch: that
// one is asked how many clusters are resident, and runs where an output's rows suit no dense one.
template <int gates, int state_gates, bool backward>
constexpr bool takes_any_batch(const ClusterShape& shape) {
  for (size_t i = 0; i < kShapes; ++i) {
    const ClusterShape& s = kClusterShapes[i];
    const ShapeKernels& kernels = kShapeKernels<gates, state_gates>[i];
    if (s.units == shape.units && s.blocks == shape.blocks && s.tiles <= shape.tiles &&
        (backward ? kernels.half_backward : kernels.half_forward)) {
      return true;
    }
  }
  return false;
}

template <int gates, int state_gates, bool backward, size_t shape, size_t stride>
constexpr bool has_dense_kernel() {
  constexpr ClusterShape s = kClusterShapes[shape];
  constexpr int rows = kDenseStrides[stride];
  if constexpr (s.hidden() < 128 || s.blocks == 1 || !uses_stride(s, rows, backward) ||
                !takes_any_batch<gates, state_gates, backward>(s)) {
    return false;
  } else if constexpr (backward) {
    using Layout = DenseBackward<gates, state_gates, s.units, s.blocks, s.tiles, rows>;
    return Layout::kSharedBytes <= kMostSharedBytes;
  } else {
    using Layout = DenseForward<gates, state_gates, s.units, s.blocks, s.tiles, rows>;
    return Layout::kSharedBytes <= kMostSharedBytes;
  }
}

// For each shape, in bits, the indices in kDenseStrides of its kernels.
template <int gates, int state_gates, bool backward, size_t shape, size_t... strides>
constexpr unsigned dense_kernels_of_shape(std::index_sequence<strides...>) {
  return (0u | ... | (has_dense_kernel<gates, state_gates, backward, shape, strides>() << strides));
}

template <int gates, int state_gates, bool backward, size_t... shapes>
constexpr std::array<unsigned, kShapes> dense_kernels(std::index_sequence<shapes...>) {
  return {dense_kernels_of_shape<gates, state_gates, backward, shapes>(
      std::make_index_sequence<kStrides>{})...};
}

template <int gates, int state_gates, bool backward>
inline constexpr std::array<unsigned, kShapes> kDenseKernels =
    dense_kernels<gates, state_gates, backward>(std::make_index_sequence<kShapes>{});

// The index of the least stride with which a shape takes so many rows; kStrides: none.
constexpr size_t dense_stride(unsigned kernels, int tiles, int rows) {
  for (size_t i = 0; i < kStrides; ++i) {
    if ((kernels >> i & 1) != 0 && kDenseStrides[i] * tiles >= rows) return i;
  }
  return kStrides;
}

// The most rows with which a shape has such a kernel; 0: none.
constexpr int dense_rows(unsigned kernels, int tiles) {
  int rows = 0;
  for (size_t i = 0; i < kStrides; ++i) {
    if ((kernels >> i & 1) != 0) rows = kDenseStrides[i] * tiles;
  }
  return rows;
}

// By gates as cell_shapes().
inline const std::array<unsigned, kShapes>& dense_kernels_of(int gates, int state_gates,
                                                             bool backward) {
  if (gates == 3) return backward ? kDenseKernels<3, 3, true> : kDenseKernels<3, 3, false>;
  if (state_gates == 3) return backward ? kDenseKernels<4, 3, true> : kDenseKernels<4, 3, false>;
  return backward ? kDenseKernels<4, 4, true> : kDenseKernels<4, 4, false>;
}

}  // namespace treadle
