// The planner's candidate for algorithm "tiles".
#pragma once

#include <algorithm>

#include "kernels/recurrent/plan/candidate.h"

namespace treadle::plans {

inline constexpr int64_t kTilesHidden = int64_t{1} << 20;
inline constexpr int64_t kTilesLeastRows = 64;  // with fewer, most of a tile would be empty
inline constexpr int64_t kTilesRows = int64_t{1} << 30;  // largest T * B; TMA counts in 32 bits

inline bool in_tiles(const RecurrenceSizes& sizes, const RecurrenceDevice& device) {
  const bool rounded = sizes.dtype == Dtype::kFloat && device.tf32;
  return device.architecture == 90 && !is_formula(sizes.cell) &&
         (is_half(sizes.dtype) || rounded) && sizes.hidden >= kTileHidden &&
         sizes.hidden % kTileHidden == 0 && sizes.hidden <= kTilesHidden &&
         sizes.steps < kTilesRows && sizes.batch < kTilesRows / std::max<int64_t>(sizes.steps, 1);
}

// "tiles" has no backward pass.
inline Candidate tiles_candidate(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                                 bool backward) {
  Candidate found;
  found.exists = !backward && in_tiles(sizes, device);
  found.plan.kernel = KernelId::kTiles;
  found.plan.reason = "this many rows fill the tiles of the tensor cores";
  if (found.exists && sizes.batch >= kTilesLeastRows) found.time = tiles_time(sizes, device);
  return found;
}

}  // namespace treadle::plans
