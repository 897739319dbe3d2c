// The layouts of a block's shared memory in the grid kernels, for engine/shapes.h. grid.cuh
// explains tiles, packets, MMA warps and epilogue warps.
#pragma once

#include <cstdint>

#include "kernels/common/dtype.h"

namespace treadle {

inline constexpr int kWarp = 32;
inline constexpr int kMostSharedBytes = 227 * 1024;  // per block, on sm_90

// Each layout supports every H up to one of these limits. The layouts for 128 and 256 (h128, h256)
// exist only without setmaxnreg (see below), because sm_90 uses clusters for such layers. The
// layout for 2048 (h2048) exists only for the forward pass, in half types and, with setmaxnreg, in
// float32 with TF32.
inline constexpr int kGrid128 = 128, kGrid256 = 256, kGridNarrowHidden = 512, kGridHidden = 1024,
                     kGridWideHidden = 2048;
inline constexpr int kGridWidths = 5;
constexpr int grid_width(int64_t hidden, bool setmaxnreg) {
  if (hidden <= kGrid128 && !setmaxnreg) return 0;
  if (hidden <= kGrid256 && !setmaxnreg) return 1;
  return hidden <= kGridNarrowHidden ? 2 : hidden <= kGridHidden ? 3 : 4;
}

// A warp multiplies at least 32 elements of K, the reduction dimension.
constexpr int grid_mma_warps(int hidden) { return hidden > kGrid128 ? 8 : 4; }

inline constexpr int kGridRing = 32;  // slots of the exchange, one per step

// The registers per thread if a multiprocessor runs one block of `warps` warps. Its four schedulers
// share the warps, and each has a quarter of the registers.
constexpr int registers_of_warps(int warps) {
  const int each = 65536 / 4 / ((warps + 3) / 4) / kWarp / 8 * 8;
  return each < 255 ? each : 255;
}

// How many registers are left for each epilogue thread if each of the `multiplying` MMA threads
// uses `each` registers.
constexpr int finishing_registers(int threads, int multiplying, int each) {
  const int begins_with = 65536 / threads / 8 * 8 * threads;
  return (begins_with - multiplying * each) / (threads - multiplying) / 8 * 8;
}

// If `setmaxnreg` is true, MMA warps take registers from the epilogue warps with the instruction
// setmaxnreg, which only sm_90 has. Otherwise all threads have the same number of registers, and
// more weights are in shared memory.

template <int gates, int state_gates, int hidden, bool setmaxnreg, int c_parts>
struct GridForward {
  static constexpr bool kSetmaxnreg = setmaxnreg;
  // A block has few units, so that registers can hold all or most of its weights.
  static constexpr int kUnits = 16, kBlocks = hidden / kUnits;
  // Whether there are too few registers for all weights and the packets of two tiles.
  static constexpr bool kWide =
      hidden > kGridHidden || (!setmaxnreg && hidden > kGridNarrowHidden && state_gates == 4);
  static constexpr int kTileBytes = hidden * 8 * 2;  // h of all units in 8 rows
  static constexpr int kMostRows = 128;
  static constexpr int kMultiplyingWarps = grid_mma_warps(hidden);
  static constexpr int kMultiplying = kMultiplyingWarps * kWarp;
  // Two teams of epilogue threads alternate between tiles. A thread computes a pair of units of one
  // row of a tile.
  static constexpr int kTeam = kUnits / 2 * 8, kFinishing = 2 * kTeam;
  static constexpr int kThreads = kMultiplying + kFinishing;
  static constexpr int kMultiplyingRegisters = !setmaxnreg ? registers_of_warps(kThreads / kWarp)
                                               : kWide || state_gates == 4 ? 200
                                                                           : 176;
  static constexpr int kFinishingRegisters =
      finishing_registers(kThreads, kMultiplying, kMultiplyingRegisters);
  // How many chunks of 32 elements of K, the reduction dimension, a warp multiplies.
  static constexpr int kChunks = hidden / 32 / kMultiplyingWarps;
  // How many half-chunks of weights fit in registers next to packets, sums and addresses. The
  // others are in shared memory.
  static constexpr int kFree = (kMultiplyingRegisters - 40 - 4 * kChunks) / (4 * state_gates);
  static constexpr int kInRegisters = kWide && kFree < 2 * kChunks ? kFree : 2 * kChunks;
  static constexpr int kInShared = 2 * kChunks - kInRegisters;
  static constexpr int kDepth = kWide && state_gates == 4 ? 4 : 6;  // stages of input products
  static constexpr int kStageRow = kUnits * 2 + 16;                 // bytes
  // With one tile: how many clock cycles to wait before the first poll.
  static constexpr int kFirstPoll =
      setmaxnreg && state_gates == 4 && hidden > kGridNarrowHidden ? 350 : 600;

  static constexpr int kSumBytes = kMultiplyingWarps * state_gates * 512;
  static constexpr int kWeights = 2 * kSumBytes;  // after both buffers of sums
  static constexpr int kStages = kWeights + kMultiplyingWarps * kInShared * state_gates * 512;
  // Bytes per row: c and h of 8 pairs, and the stages of input products.
  static constexpr int kStateBytes = 4 + 8 * c_parts;  // of a pair
  static constexpr int kRowBytes = kUnits / 2 * kStateBytes + kDepth * gates * kStageRow;

  static constexpr int shared_bytes(int rows) { return kStages + rows * kRowBytes; }
};

// Forward in float32 on tensor cores. Every float of the exchange and of W_hh becomes `words`
// float16 numbers: two, a high and a low (engine/fp16x2.cuh), or only the high, if TF32 is allowed.
// A pair of units has a packet with both highs and, if there are lows, a packet with both lows. So
// a tile is as large as a half-type tile with `words` times as many units.
template <int gates, int state_gates, int hidden, int words, bool setmaxnreg, int c_parts>
struct GridSplit {
  static constexpr bool kSetmaxnreg = setmaxnreg;
  static constexpr int kGates = gates, kStateGates = state_gates, kHidden = hidden, kWords = words;
  static constexpr int kUnits = 16, kBlocks = hidden / kUnits;
  static constexpr int kTileBytes = kHidden * 8 * 2 * kWords;
  static constexpr int kMostRows = 128;
  static constexpr int kMultiplyingWarps = grid_mma_warps(hidden);
  static constexpr int kMultiplying = kMultiplyingWarps * kWarp;
  static constexpr int kTeam = kUnits / 2 * 8, kFinishing = 2 * kTeam;  // as in GridForward
  static constexpr int kThreads = kMultiplying + kFinishing, kWarps = kThreads / kWarp;
  static constexpr int kMultiplyingRegisters = !setmaxnreg ? registers_of_warps(kThreads / kWarp)
                                               : state_gates == 4 ? 184
                                                                  : 176;
  static constexpr int kFinishingRegisters =
      finishing_registers(kThreads, kMultiplying, kMultiplyingRegisters);
  // A warp has kChunks chunks of 32 elements of K: first the kHighs chunks with highs, then those
  // with lows. It multiplies kGatesTogether gates at a time. kInRegisters of its kFragments
  // fragments of weights are in registers. Up to h512, and with highs alone up to h1024, these are
  // all fragments. Otherwise, cells with four gates keep more fragments in registers than other
  // cells, because in shared memory they would take the space of rows.
  static constexpr int kHighs = kHidden / 32 / kMultiplyingWarps, kChunks = kWords * kHighs;
  static constexpr int kGatesTogether = kWords == 2 && state_gates % 2 == 0 ? 2 : state_gates;
  static constexpr int kFragments = 2 * kChunks * state_gates;
  static constexpr int kInRegisters = hidden * words <= 1024 ? kFragments
                                      : state_gates == 4     ? 24
                                      : kFragments < 18      ? kFragments
                                                             : 18;
  static constexpr int kInShared = kFragments - kInRegisters;
  static constexpr int kDepth = 3;                                             // stages of input
  static constexpr int kStageRow = kUnits * 4 + (state_gates == 4 ? 16 : 32);  // bytes
  static constexpr int kFirstPoll = 600;  // with one tile: clock cycles before the first poll

  // Offsets in a tile. word_of(pair) is the offset of a pair's highs in the first row. The lows, if
  // there are any, follow kLowAt bytes later.
  static constexpr int kLowAt = kHighs * 512;
  static constexpr int word_of(int pair) {
    const int chunk = pair / 16, warp = chunk / kHighs;
    return (warp * kChunks + chunk % kHighs) * 512 + pair % 16 * 4;
  }

  static constexpr int kSumBytes = kMultiplyingWarps * state_gates * 512;  // per buffer
  static constexpr int kWeights = 2 * kSumBytes;
  static constexpr int kBias = kWeights + kMultiplyingWarps * kInShared * 512;  // biases, scales
  static constexpr int kExact = kBias + gates * kUnits * 8;                     // rows that use fma
  static constexpr int kStages = kExact + 16;
  // Bytes per row: c and h of 8 pairs, and the stages of input products.
  static constexpr int kStateBytes = 8 + 8 * c_parts;  // of a pair
  static constexpr int kRowBytes = kUnits / 2 * kStateBytes + kDepth * gates * kStageRow;

  static constexpr int shared_bytes(int rows) { return kStages + rows * kRowBytes; }
};

template <int gates, int state_gates, int hidden, bool setmaxnreg, int c_parts>
struct GridBackward {
  static constexpr bool kSetmaxnreg = setmaxnreg;
  // Every block reads the gradients of all gates of all units. So there are as few blocks as can
  // hold W_hh.
  static constexpr int kUnits = !setmaxnreg && hidden > kGridNarrowHidden ? 16 : 32;
  static constexpr int kBlocks = hidden / kUnits;
  static constexpr int kTileBytes = state_gates * hidden * 8 * 2;  // in the B operand's order
  static constexpr int kMostRows = 64;
  static constexpr int kMultiplyingWarps = grid_mma_warps(hidden);
  static constexpr int kMultiplying = kMultiplyingWarps * kWarp;
  // A thread computes a pair of units of one row of a tile. There are two teams if weights leave
  // enough registers.
  static constexpr int kTeam = kUnits / 2 * 8;
  static constexpr int kTeams =
      kUnits == 16 || (setmaxnreg && hidden <= kGridNarrowHidden && state_gates <= 3) ? 2 : 1;
  static constexpr int kFinishing = kTeams * kTeam;
  static constexpr int kThreads = kMultiplying + kFinishing;
  static constexpr int kMultiplyingRegisters = !setmaxnreg   ? registers_of_warps(kThreads / kWarp)
                                               : kTeams == 2 ? 168
                                               : hidden > kGridNarrowHidden ? 216
                                                                            : 200;
  static constexpr int kFinishingRegisters =
      finishing_registers(kThreads, kMultiplying, kMultiplyingRegisters);
  // As in GridForward.
  static constexpr int kChunks = state_gates * hidden / 32 / kMultiplyingWarps;
  static constexpr int kTiles = kUnits / 16;  // of 16 units
  // How many of the 2 * kChunks half-chunks fit in registers next to packets, sums and addresses.
  static constexpr int kFree = (kMultiplyingRegisters - 40 - 4 * kChunks) / (4 * kTiles);
  static constexpr int kInRegisters = kFree < 2 * kChunks ? kFree : 2 * kChunks;
  static constexpr int kInShared = 2 * kChunks - kInRegisters;
  static constexpr int kDepth = 3;  // stages of saved values
  static constexpr int kStageRow = kUnits * 2 + 32, kCRow = kUnits * 4 + 32;  // bytes
  static constexpr int kFirstPoll = 350;  // with one tile: clock cycles before the first poll

  static constexpr int kSumBytes = kMultiplyingWarps * kTiles * 512;  // per buffer
  static constexpr int kWeights = 2 * kSumBytes;
  static constexpr int kStages = kWeights + kMultiplyingWarps * kInShared * kTiles * 512;
  // Bytes per row: gradients of h and c of 16 pairs, and stages of gates, grad_output and c.
  static constexpr int kStateBytes = 8 + 8 * c_parts;  // of a pair
  static constexpr int kRowBytes =
      kUnits / 2 * kStateBytes + kDepth * ((gates + 1) * kStageRow + c_parts * kCRow);

  static constexpr int shared_bytes(int rows) { return kStages + rows * kRowBytes; }
};

// Backward in float32 on tensor cores. Every float of the exchange and of W_hh becomes `words`
// float16 numbers: two (engine/fp16x2.cuh), or one if TF32 is allowed. A span is 16 units. The
// gradients of all their gates in one row share a scale. A warp multiplies several spans.
template <int gates, int state_gates, int hidden, int words, bool setmaxnreg, int c_parts>
struct GridSplitBackward {
  static constexpr bool kSetmaxnreg = setmaxnreg;
  static constexpr int kGates = gates, kStateGates = state_gates, kHidden = hidden, kWords = words;
  // Blocks have 32 units only if shared memory then has room for rows and weights.
  static constexpr int kUnits = setmaxnreg && hidden * words == kGridNarrowHidden ? 32 : 16;
  static constexpr int kBlocks = hidden / kUnits;
  static constexpr int kMostRows = 64;
  // A warp has at least four spans, because it loads the scales of four spans at a time.
  static constexpr int kMultiplyingWarps = hidden > kGrid256 ? 8 : hidden / 64;
  static constexpr int kMultiplying = kMultiplyingWarps * kWarp;
  // A team computes a tile; each of its threads computes a pair of units of one row. There are two
  // teams if a block has 16 units.
  static constexpr int kFinishing = 128, kTeam = kUnits / 2 * 8, kTeams = kFinishing / kTeam;
  static constexpr int kThreads = kMultiplying + kFinishing;
  static constexpr int kMultiplyingRegisters =
      setmaxnreg ? 192 : registers_of_warps(kThreads / kWarp);
  static constexpr int kFinishingRegisters =
      finishing_registers(kThreads, kMultiplying, kMultiplyingRegisters);
  static constexpr int kTiles = kUnits / 16;
  static constexpr int kSpans = hidden / 16 / kMultiplyingWarps;  // per warp
  // A chunk has 16 bytes per lane: the highs and lows of one gate in one span or, with one float16
  // number for each float, the highs of one gate in two spans. kWindow chunks are in flight at a
  // time.
  static constexpr int kChunks = kSpans * state_gates * words / 2;
  static constexpr int kWindow = kChunks % 12 == 0 ? 12 : kChunks % 8 == 0 ? 8 : kChunks;
  // A warp has kFragments fragments of weights. Those that do not fit in registers, next to
  // packets, sums, scales and addresses, are in shared memory.
  static constexpr int kFragments = 2 * kChunks * kTiles;
  static constexpr int kFree = (kMultiplyingRegisters - 52 - 4 * kWindow - 12 * kTiles) / 8 * 2;
  static constexpr int kInRegisters = kFragments < kFree ? kFragments : kFree;
  static constexpr int kInShared = kFragments - kInRegisters;
  static constexpr int kDepth = 3;  // stages of saved values
  static constexpr int kStageRow = kUnits * 4 + (state_gates == 4 ? 16 : 32);  // bytes
  static constexpr int kCRow = kStageRow;

  // A tile consists of packets followed by scales. The scales are ordered
  // [warp][half of the rows][span], with one byte for each of four rows. word_of() is the offset of
  // the first packet of a pair of units in the first row.
  static constexpr int kScales = kMultiplyingWarps * kChunks * 512;
  static constexpr int kTileBytes = kScales + kMultiplyingWarps * 2 * kSpans * 4;
  static constexpr int word_of(int pair) {
    const int span = pair / 8, chunk = span * words / 2 * state_gates;
    return chunk * 512 + (words == 1 ? span % 2 * 8 : 0) + pair % 8 / 2 * 16 + pair % 2 * 4;
  }
  static constexpr int kLowAt = 8;
  static constexpr int scale_of(int span, int half) {
    return kScales + ((span / kSpans * 2 + half) * kSpans + span % kSpans) * 4;
  }

  static constexpr int kSumBytes = kMultiplyingWarps * kTiles * 512;  // per buffer
  static constexpr int kWeights = 2 * kSumBytes;
  static constexpr int kColumns = kWeights + kMultiplyingWarps * kInShared * 512;  // column scales
  static constexpr int kExact = kColumns + kUnits * 4;  // which units use fma
  static constexpr int kBiases = kExact + 16;
  static constexpr int kStages = kBiases + kFinishing * gates * 8;
  // Bytes per row: gradients of h and c of pairs, and stages of gates, grad_output and c.
  static constexpr int kStateBytes = 8 + 8 * c_parts;  // of a pair
  static constexpr int kRowBytes =
      kUnits / 2 * kStateBytes + kDepth * ((gates + 1) * kStageRow + c_parts * kCRow);

  static constexpr int shared_bytes(int rows) { return kStages + rows * kRowBytes; }
};

#ifndef __CUDACC_RTC__
// ---- tables for the planner. NVRTC would emit a variable for each constant of each layout in
// them: 20,000 variables, whose symbols would take 1.9 MB in the image of each kernel.

// The resources that a group of blocks needs.
struct GridShape {
  int blocks;      // per group
  int tile_bytes;  // bytes that a group exchanges for one tile in one step
  int most_rows, stages, row_bytes;

  // The number of rows, a multiple of 8, that fit in a block's shared memory, or 0 if no tile fits.
  constexpr int rows(int64_t shared_bytes) const {
    const int64_t room = (shared_bytes - stages) / row_bytes / 8 * 8;
    return room < 8 ? 0 : room < most_rows ? static_cast<int>(room) : most_rows;
  }
};

template <class Layout>
constexpr GridShape grid_shape() {
  return {Layout::kBlocks, Layout::kTileBytes, Layout::kMostRows, Layout::kStages,
          Layout::kRowBytes};
}

// The layouts of a cell's grid kernels, indexed by grid_width(). The first two arrays are for half
// types. The other two are for float32, where layouts also depend on whether TF32 is allowed.
struct GridShapes {
  GridShape forward[kGridWidths], backward[kGridWidths - 1];
  GridShape split[kGridWidths][2], split_backward[kGridWidths - 1][2];
};

// With setmaxnreg the planner never uses the layouts of h128 and h256, so their entries repeat
// those of h512.
template <int gates, int state_gates, bool setmaxnreg, int c_parts,
          int h128 = setmaxnreg ? 512 : 128, int h256 = setmaxnreg ? 512 : 256>
inline constexpr GridShapes kGridShapes{
    {grid_shape<GridForward<gates, state_gates, h128, setmaxnreg, c_parts>>(),
     grid_shape<GridForward<gates, state_gates, h256, setmaxnreg, c_parts>>(),
     grid_shape<GridForward<gates, state_gates, kGridNarrowHidden, setmaxnreg, c_parts>>(),
     grid_shape<GridForward<gates, state_gates, kGridHidden, setmaxnreg, c_parts>>(),
     grid_shape<GridForward<gates, state_gates, kGridWideHidden, setmaxnreg, c_parts>>()},
    {grid_shape<GridBackward<gates, state_gates, h128, setmaxnreg, c_parts>>(),
     grid_shape<GridBackward<gates, state_gates, h256, setmaxnreg, c_parts>>(),
     grid_shape<GridBackward<gates, state_gates, kGridNarrowHidden, setmaxnreg, c_parts>>(),
     grid_shape<GridBackward<gates, state_gates, kGridHidden, setmaxnreg, c_parts>>()},
    {{grid_shape<GridSplit<gates, state_gates, h128, 2, setmaxnreg, c_parts>>(),
      grid_shape<GridSplit<gates, state_gates, h128, 1, setmaxnreg, c_parts>>()},
     {grid_shape<GridSplit<gates, state_gates, h256, 2, setmaxnreg, c_parts>>(),
      grid_shape<GridSplit<gates, state_gates, h256, 1, setmaxnreg, c_parts>>()},
     {grid_shape<GridSplit<gates, state_gates, kGridNarrowHidden, 2, setmaxnreg, c_parts>>(),
      grid_shape<GridSplit<gates, state_gates, kGridNarrowHidden, 1, setmaxnreg, c_parts>>()},
     {grid_shape<GridSplit<gates, state_gates, kGridHidden, 2, setmaxnreg, c_parts>>(),
      grid_shape<GridSplit<gates, state_gates, kGridHidden, 1, setmaxnreg, c_parts>>()},
     {{}, grid_shape<GridSplit<gates, state_gates, kGridWideHidden, 1, setmaxnreg, c_parts>>()}},
    {{grid_shape<GridSplitBackward<gates, state_gates, h128, 2, setmaxnreg, c_parts>>(),
      grid_shape<GridSplitBackward<gates, state_gates, h128, 1, setmaxnreg, c_parts>>()},
     {grid_shape<GridSplitBackward<gates, state_gates, h256, 2, setmaxnreg, c_parts>>(),
      grid_shape<GridSplitBackward<gates, state_gates, h256, 1, setmaxnreg, c_parts>>()},
     {grid_shape<
          GridSplitBackward<gates, state_gates, kGridNarrowHidden, 2, setmaxnreg, c_parts>>(),
      grid_shape<
          GridSplitBackward<gates, state_gates, kGridNarrowHidden, 1, setmaxnreg, c_parts>>()},
     {grid_shape<GridSplitBackward<gates, state_gates, kGridHidden, 2, setmaxnreg, c_parts>>(),
      grid_shape<GridSplitBackward<gates, state_gates, kGridHidden, 1, setmaxnreg, c_parts>>()}}};

// The grid layouts of a cell, without and with setmaxnreg.
struct CellShapes {
  const GridShapes &without_setmaxnreg, &with_setmaxnreg;

  // H is at most most_hidden_of_grid().
  constexpr const GridShape& grid_of(Dtype dtype, int64_t hidden, bool tf32, bool setmaxnreg,
                                     bool backward) const {
    const GridShapes& grid = setmaxnreg ? with_setmaxnreg : without_setmaxnreg;
    const int width = grid_width(hidden, setmaxnreg);
    if (is_half(dtype)) return backward ? grid.backward[width] : grid.forward[width];
    return (backward ? grid.split_backward : grid.split)[width][tf32];
  }
};

template <int gates, int state_gates, int c_parts>
inline constexpr CellShapes kCellShapes{kGridShapes<gates, state_gates, false, c_parts>,
                                        kGridShapes<gates, state_gates, true, c_parts>};

template <int c_parts>
const CellShapes& cell_shapes(int gates, int state_gates) {
  if (gates == 1) return kCellShapes<1, 1, c_parts>;
  if (gates == 2) return kCellShapes<2, 2, c_parts>;
  if (gates == 3) return state_gates == 2 ? kCellShapes<3, 2, c_parts> : kCellShapes<3, 3, c_parts>;
  return state_gates == 3 ? kCellShapes<4, 3, c_parts> : kCellShapes<4, 4, c_parts>;
}

inline const CellShapes& cell_shapes(int gates, int state_gates, int c_parts) {
  return c_parts == 1   ? cell_shapes<1>(gates, state_gates)
         : c_parts == 2 ? cell_shapes<2>(gates, state_gates)
         : c_parts == 3 ? cell_shapes<3>(gates, state_gates)
                        : cell_shapes<4>(gates, state_gates);
}

#endif

}  // namespace treadle
