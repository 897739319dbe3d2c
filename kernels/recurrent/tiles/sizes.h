// Sizes of algorithm "tiles" (tiles/tiles.cuh), for its kernels and for the planner. This header
// needs neither torch nor CUDA.
#pragma once

#include <cstdint>

namespace treadle {

inline constexpr int kTileRows = 128;   // per block
inline constexpr int kTileBlocks = 2;   // per cluster, with adjacent rows
inline constexpr int kTileHidden = 64;  // H must be a multiple of it

struct TilePlan {
  int units;    // per block: 64 or 32
  double time;  // per step, in us
};

// The plan for `units` units per block, with the time of one step. Blocks run in waves, and each
// wave computes a matrix product and the cell. If the clusters of two launches fit on the chip
// together, the next step's input product runs during this step and adds no time. A block with 32
// units takes more than half of the time of one with 64 units. But if there are few tiles, 32 units
// per block leave less of the chip idle. The numbers were fitted to times on an H200, with as many
// inputs as units. `words` is the number of 16-bit words per element: 1 for half types, and 2 for
// float32, whose products take twice as long.
constexpr TilePlan plan_tiles_of(int units, int gates, int words, int64_t rows, int64_t hidden,
                                 int processors) {
  const int64_t each = int64_t{kTileRows} * kTileBlocks;
  const int64_t clusters = ((rows > 1 ? rows - 1 : 0) / each + 1) * (hidden / units);
  const int64_t at_once = processors >= kTileBlocks ? processors / kTileBlocks : 1;
  const auto rounds = static_cast<double>((clusters - 1) / at_once + 1);
  const double products = 2 * clusters <= at_once ? 1 : 2;
  const double multiply = units == 64 ? 0.65 * gates : 0.7 + 0.24 * gates;
  const double depth = static_cast<double>(hidden) / 256;
  const double round = (units == 64 ? 3.7 : 1.8) + words * multiply * depth * products;
  return {units,
          2.5 + rounds * round + 1.2e-6 * static_cast<double>(rows) * static_cast<double>(hidden)};
}

constexpr TilePlan plan_tiles(int gates, int words, int64_t rows, int64_t hidden, int processors) {
  const TilePlan wide = plan_tiles_of(64, gates, words, rows, hidden, processors);
  const TilePlan narrow = plan_tiles_of(32, gates, words, rows, hidden, processors);
  return narrow.time < wide.time ? narrow : wide;
}

}  // namespace treadle
