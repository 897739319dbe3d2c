#include "kernels/recurrent/plan/plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "kernels/common/error.h"
#include "kernels/common/few_rows.h"
#include "kernels/recurrent/plan/grids.h"
#include "kernels/recurrent/plan/times.h"

namespace treadle {
namespace {

using namespace plan_times;
using plan_grids::any_grid;
using plan_grids::grid_groups;
using plan_grids::grid_launches;
using plan_grids::grid_shape_of;
using plan_grids::most_rows;
using plan_grids::plan_grid;

// A chunk has as many steps as have an input product of half of the cache, so that each step finds
// its part there, but at least kProductRows rows, because smaller products do not fill the chip.
constexpr int64_t kProductRows = 1024;

int64_t steps_per_chunk(const RecurrenceSizes& sizes, const RecurrenceDevice& device) {
  const int64_t batch = std::max<int64_t>(sizes.batch, 1);
  const int64_t hidden = std::max<int64_t>(sizes.hidden, 1);
  // Divided one by one, because their product may not fit in 64 bits.
  const int64_t fit = static_cast<int64_t>(device.l2_bytes) / 2 / batch / hidden /
                      (cell_info(sizes.cell).gates * acc_bytes(sizes.dtype));
  const int64_t filling = (kProductRows - 1) / batch + 1;
  return std::clamp(std::max(fit, filling), int64_t{1}, std::max<int64_t>(sizes.steps, 1));
}

// ---- weights on the chip

constexpr int64_t kBatch = int64_t{1} << 26;  // with 2 * 16 blocks a row, fewer than 2^31 blocks
constexpr int64_t kSteps = int64_t{1} << 30;  // kernels count a few more in 32 bits
constexpr int64_t kFewSteps = 1, kFewUnits = 8192;  // algorithm "warp": most T, B * H
constexpr int64_t kTilesHidden = int64_t{1} << 20;
constexpr int64_t kGridFromHidden = 256;  // H above which the grid competes with clusters
constexpr int64_t kTilesLeastRows = 64;   // with fewer, most of a tile would be empty

// The number of resident clusters: an H200 with 132 multiprocessors holds 7 of 16 blocks, 30 of 4.
int64_t clusters_at_once(int blocks, const RecurrenceDevice& device) {
  const int of_132 = blocks == 16 ? 7 : blocks == 8 ? 15 : blocks == 4 ? 30 : 132;
  return std::max<int64_t>(device.multiprocessors * of_132 / 132, 1);
}

// The kernels of one shape that take a batch.
struct ShapeCandidates {
  ClusterShape shape;
  int any_rows;     // the most rows of the kernel for any batch; 0: no such kernel
  RowCounts dense;  // rows of a tile of each kernel for dense batches

  int most_rows() const { return std::max(any_rows, dense.most() * shape.tiles); }
  // Rows per tile of the dense kernel that takes `rows` rows; 0: there is none.
  int dense_rows(int rows) const {
    return dense.at_least(static_cast<int>(ceil_div(rows, shape.tiles)));
  }
};

ShapeCandidates candidates_of(const RecurrenceSizes& sizes, size_t index, bool backward) {
  const int state_gates = cell_info(sizes.cell).state_gates;
  const ShapeKernels& kernels = kernels_of(index, state_gates);
  ShapeCandidates found{kClusterShapes[index], 0, {}};
  if (is_half(sizes.dtype)) {
    if (backward ? kernels.half_backward : kernels.half_forward) {
      found.any_rows = found.shape.rows();
    }
    if (!sizes.ragged && sizes.hidden % 8 == 0) found.dense = kernels.dense(backward);
  } else {
    if (kernels.fp32) found.any_rows = fp32_rows(found.shape, state_gates);
    if (!sizes.ragged && !backward) found.dense = kernels.split;
  }
  return found;
}

// The time of a step of a cluster with `rows` rows, by a dense kernel if there is one.
double step_time(const RecurrenceSizes& sizes, const ShapeCandidates& kernels, int rows,
                 bool backward) {
  const int gates = cell_info(sizes.cell).state_gates, dense = kernels.dense_rows(rows);
  const bool half = is_half(sizes.dtype);
  if (dense == 0) return cluster_time(kernels.shape, rows, gates, backward, !half);
  return half ? dense_time(kernels.shape, dense, gates, backward)
              : split_time(kernels.shape, dense, gates);
}

struct Clusters {
  ClusterPlan plan;
  double time;
};

// Without clusters only a single block remains, which then beats the grid for larger H of half
// types, too.
bool runs_on(const RecurrenceDevice& device, const ClusterShape& shape, Dtype dtype) {
  if (shape.blocks > 1) return device.clusters();
  return !is_half(dtype) || shape.units <= kHalfBlockUnits || !device.clusters();
}

// The shape and the rows of a cluster with the least time for a step of the batch.
Clusters plan_clusters(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                       bool backward) {
  Clusters best{{}, std::numeric_limits<double>::infinity()};
  const bool half = is_half(sizes.dtype);
  // Backward, clusters are faster than a block with many units, unless rows would have to be copied
  // to pad them to whole chunks.
  const bool alone = sizes.hidden <= 32 || sizes.hidden % 8 != 0;
  const bool any_clusters = device.clusters();
  for (size_t i = 0; i < kShapes; ++i) {
    const ClusterShape& shape = kClusterShapes[i];
    if (shape.hidden() < sizes.hidden || !runs_on(device, shape, sizes.dtype)) continue;
    const ShapeCandidates kernels = candidates_of(sizes, i, backward);
    for (int rows = 1; rows <= kernels.most_rows(); ++rows) {
      const int64_t count = ceil_div(sizes.batch, rows) * sizes.directions;
      const int64_t waves =
          std::max<int64_t>(ceil_div(count, clusters_at_once(shape.blocks, device)), 1);
      // fp32: more single-block clusters than SMs measured slower than waves * time.
      if (half && shape.blocks == 1 && any_clusters && (waves > 1 || (backward && !alone))) {
        continue;
      }
      const double time = static_cast<double>(waves) * step_time(sizes, kernels, rows, backward);
      if (time < best.time) best = {{shape, rows, kernels.dense_rows(rows) > 0}, time};
    }
  }
  return best;
}

// ---- the choice

// The largest H whose weights an algorithm keeps on the chip; 0 if it does not support the dtype.
int64_t most_hidden(const RecurrenceSizes& sizes, const RecurrenceDevice& device, Dtype dtype,
                    bool cluster, bool backward) {
  if (!cluster) {
    if (dtype == Dtype::kFloat) return kGridHidden;
    if (!is_half(dtype)) return 0;
    return backward ? kGridHidden : kGridWideHidden;
  }
  int64_t most = 0;
  for (size_t i = 0; i < kShapes; ++i) {
    if (!runs_on(device, kClusterShapes[i], dtype)) continue;
    const ShapeKernels& kernels = kernels_of(i, cell_info(sizes.cell).state_gates);
    const bool half = backward ? kernels.half_backward : kernels.half_forward;
    const bool any = is_half(dtype) ? half : dtype == Dtype::kFloat && kernels.fp32;
    if (any) most = std::max(most, kClusterShapes[i].hidden());
  }
  return most;
}

bool on_chip(const RecurrenceSizes& sizes, const RecurrenceDevice& device, bool cluster,
             bool backward) {
  return device.persistent() && sizes.hidden >= 1 &&
         sizes.hidden <= most_hidden(sizes, device, sizes.dtype, cluster, backward) &&
         sizes.batch < kBatch && sizes.steps < kSteps;
}

constexpr int64_t kRows = int64_t{1} << 30;  // rows of all steps, which TMA counts in 32 bits

bool in_tiles(const RecurrenceSizes& sizes, const RecurrenceDevice& device) {
  const bool rounded = sizes.dtype == Dtype::kFloat && device.tf32;
  return device.architecture == 90 && (is_half(sizes.dtype) || rounded) &&
         sizes.hidden >= kTileHidden && sizes.hidden % kTileHidden == 0 &&
         sizes.hidden <= kTilesHidden && sizes.steps < kRows &&
         sizes.batch < kRows / std::max<int64_t>(sizes.steps, 1);
}

struct Choice {
  const char* algorithm;
  const char* reason;
  ClusterPlan clusters{};  // of algorithm "cluster"
};

Choice choose(const RecurrenceSizes& sizes, const RecurrenceDevice& device, bool backward) {
  if (!device.cuda) {
    return {"rows", "rows do not depend on each other, so that threads need not meet"};
  }
  if (sizes.steps <= kFewSteps) {
    const bool few = sizes.batch <= kFewUnits / std::max<int64_t>(sizes.hidden, 1);
    if (few && !backward) return {"warp", "few rows of one step are a launch"};
    return {"step", "one step does not pay for weights on the chip"};
  }
  const double launched = launched_time(sizes, device, backward);
  const bool any_tiles = in_tiles(sizes, device) && sizes.batch >= kTilesLeastRows && !backward;
  const double tiles =
      any_tiles ? tiles_time(sizes, device) : std::numeric_limits<double>::infinity();
  const Choice in_launches = tiles < launched
                                 ? Choice{"tiles", "so many rows fill tiles of tensor cores"}
                                 : Choice{"step", "so many rows are faster by a product a step"};
  const bool cluster = on_chip(sizes, device, /*cluster=*/true, backward);
  const bool grid =
      on_chip(sizes, device, /*cluster=*/false, backward) && any_grid(sizes, device, backward);
  if (!cluster && !grid) {
    if (tiles < launched) return in_launches;
    return {"step", "no algorithm keeps such weights on the chip"};
  }
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const Clusters clusters = cluster ? plan_clusters(sizes, device, backward) : Clusters{{}, kNever};
  // For small H the modelled times of clusters are more accurate than the grid's. Float32 clusters
  // multiply by fma in the backward pass and for packed batches, and are then slower than the grid.
  const bool narrow = cluster && device.clusters() && sizes.hidden <= kGridFromHidden;
  const bool by_fma = !is_half(sizes.dtype) && (backward || sizes.ragged);
  const double of_grid =
      grid && (!narrow || by_fma)
          ? grid_time(grid_launches(sizes, device, backward), plan_grid(sizes, device, backward),
                      sizes, device, backward)
          : kNever;
  if (slower(device) * std::min(clusters.time, of_grid) > std::min(launched, tiles)) {
    return in_launches;
  }
  if (of_grid < clusters.time) {
    return {"grid", "the blocks of the grid keep the weights on the chip"};
  }
  return {"cluster",
          clusters.plan.shape.blocks == 1 ? "one block keeps the weights on the chip"
                                          : "the blocks of a cluster keep the weights on the chip",
          clusters.plan};
}

// Whether a forced algorithm has no backward pass for such a layer.
bool runs_forward_alone(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                        bool cluster) {
  const auto most = [&](bool backward) {
    return most_hidden(sizes, device, sizes.dtype, cluster, backward);
  };
  return sizes.hidden > most(true) && sizes.hidden <= most(false);
}

// null, or why the algorithm cannot run.
const char* refuse_forced(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                          std::string_view forced, bool backward) {
  if (!device.cuda) {
    return forced == "rows" ? nullptr
                            : fail("algorithm must be auto or rows on the CPU, got ", forced);
  }
  if (forced == "step" || forced == "warp") return nullptr;
  if (forced == "tiles") {
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
  const bool cluster = forced == "cluster";
  if (!cluster && forced != "grid") {
    return fail("algorithm must be auto, cluster, grid, tiles, warp or step on CUDA, got ", forced);
  }
  if (sizes.batch >= kBatch) {
    return fail("algorithm ", forced, " needs B < 2^26, got ", sizes.batch);
  }
  if (sizes.steps >= kSteps) {
    return fail("algorithm ", forced, " needs T < 2^30, got ", sizes.steps);
  }
  if (backward && runs_forward_alone(sizes, device, cluster)) {
    return refuse_forced(sizes, device, forced, false);
  }
  const auto most = [&](Dtype dtype) {
    return most_hidden(sizes, device, dtype, cluster, backward);
  };
  if (!on_chip(sizes, device, cluster, backward)) {
    const int64_t fp32 = most(Dtype::kFloat);
    return fail("algorithm ", forced, " needs float16 or bfloat16, 1 <= H <= ", most(Dtype::kHalf),
                fp32 > 0 ? " (or float32 up to " + std::to_string(fp32) + ")" : "",
                " and an sm_80 GPU or a later one, got ", dtype_name(sizes.dtype),
                ", H = ", sizes.hidden, " and sm_", device.architecture);
  }
  if (cluster) return nullptr;
  const GridShape& shape = grid_shape_of(sizes, device, backward);
  if (grid_groups(sizes, device, backward) == 0) {
    return fail("algorithm grid needs ", shape.blocks, " multiprocessors a direction, got ",
                device.multiprocessors, " for ", sizes.directions);
  }
  if (most_rows(sizes, device, backward) == 0) {
    return fail("algorithm grid needs ", shape.stages + 8 * shape.row_bytes,
                " bytes of shared memory a block, got ", device.shared_bytes);
  }
  return nullptr;
}

// Chooses a forced algorithm that refuse_forced() accepts.
Choice take_forced(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                   std::string_view forced, bool backward) {
  constexpr const char* reason = "asked for";
  const bool cluster = forced == "cluster", on_chip = cluster || forced == "grid";
  const bool alone = forced == "tiles" || forced == "warp" ||
                     (on_chip && runs_forward_alone(sizes, device, cluster));
  if (alone && backward) return {"step", "there is such a kernel forward alone"};
  if (cluster) return {"cluster", reason, plan_clusters(sizes, device, backward).plan};
  for (const char* const name : {"grid", "tiles", "warp", "step"}) {
    if (forced == name) return {name, reason};
  }
  return {"rows", reason};
}

// Whether a column-major copy of W_hh pays off: cuBLAS then multiplies faster in float32 (64 x 2048
// times 2048 x 8192 on an H200: 56.8 us instead of 62.5). Steps of a packed batch may have few
// rows.
bool by_columns(const RecurrenceSizes& sizes) {
  return sizes.hidden >= 2048 && sizes.batch > 1 && !few_rows(sizes.batch) && sizes.batch <= 128 &&
         sizes.steps >= 32 && !sizes.ragged;
}

}  // namespace

const char* plan_recurrence(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                            std::string_view forced, bool backward, RecurrencePlan* result) {
  const bool free = forced == "auto";
  const char* refusal = free ? nullptr : refuse_forced(sizes, device, forced, backward);
  if (refusal != nullptr) return refusal;
  const auto [algorithm, reason, clusters] =
      free ? choose(sizes, device, backward) : take_forced(sizes, device, forced, backward);
  const bool exact = device.cuda && sizes.dtype == Dtype::kFloat && !device.tf32;
  RecurrencePlan& plan = *result;
  plan = {};
  plan.algorithm = algorithm;
  plan.reason = reason;
  plan.steps_per_chunk = steps_per_chunk(sizes, device);
  plan.transposed = exact && few_rows(sizes.batch);
  plan.weight_by_columns = exact && plan.is("step") && !backward && by_columns(sizes);
  plan.clusters = clusters;
  plan.tf32 = device.tf32;
  if (plan.is("grid")) {
    plan.grid_groups = grid_groups(sizes, device, backward);
    plan.grid_rows = plan_grid(sizes, device, backward);
    plan.setmaxnreg = device.setmaxnreg();
  }
  return nullptr;
}

}  // namespace treadle
