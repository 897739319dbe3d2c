// The plan of a recurrent layer: a pure function of sizes, dtype and device. Algorithms:
//   rows     CPU: a thread takes rows of the batch through all steps
//   step     CUDA: a matrix product and a fused kernel for each step
//   tiles    both in one launch for each step: tensor cores multiply tiles of many rows
//   warp     the same for few rows of a single step, by threads that share a unit's weights
//   cluster  one launch, weights kept on the chip: a cluster of blocks takes rows through all steps
//            (before sm_90 a single block)
//   grid     the same with more blocks than a cluster may have, for larger H
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/common/exported.h"
#include "kernels/recurrent/grid/shapes.h"
#include "kernels/recurrent/persistent_args.h"

namespace treadle {

struct RecurrenceSizes {
  CellKind cell;
  int64_t steps, batch, hidden, directions;
  Dtype dtype;
  bool ragged = false;  // some row has fewer steps than others, or may reset
};

inline constexpr int kHopperMhz = 1980;  // of the GPU of the planner's times

// Bytes of acc_t: products of half types are floats.
inline int64_t acc_bytes(Dtype dtype) { return dtype == Dtype::kDouble ? 8 : 4; }

struct RecurrenceDevice {
  bool cuda = false;
  int architecture = 0;  // 90 for sm_90
  int multiprocessors = 0;
  size_t l2_bytes = 0;                     // CPU: of the cache that all cores share
  bool tf32 = false;                       // whether float32 products may use TF32
  size_t shared_bytes = kMostSharedBytes;  // the most per block
  int clock_mhz = kHopperMhz;              // of a multiprocessor, at most

  // Whether the GPU runs the persistent kernels at all.
  bool persistent() const { return cuda && architecture >= 80; }
  // sm_120 has clusters, too, but blocks of 99 KB, for which no kernel is compiled.
  bool clusters() const { return architecture >= 90 && architecture < 110; }
  bool setmaxnreg() const { return architecture == 90; }
};

struct RecurrencePlan {
  const char* algorithm;
  const char* reason;
  int64_t steps_per_chunk;  // steps whose input products are computed at once
  bool transposed;          // products [GH, S] instead of [S, GH]
  bool weight_by_columns;   // algorithm "step", forward: W_hh is copied to column-major order
  ClusterPlan clusters;     // of algorithm "cluster"
  int64_t grid_groups;      // of algorithm "grid": groups of blocks for one direction
  int grid_rows;            // of algorithm "grid": rows of the batch that a group takes
  bool setmaxnreg;          // of algorithm "grid": the layouts that need it
  bool tf32;                // whether float32 products may be rounded to TF32

  bool is(std::string_view name) const { return name == algorithm; }
  bool persistent() const { return is("cluster") || is("grid"); }
  bool fused() const { return is("tiles") || is("warp"); }
  bool one_block() const { return is("cluster") && clusters.shape.blocks == 1; }
};

// Copies the parts of the plan that a launch of algorithm "grid" needs.
inline void set_grid(PersistentSizes& sizes, const RecurrencePlan& plan) {
  sizes.tf32 = plan.tf32;
  sizes.setmaxnreg = plan.setmaxnreg;
}

// Returns null, or the reason why a `forced` algorithm cannot run, valid until this thread's next
// error. "auto" forces none.
const char* plan_recurrence(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                            std::string_view forced, bool backward, RecurrencePlan* plan)
    TREADLE_EXPORTED(plan_recurrence);

}  // namespace treadle
