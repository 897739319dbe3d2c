// The planner's candidates for the algorithms that launch kernels for each step: "step", for any
// layer, and "warp", for a single step of few rows.
#pragma once

#include <algorithm>

#include "kernels/common/few_rows.h"
#include "kernels/recurrent/plan/candidate.h"

namespace treadle::plans {

inline constexpr int64_t kFewSteps = 1, kFewUnits = 8192;  // largest T and B * H of "warp"

// Whether a column-major copy of W_hh is worth making, because cuBLAS then multiplies faster in
// float32: on an H200, 64 x 2048 times 2048 x 8192 took 56.8 us instead of 62.5, and 256 x 1024
// times 1024 x 4096 took 56.6 us instead of 61.5. Packed batches are excluded, because their steps
// may have few rows.
inline bool by_columns(const RecurrenceSizes& sizes) {
  const bool few = sizes.batch > 1 && !few_rows(sizes.batch) && sizes.batch <= 128;
  const bool many = sizes.batch > 128 && sizes.batch <= 256;
  const bool faster = (few && sizes.hidden >= 2048) ||
                      (many && sizes.hidden >= 1024 && cell_info(sizes.cell).state_gates == 4);
  return faster && sizes.steps >= 32 && !sizes.ragged();
}

inline Candidate step_candidate(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                                bool backward) {
  Candidate found;
  found.exists = true;
  found.time = launched_time(sizes, device, backward);
  found.plan.kernel = KernelId::kStep;
  found.plan.reason = "for this many rows, one product per step is faster";
  found.plan.weight_by_columns =
      sizes.dtype == Dtype::kFloat && !device.tf32 && !backward && by_columns(sizes);
  return found;
}

// "warp" has no backward pass.
inline Candidate warp_candidate(const RecurrenceSizes& sizes, const RecurrenceDevice&,
                                bool backward) {
  Candidate found;
  found.exists = !backward && !is_formula(sizes.cell);
  found.plan.kernel = KernelId::kWarp;
  found.plan.reason = "a few rows of one step take a single launch";
  const bool few = sizes.batch <= kFewUnits / std::max<int64_t>(sizes.hidden, 1);
  if (found.exists && sizes.steps <= kFewSteps && few) found.time = 0;
  return found;
}

}  // namespace treadle::plans
