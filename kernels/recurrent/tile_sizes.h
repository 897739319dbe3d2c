// Sizes of algorithm "tiles" (tiles.cuh), for its kernels and for the planner: no torch, no CUDA.
#pragma once

#include <cstdint>

namespace treadle {

inline constexpr int kTileRows = 128;          // of a block
inline constexpr int kTileBlocks = 2;          // of a cluster, with neighbouring rows
inline constexpr int kTileHidden = 64;         // of which H is a multiple
inline constexpr int kTileUnits[] = {64, 32};  // of a block

struct TileRounds {
  int units;
  int64_t clusters, rounds;  // which follow each other, since so many are on the chip at once
};

constexpr TileRounds tile_rounds(int units, int64_t rows, int64_t hidden, int processors) {
  const int64_t each = int64_t{kTileRows} * kTileBlocks;
  const int64_t clusters = ((rows - 1) / each + 1) * (hidden / units);
  const int64_t at_once = processors >= kTileBlocks ? processors / kTileBlocks : 1;
  return {units, clusters, (clusters - 1) / at_once + 1};
}

// How one step of so many rows is divided. Half of the units take more than half of the time, but
// leave less of the chip idle where tiles are few.
constexpr TileRounds plan_tiles(int64_t rows, int64_t hidden, int processors) {
  const TileRounds wide = tile_rounds(kTileUnits[0], rows, hidden, processors);
  const TileRounds narrow = tile_rounds(kTileUnits[1], rows, hidden, processors);
  return 5 * narrow.rounds < 8 * wide.rounds ? narrow : wide;
}

}  // namespace treadle
