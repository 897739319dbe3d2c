// The planner's candidates for the algorithms that launch kernels for each step: "step", for any
// layer, and "warp", for a single step of few rows.
#pragma once

#include <algorithm>

#include "kernels/common/few_rows.h"
#include "kernels/recurrent/plan/candidate.h"

namespace treadle::plans {

inline constexpr int64_t kFewSteps = 1, kFewUnits = 8192;  // largest T and B * H of "warp"

// Whether a column-major copy of W_hh is worth making, because cuBLAS then multiplies faster in
// float32. On an H200, the product of a step took 0.92 of the time in the geometric mean of 100
// sizes (three and four gates, H of 768 to 2048, B of 48 to 512), between 0.56 and 1.12. With H
// 3072, it took up to 1.11 of the time. Packed batches are excluded, because their steps may have
// few rows.
inline bool by_columns(const RecurrenceSizes& sizes) {
  return sizes.hidden >= 768 && sizes.hidden <= 2048 && sizes.hidden % 64 == 0 && sizes.batch > 1 &&
         !few_rows(sizes.batch) && sizes.batch <= 512 && sizes.steps >= 32 && !sizes.ragged();
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
