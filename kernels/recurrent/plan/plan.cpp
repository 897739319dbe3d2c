// The planner: defines plan_recurrence() of plan.h.
#include "kernels/recurrent/plan/plan.h"

#include <algorithm>

#include "kernels/common/error.h"
#include "kernels/recurrent/plan/forced.h"

namespace treadle {
namespace {

using namespace plans;

// Input products are computed for a chunk of steps at once. The products of a chunk fit in half of
// the cache, so that each step reads its part from there. But a chunk always has at least
// kProductRows rows, because smaller products would not fill the GPU. In float32 without TF32, the
// products take so long that their last wave of blocks matters more than the cache: for an LSTM
// with 1024 units on an H200, 1280 rows took 284 us, and 8192 rows took 1373 us. So a chunk then
// has kExactRows rows, unless the products would need more than kExactBytes.
constexpr int64_t kProductRows = 1024, kExactRows = 8192, kExactBytes = int64_t{128} << 20;

int64_t steps_per_chunk(const RecurrenceSizes& sizes, const RecurrenceDevice& device, bool exact) {
  const int64_t batch = std::max<int64_t>(sizes.batch, 1);
  const int64_t hidden = std::max<int64_t>(sizes.hidden, 1);
  const int64_t unit = cell_info(sizes.cell).gates * acc_bytes(sizes.dtype);
  // Divides by one factor at a time, because the product of the factors may not fit in 64 bits.
  const int64_t fit = static_cast<int64_t>(device.l2_bytes) / 2 / batch / hidden / unit;
  const int64_t rows =
      exact ? std::clamp(kExactBytes / hidden / unit, kProductRows, kExactRows) : kProductRows;
  const int64_t filling = (rows - 1) / batch + 1;
  return std::clamp(std::max(fit, filling), int64_t{1}, std::max<int64_t>(sizes.steps, 1));
}

// The candidate with the least time per step. If there is only one step, algorithms that keep
// weights on the chip are not considered, because they would load the weights only to use them
// once.
RecurrencePlan fastest(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                       bool backward) {
  using Make = Candidate(const RecurrenceSizes&, const RecurrenceDevice&, bool);
  constexpr Make* kOfManySteps[] = {cluster_candidate, grid_candidate, step_candidate,
                                    tiles_candidate, nullptr};
  constexpr Make* kOfOneStep[] = {warp_candidate, step_candidate, nullptr};
  const bool one = sizes.steps <= kFewSteps;
  Candidate best;
  bool on_chip = false;
  for (Make* const* make = one ? kOfOneStep : kOfManySteps; *make != nullptr; ++make) {
    const Candidate found = (*make)(sizes, device, backward);
    on_chip = on_chip || (found.exists && found.plan.persistent());
    if (found.time < best.time) best = found;
  }
  if (best.plan.by_steps() && !on_chip) {
    best.plan.reason = one ? "for one step, loading weights onto the chip takes too long"
                           : "no algorithm keeps such weights on the chip";
  }
  return best.plan;
}

}  // namespace

const char* plan_recurrence(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                            std::string_view forced, bool backward, RecurrencePlan* plan) {
  const bool free = forced == "auto";
  const char* const refusal = free ? nullptr : refuse_forced(sizes, device, forced, backward);
  if (refusal != nullptr) return refusal;
  *plan = !device.cuda ? rows_plan(free)
          : free       ? fastest(sizes, device, backward)
                       : forced_plan(sizes, device, forced, backward);
  const bool exact = device.cuda && sizes.dtype == Dtype::kFloat && !device.tf32;
  plan->steps_per_chunk = steps_per_chunk(sizes, device, exact && plan->kernel == KernelId::kStep);
  plan->transposed = exact && few_rows(sizes.batch);
  plan->resets = sizes.resets;
  plan->ragged = sizes.ragged();
  plan->tf32 = device.tf32;
  return nullptr;
}

}  // namespace treadle
