#include "recurrence_plan.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace treadle {
namespace {

// Half types are multiplied into float.
int64_t acc_bytes(Dtype dtype) { return dtype == Dtype::kDouble ? 8 : 4; }

// As many steps as half of the cache holds, so that a step finds its part of the input product
// there; but products of fewer than kRows rows would not fill a chip.
int64_t steps_per_chunk(const RecurrenceSizes& sizes, const RecurrenceDevice& device) {
  constexpr int64_t kRows = 1024;
  const int64_t batch = std::max<int64_t>(sizes.batch, 1);
  const int64_t step_bytes =
      std::max<int64_t>(sizes.gates * sizes.hidden * acc_bytes(sizes.dtype) * batch, 1);
  const int64_t fit = static_cast<int64_t>(device.l2_bytes) / 2 / step_bytes;
  const int64_t filling = (kRows + batch - 1) / batch;
  return std::clamp(std::max(fit, filling), int64_t{1}, std::max<int64_t>(sizes.steps, 1));
}

}  // namespace

RecurrencePlan plan_recurrence(const char* op, const RecurrenceSizes& sizes,
                               const RecurrenceDevice& device, std::string_view forced) {
  const char* regime = device.cuda ? "step" : "rows";
  TORCH_CHECK(forced == "auto" || forced == regime, op, ": regime must be auto or ", regime,
              device.cuda ? " on CUDA" : " on the CPU", ", got ", forced);
  // In exact float32 cuBLAS computes a product of few rows up to ten times faster transposed.
  const bool transposed = device.cuda && sizes.dtype == Dtype::kFloat && !device.tf32 &&
                          sizes.batch > 1 && sizes.batch <= 32;
  const char* reason = forced == regime ? "asked for"
                       : device.cuda
                           ? "no regime keeps the weights on the chip yet"
                           : "rows do not depend on each other, so that threads need not meet";
  return {regime, reason, steps_per_chunk(sizes, device), transposed};
}

}  // namespace treadle
