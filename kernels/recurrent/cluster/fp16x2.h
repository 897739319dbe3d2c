// The layout of a block's shared memory in the float32 cluster kernels that multiply on tensor
// cores (engine/fp16x2.cuh explains the products). These kernels compute the forward pass, of dense
// batches without resets or, if `ragged`, of any batch. Like engine/shapes.h, this header needs
// neither torch nor CUDA.
//
// An instruction multiplies eight columns, which come from rows of the batch. Each number of a row
// has two float16 terms, a high and a low. Five to eight rows form a large tile, which is eight
// columns of highs and eight columns of lows. Up to four rows form a small tile, in which column 2r
// has the highs of row r, and column 2r + 1 has its lows. More than eight rows form a large and a
// small tile.
#pragma once

#include "kernels/recurrent/cluster/dense.h"

namespace treadle {

// The steps that the ring buffer of cluster/fp16x2_ragged.cuh describes.
inline constexpr int kRaggedSteps = 64;

// A warp computes the products of 16 units over a quarter of K, the reduction dimension.
template <int gates, int state_gates, int units, int blocks, int rows, bool ragged>
struct SplitForward {
  static constexpr int kUnits = units, kBlocks = blocks, kRows = rows;
  static constexpr int kGates = gates, kStateGates = state_gates, kHidden = units * blocks;
  static constexpr int kGroups = units / 16, kParts = 4;  // kParts slices of K
  static constexpr int kWarps = kGroups * kParts, kThreads = kWarp * kWarps;
  static constexpr int kChunks = kHidden / 16 / kParts;  // per warp; 16 elements of K each
  static constexpr int kFragments = 2 * kChunks * state_gates;
  // How many rows are in the large tile and in the small one.
  static constexpr int kWide = rows <= 4 ? 0 : rows < 8 ? rows : 8, kNarrow = rows - kWide;
  static_assert(kNarrow <= 4 && kWarps == 8 && blocks % 8 == 0);

  // The sums of 16 units are stored in the order of the accumulator registers of the lanes: first
  // pairs of rows of the large tile, then rows of the small one. A slot is 32 consecutive sums, one
  // for each lane of the warp that computes the cell from them. A warp has at most kItems slots.
  static constexpr int kPairs = (kWide + 1) / 2;
  static constexpr int kWords = 32 * kPairs + 16 * kNarrow;
  static constexpr int kSlots = shapes::ceil_div(kWords, kWarp);
  static constexpr int kItems = shapes::ceil_div(kSlots, kParts);

  // The position of a sum among those of 16 units. place_of() is the inverse.
  static constexpr int word_of(int unit, int row) {
    const int g = unit % 8, upper = unit / 8;
    return row < kWide ? (g * kPairs + row / 2) * 4 + upper * 2 + row % 2
                       : 32 * kPairs + (g * kNarrow + row - kWide) * 2 + upper;
  }
  struct Place {
    int unit, row;
    bool exists;
  };
  static constexpr Place place_of(int word) {
    if (word < 32 * kPairs) {
      const int row = word / 4 % at_least_one(kPairs) * 2 + word % 2;
      return {word / (4 * at_least_one(kPairs)) + word / 2 % 2 * 8, row, row < kWide};
    }
    const int rest = word - 32 * kPairs;
    return {rest / (2 * at_least_one(kNarrow)) + rest % 2 * 8,
            kWide + rest / 2 % at_least_one(kNarrow), word < kWords};
  }

  // Checks that every sum has its own position, and that the two functions are inverses.
  static constexpr bool places_agree() {
    int sums = 0;
    for (int word = 0; word < kWarp * kSlots; ++word) {
      const Place at = place_of(word);
      if (!at.exists) continue;
      if (at.unit >= 16 || at.row >= rows || word_of(at.unit, at.row) != word) return false;
      ++sums;
    }
    return sums == 16 * rows;
  }

  static constexpr int kTiles = (kWide > 0) + (kNarrow > 0);
  // These numbers were found by trial: with one register more or less, the compiler spills.
  static constexpr int kBesides = state_gates == 4 ? 92 : gates == 4 && kItems == 1 ? 92 : 84;
  static constexpr int kReserve =
      kBesides + 12 * state_gates * kTiles + (8 + gates + state_gates) * kItems + (ragged ? 8 : 0);
  static constexpr int kKept = kept_fragments(kWarps, kReserve, kFragments);
  // A stage is a buffer for the input products of one step, which are loaded kAhead steps ahead.
  static constexpr int kDepth = rows <= 4 ? 8 : 4, kAhead = kDepth - 1;

  // Sizes and offsets in bytes. The first kParity bytes exist twice, for even and for odd steps: h
  // of all units, [group of 16 units][highs, lows][row][unit]; h of the block's own units; and
  // mbarriers.
  static constexpr int kHalfBytes = 32 * rows, kTileBytes = 2 * kHalfBytes;  // of 16 units
  static constexpr int kState = 0, kOutgoing = kHidden / 16 * kTileBytes;
  static constexpr int kOwnBytes = kGroups * kTileBytes;
  static constexpr int kBarriers = kOutgoing + kOwnBytes;
  static constexpr int kParity = kBarriers + kParts / 2 * 16;
  static constexpr int kSums = 2 * kParity;
  static constexpr int kSumBytes = 4 * kWarp * kSlots;  // of 16 units of a gate
  static constexpr int kPartBytes = kGroups * state_gates * kSumBytes;
  static constexpr int kStages = kSums + kParts * kPartBytes;
  static constexpr int kStageBytes = gates * kGroups * kSumBytes;
  static constexpr int kBias = kStages + kDepth * kStageBytes;  // [gate][unit] {bias, scale}
  static constexpr int kExact = kBias + gates * units * 8;      // which rows of W_hh use fma
  static constexpr int kRagged = kExact + 16;                   // cluster/fp16x2_ragged.cuh
  static constexpr int kWeights = kRagged + (ragged ? kRaggedSteps * 16 : 0);
  static constexpr int kSharedBytes = kWeights + kWarps * (kFragments - kKept) * 512;

 private:
  static constexpr int at_least_one(int n) { return n > 0 ? n : 1; }
};

}  // namespace treadle
