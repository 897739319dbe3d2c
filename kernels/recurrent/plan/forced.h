// Plans a layer with a forced algorithm, or returns the reason why that algorithm cannot run it.
#pragma once

#include <string>

#include "kernels/common/error.h"
#include "kernels/recurrent/cluster/candidate.h"
#include "kernels/recurrent/grid/candidate.h"
#include "kernels/recurrent/step/candidate.h"
#include "kernels/recurrent/tiles/candidate.h"

namespace treadle::plans {

// The largest H that "cluster" or "grid" supports, or 0 if it does not support the dtype.
inline int64_t most_hidden(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                           Dtype dtype, bool cluster, bool backward) {
  return cluster ? most_hidden_of_clusters(sizes, device, dtype, backward)
                 : most_hidden_of_grid(device, dtype, backward);
}

// Whether "cluster" or "grid" has a forward kernel for a layer of these sizes, but no backward
// kernel.
inline bool runs_forward_only(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                              bool cluster) {
  return sizes.hidden > most_hidden(sizes, device, sizes.dtype, cluster, /*backward=*/true) &&
         sizes.hidden <= most_hidden(sizes, device, sizes.dtype, cluster, /*backward=*/false);
}

// ---- Each of these functions returns null, or the reason why the algorithm cannot run.

inline const char* refuse_tiles(const RecurrenceSizes& sizes, const RecurrenceDevice& device) {
  if (is_formula(sizes.cell)) return fail("algorithm tiles needs a cell other than a treadle.Cell");
  const bool exact = sizes.dtype == Dtype::kFloat && !device.tf32;
  return in_tiles(sizes, device)
             ? nullptr
             : fail(
                   "algorithm tiles needs float16, bfloat16 or float32 with TF32 allowed, H a "
                   "multiple of ",
                   kTileHidden, " up to ", kTilesHidden, ", T * B < 2^30 and an sm_90 GPU, got ",
                   dtype_name(sizes.dtype), exact ? " without TF32" : "", ", H = ", sizes.hidden,
                   ", T = ", sizes.steps, ", B = ", sizes.batch, " and sm_", device.architecture);
}

// `forced` is "cluster" or "grid".
inline const char* refuse_persistent(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                                     std::string_view forced, bool backward) {
  const bool cluster = forced == "cluster";
  const auto most = [&](Dtype dtype) {
    return most_hidden(sizes, device, dtype, cluster, backward);
  };
  if (sizes.batch >= kBatch) {
    return fail("algorithm ", forced, " needs B < 2^26, got ", sizes.batch);
  }
  if (sizes.steps >= kSteps) {
    return fail("algorithm ", forced, " needs T < 2^30, got ", sizes.steps);
  }
  if (!on_chip(sizes, device, most(sizes.dtype))) {
    const int64_t fp32 = most(Dtype::kFloat), half = most(Dtype::kHalf);
    RecurrenceSizes dense = sizes;
    dense.hidden = 8;
    dense.packed = dense.resets = false;
    const int64_t of_dense = most_hidden(dense, device, Dtype::kHalf, cluster, backward);
    return fail("algorithm ", forced, " needs float16 or bfloat16, 1 <= H <= ", half,
                of_dense > half ? " (" + std::to_string(of_dense) +
                                      " without packing and resets if H is a multiple of 8)"
                                : "",
                fp32 > 0 ? " (or float32 up to " + std::to_string(fp32) + ")" : "",
                " and an sm_80 GPU or a later one, got ", dtype_name(sizes.dtype),
                ", H = ", sizes.hidden, " and sm_", device.architecture);
  }
  if (cluster) return nullptr;
  const GridShape& shape = grid_shape_of(sizes, device, backward);
  if (device.multiprocessors < shape.blocks) {
    return fail("algorithm grid needs ", shape.blocks, " multiprocessors, got ",
                device.multiprocessors);
  }
  if (most_rows(sizes, device, backward) == 0) {
    return fail("algorithm grid needs ", shape.stages + 8 * shape.row_bytes,
                " bytes of shared memory per block, got ", device.shared_bytes);
  }
  return nullptr;
}

inline const char* refuse_forced(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                                 std::string_view forced, bool backward) {
  if (!device.cuda) {
    return forced == "rows" ? nullptr
                            : fail("algorithm must be auto or rows on the CPU, got ", forced);
  }
  if (forced == "step" || forced == "warp") return nullptr;
  if (forced == "tiles") return refuse_tiles(sizes, device);
  if (forced != "cluster" && forced != "grid") {
    return fail("algorithm must be auto, cluster, grid, tiles, warp or step on CUDA, got ", forced);
  }
  // If the algorithm has only a forward kernel, "step" runs the backward pass.
  const bool pass = backward && !runs_forward_only(sizes, device, forced == "cluster");
  return refuse_persistent(sizes, device, forced, pass);
}

// ---- plans

inline RecurrencePlan rows_plan(bool free) {
  RecurrencePlan plan;
  plan.kernel = KernelId::kRows;
  plan.reason = free ? "threads divide the rows, and the units if there are few rows" : "requested";
  return plan;
}

// The plan for a forced algorithm that refuse_forced() has accepted.
inline RecurrencePlan forced_plan(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                                  std::string_view forced, bool backward) {
  const auto candidate = forced == "cluster" ? cluster_candidate
                         : forced == "grid"  ? grid_candidate
                         : forced == "tiles" ? tiles_candidate
                         : forced == "warp"  ? warp_candidate
                                             : step_candidate;
  Candidate found = candidate(sizes, device, backward);
  found.plan.reason = "requested";
  if (found.exists) return found.plan;
  found = step_candidate(sizes, device, backward);
  found.plan.reason = "the algorithm has only a forward kernel";
  return found.plan;
}

}  // namespace treadle::plans
