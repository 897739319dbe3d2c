// How a recurrent layer is run: a pure function of sizes, dtype and device.
// Regimes: "rows" (CPU: a thread takes rows of the batch through all steps), "step" (CUDA: a matrix
// product and a fused kernel a step), and two of one launch, in which the weights stay on the chip:
// "cluster" (a cluster of blocks takes rows of the batch through all steps) and "grid" (32 blocks
// do, for weights that no cluster holds).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/persistent_args.h"

namespace treadle {

struct RecurrenceSizes {
  int64_t steps, batch, hidden, gates, directions;
  Dtype dtype;
};

struct RecurrenceDevice {
  bool cuda = false;
  int architecture = 0;  // 90 for sm_90
  int multiprocessors = 0;
  size_t l2_bytes = 0;  // CPU: of the cache that all cores share
  bool tf32 = false;    // whether float32 products may be computed so
};

struct RecurrencePlan {
  const char* regime;
  const char* reason;
  int64_t steps_per_chunk;  // whose input product is computed at once
  bool transposed;          // products [3H, S] instead of [S, 3H]
  ClusterPlan clusters;     // of regime "cluster"
  int64_t grid_groups;      // of regime "grid": of 32 blocks, at once, of one direction
  int grid_rows;            // of regime "grid": of the batch that 32 blocks take, of one direction

  bool is(std::string_view name) const { return name == regime; }
  bool persistent() const { return is("cluster") || is("grid"); }
};

// The library hides what is not named here; _C asks for plans of any device.
#pragma GCC visibility push(default)
// Raises for a `forced` regime that the device does not have; "auto" forces none.
RecurrencePlan plan_recurrence(const char* op, const RecurrenceSizes& sizes,
                               const RecurrenceDevice& device, std::string_view forced,
                               bool backward);
#pragma GCC visibility pop

}  // namespace treadle
