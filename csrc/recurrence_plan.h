// How a recurrent layer is run: a pure function of sizes, dtype and device.
// Regimes: "rows" (CPU: a thread takes rows of the batch through all steps), "step" (CUDA: a matrix
// product and a fused kernel a step).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/dtype.h"

namespace treadle {

struct RecurrenceSizes {
  int64_t steps, batch, hidden, gates;
  Dtype dtype;
};

struct RecurrenceDevice {
  bool cuda = false;
  int multiprocessors = 0;
  size_t l2_bytes = 0;  // CPU: of the cache that all cores share
  bool tf32 = false;    // whether float32 products may be computed so
};

struct RecurrencePlan {
  const char* regime;
  const char* reason;
  int64_t steps_per_chunk;  // whose input product is computed at once
  bool transposed;          // products [3H, S] instead of [S, 3H]
};

// The library hides what is not named here; _C asks for plans of any device.
#pragma GCC visibility push(default)
// Raises for a `forced` regime that the device does not have; "auto" forces none.
RecurrencePlan plan_recurrence(const char* op, const RecurrenceSizes& sizes,
                               const RecurrenceDevice& device, std::string_view forced);
#pragma GCC visibility pop

}  // namespace treadle
