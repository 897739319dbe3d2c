#include "kernels/recurrent/plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "kernels/common/error.h"
#include "kernels/common/few_rows.h"

namespace treadle {
namespace {

// As many steps as half of the cache holds, so that each finds its part of the input product there;
// but at least so many rows, since smaller products do not fill the chip. What tiles read of them
// need not be in the cache: it is asked for before their own product.
constexpr int64_t kProductRows = 1024, kTileProductRows = 65536;

int64_t steps_per_chunk(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                        int64_t rows) {
  const int64_t batch = std::max<int64_t>(sizes.batch, 1);
  const int64_t hidden = std::max<int64_t>(sizes.hidden, 1);
  // Divided one by one: their product may not fit in 64 bits.
  const int64_t fit = static_cast<int64_t>(device.l2_bytes) / 2 / batch / hidden /
                      (cell_info(sizes.cell).gates * acc_bytes(sizes.dtype));
  const int64_t filling = (rows - 1) / batch + 1;
  return std::clamp(std::max(fit, filling), int64_t{1}, std::max<int64_t>(sizes.steps, 1));
}

// ---- weights on the chip

constexpr int64_t kBatch = int64_t{1} << 26;  // at 2 * 16 blocks a row they are fewer than 2^31
constexpr int64_t kSteps = int64_t{1} << 30;  // kernels count some more in 32 bits
constexpr int64_t kFewSteps = 1;

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

const CellShapes& shapes_of(const RecurrenceSizes& sizes) {
  const CellInfo& cell = cell_info(sizes.cell);
  return cell_shapes(cell.gates, cell.state_gates);
}

// Groups of kGridBlocks blocks for each direction, one block a multiprocessor.
int64_t grid_groups(const RecurrenceSizes& sizes, const RecurrenceDevice& device) {
  return device.multiprocessors / kGridBlocks / std::max<int64_t>(sizes.directions, 1);
}

// Clusters that fit at once: an H200 with 132 multiprocessors holds 7 of 16 blocks.
int64_t clusters_at_once(int blocks, const RecurrenceDevice& device) {
  const int of_132 = blocks == 16 ? 7 : blocks == 8 ? 15 : blocks == 4 ? 32 : 132;
  return std::max<int64_t>(device.multiprocessors * of_132 / 132, 1);
}

// Times of a step in us, fitted to measurements on an H200: of LLTM, scaled by what other cells
// multiply and exchange (the benchmark suite sweep_cell_algorithms says how well). Cluster: a
// minimum, the products, and the exchange: forward of h, backward of the gradients of all gates
// that h adds to.
double cluster_time(const ClusterShape& shape, int rows, int state_gates, bool backward,
                    bool exact) {
  // Of three gates: what is multiplied, and what is exchanged.
  const double work = state_gates / 3.0, sent = backward ? work : 1;
  const auto hidden = static_cast<double>(shape.hidden());
  if (exact) {
    // A block alone exchanges nothing.
    if (shape.blocks == 1) return 0.25 + work * 1.8e-5 * shape.units * hidden * rows;
    // Weights that lie in shared memory are loaded anew for every row.
    const double loads = fp32_weights(shape, state_gates) > kFp32Weights ? 2 : 1;
    const double each = loads * work * 1.3e-5 * shape.units + sent * (backward ? 6e-4 : 2e-4);
    return 0.7 + each * hidden * rows;
  }
  return (backward ? 0.40 : 0.38) +
         work * (backward ? 2.7e-5 : 2.2e-5) * hidden * shape.units * shape.tiles +
         sent * (backward ? 1.4e-4 : 7e-5) * hidden * rows;
}

// Grid: tiles run in sequence; with one tile there is nothing to overlap with.
double grid_time(int64_t launches, int rows, int state_gates, bool backward) {
  return static_cast<double>(launches) *
         (0.6 + state_gates / 3.0 * (backward ? 0.375 : 0.19) * rows);
}

// Step: a matrix product and a kernel, between which the products of half types lie in memory as
// floats.
double launched_time(const RecurrenceSizes& sizes, bool tf32, bool backward) {
  const double hidden = static_cast<double>(sizes.hidden), rows = static_cast<double>(sizes.batch);
  const double flop_per_us = is_half(sizes.dtype) ? 4e8 : tf32 ? 1.5e8 : 4e7;
  const CellInfo& cell = cell_info(sizes.cell);
  const double flop = rows * hidden * hidden * (2 * cell.state_gates);
  const double bytes = is_half(sizes.dtype) ? rows * hidden * (12 * cell.gates + 20) : 0;
  return static_cast<double>(sizes.directions) *
         (13 + flop / flop_per_us + bytes / 3e6 + (backward ? 6 : 0));
}

constexpr int64_t kTileHidden = 64, kTilesHidden = int64_t{1} << 20;  // H: a multiple; at most
constexpr int64_t kTileRows = 512;  // of fewer, half of the tiles would be empty

// Tiles, of the forward pass: rounds of tiles over the chip, each of which takes the longer the
// more of the chip it fills, since all then wait for memory.
double tiles_time(const RecurrenceSizes& sizes, const RecurrenceDevice& device) {
  const CellInfo& cell = cell_info(sizes.cell);
  const int64_t at_once = std::max(device.multiprocessors / 2, 1);
  const int64_t pairs = ceil_div(std::max<int64_t>(sizes.batch, 1), 256);  // of tiles
  const auto tiles = static_cast<double>(pairs) * static_cast<double>(sizes.hidden / kTileHidden);
  const double rounds = std::ceil(tiles / static_cast<double>(at_once));
  const double fill = tiles / rounds / static_cast<double>(at_once);
  const double depth = static_cast<double>(sizes.hidden) / 256 * cell.state_gates;
  return static_cast<double>(sizes.directions) *
         (3 + rounds * (4 + 0.5 * depth + 0.6 * cell.gates * fill));
}

struct Clusters {
  ClusterPlan plan;
  double time;
};

// The shape and the rows a cluster that take the batch through a step in the least time.
Clusters plan_clusters(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                       bool backward) {
  Clusters best{{}, std::numeric_limits<double>::infinity()};
  const auto& kernels = shapes_of(sizes).clusters;
  const int state_gates = cell_info(sizes.cell).state_gates;
  for (size_t i = 0; i < kShapes; ++i) {
    const ClusterShape& shape = kClusterShapes[i];
    if (shape.hidden() < sizes.hidden) continue;
    const bool half = backward ? kernels[i].half_backward : kernels[i].half_forward;
    if (!(is_half(sizes.dtype) ? half : kernels[i].fp32)) continue;
    const int64_t at_once = clusters_at_once(shape.blocks, device);
    const int most = is_half(sizes.dtype) ? shape.rows() : fp32_rows(shape, state_gates);
    for (int rows = 1; rows <= most; ++rows) {
      const int64_t clusters = ceil_div(sizes.batch, rows) * sizes.directions;
      const double waves = static_cast<double>(std::max<int64_t>(ceil_div(clusters, at_once), 1));
      const double time =
          waves * cluster_time(shape, rows, state_gates, backward, !is_half(sizes.dtype));
      if (time < best.time) best = {{shape, rows}, time};
    }
  }
  return best;
}

// The most rows of a group of blocks.
int64_t grid_rows(const RecurrenceSizes& sizes, bool backward) {
  const CellShapes& shapes = shapes_of(sizes);
  return backward ? shapes.grid_rows_backward : shapes.grid_rows;
}

int64_t grid_launches(const RecurrenceSizes& sizes, const RecurrenceDevice& device, bool backward) {
  const int64_t at_once = grid_groups(sizes, device) * grid_rows(sizes, backward);
  return std::max<int64_t>(ceil_div(sizes.batch, at_once), 1);
}

// Rows a group of blocks, in tiles of 8.
int plan_grid(const RecurrenceSizes& sizes, const RecurrenceDevice& device, bool backward) {
  const int64_t at_once = grid_groups(sizes, device) * grid_launches(sizes, device, backward);
  const int64_t rows = std::max<int64_t>(ceil_div(sizes.batch, at_once), 1);
  return static_cast<int>(ceil_div(rows, 8) * 8);
}

// ---- the choice

// The largest H whose weights an algorithm keeps on the chip; 0 if it does not take the dtype.
int64_t most_hidden(const RecurrenceSizes& sizes, Dtype dtype, bool cluster, bool backward) {
  if (!cluster) return is_half(dtype) && grid_rows(sizes, backward) > 0 ? kGridHidden : 0;
  int64_t most = 0;
  for (size_t i = 0; i < kShapes; ++i) {
    const ShapeKernels& kernels = shapes_of(sizes).clusters[i];
    const bool half = backward ? kernels.half_backward : kernels.half_forward;
    const bool any = is_half(dtype) ? half : dtype == Dtype::kFloat && kernels.fp32;
    if (any) most = std::max(most, kClusterShapes[i].hidden());
  }
  return most;
}

bool on_chip(const RecurrenceSizes& sizes, const RecurrenceDevice& device, bool cluster,
             bool backward) {
  return device.architecture >= 90 && sizes.hidden >= 1 &&
         sizes.hidden <= most_hidden(sizes, sizes.dtype, cluster, backward) &&
         sizes.batch < kBatch && sizes.steps < kSteps;
}

constexpr int64_t kRows = int64_t{1} << 30;  // of all steps: TMA counts them in 32 bits

bool in_tiles(const RecurrenceSizes& sizes, const RecurrenceDevice& device) {
  return device.architecture == 90 && is_half(sizes.dtype) && sizes.hidden >= kTileHidden &&
         sizes.hidden % kTileHidden == 0 && sizes.hidden <= kTilesHidden && sizes.steps < kRows &&
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
  if (sizes.steps <= kFewSteps) return {"step", "one step does not pay for weights on the chip"};
  const double launched = launched_time(sizes, device.tf32, backward);
  // Backward a product and a kernel have been faster wherever both beat the weights on the chip.
  const bool any_tiles = in_tiles(sizes, device) && sizes.batch >= kTileRows && !backward;
  const double tiles =
      any_tiles ? tiles_time(sizes, device) : std::numeric_limits<double>::infinity();
  const Choice in_launches = tiles < launched
                                 ? Choice{"tiles", "so many rows fill tiles of tensor cores"}
                                 : Choice{"step", "so many rows are faster by a product a step"};
  const bool cluster = on_chip(sizes, device, /*cluster=*/true, backward);
  if (!cluster &&
      !(on_chip(sizes, device, /*cluster=*/false, backward) && grid_groups(sizes, device) > 0)) {
    if (tiles < launched) return in_launches;
    return {"step", "no algorithm keeps such weights on the chip"};
  }
  const Clusters clusters = cluster ? plan_clusters(sizes, device, backward) : Clusters{};
  const double time = cluster ? clusters.time
                              : grid_time(grid_launches(sizes, device, backward),
                                          plan_grid(sizes, device, backward),
                                          cell_info(sizes.cell).state_gates, backward);
  if (time > std::min(launched, tiles)) return in_launches;
  if (!cluster) return {"grid", "the blocks of the grid keep the weights on the chip"};
  return {"cluster", "the blocks of a cluster keep the weights on the chip", clusters.plan};
}

// null, or why the algorithm cannot run.
const char* refuse_forced(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                          std::string_view forced, bool backward) {
  if (!device.cuda) {
    return forced == "rows" ? nullptr
                            : fail("algorithm must be auto or rows on the CPU, got ", forced);
  }
  if (forced == "step") return nullptr;
  if (forced == "tiles") {
    return in_tiles(sizes, device)
               ? nullptr
               : fail("algorithm tiles needs float16 or bfloat16, H a multiple of ", kTileHidden,
                      " up to ", kTilesHidden, ", T * B < 2^30 and an sm_90 GPU, got ",
                      dtype_name(sizes.dtype), ", H = ", sizes.hidden, ", T = ", sizes.steps,
                      ", B = ", sizes.batch, " and sm_", device.architecture);
  }
  const bool cluster = forced == "cluster";
  if (!cluster && forced != "grid") {
    return fail("algorithm must be auto, cluster, grid, tiles or step on CUDA, got ", forced);
  }
  if (sizes.batch >= kBatch) {
    return fail("algorithm ", forced, " needs B < 2^26, got ", sizes.batch);
  }
  if (sizes.steps >= kSteps) {
    return fail("algorithm ", forced, " needs T < 2^30, got ", sizes.steps);
  }
  const auto most = [&](Dtype dtype) { return most_hidden(sizes, dtype, cluster, backward); };
  if (!on_chip(sizes, device, cluster, backward)) {
    const int64_t fp32 = most(Dtype::kFloat);
    return fail("algorithm ", forced, " needs float16 or bfloat16, 1 <= H <= ", most(Dtype::kHalf),
                fp32 > 0 ? " (or float32 up to " + std::to_string(fp32) + ")" : "",
                " and an sm_90 GPU, got ", dtype_name(sizes.dtype), ", H = ", sizes.hidden,
                " and sm_", device.architecture);
  }
  if (!cluster && grid_groups(sizes, device) == 0) {
    return fail("algorithm grid needs ", kGridBlocks, " multiprocessors a direction, got ",
                device.multiprocessors, " for ", sizes.directions);
  }
  return nullptr;
}

// An algorithm that refuse_forced() lets pass.
Choice take_forced(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                   std::string_view forced, bool backward) {
  constexpr const char* reason = "asked for";
  if (forced == "cluster") {
    return {"cluster", reason, plan_clusters(sizes, device, backward).plan};
  }
  for (const char* const name : {"grid", "tiles", "step"}) {
    if (forced == name) return {name, reason};
  }
  return {"rows", reason};
}

}  // namespace

const char* plan_recurrence(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                            std::string_view forced, bool backward, RecurrencePlan* result) {
  const bool free = forced == "auto";
  const char* refusal = free ? nullptr : refuse_forced(sizes, device, forced, backward);
  if (refusal != nullptr) return refusal;
  const auto [algorithm, reason, clusters] =
      free ? choose(sizes, device, backward) : take_forced(sizes, device, forced, backward);
  const bool transposed =
      device.cuda && sizes.dtype == Dtype::kFloat && !device.tf32 && few_rows(sizes.batch);
  const bool tiles = std::string_view(algorithm) == "tiles";
  const int64_t chunk = steps_per_chunk(sizes, device, tiles ? kTileProductRows : kProductRows);
  RecurrencePlan& plan = *result;
  plan = {algorithm, reason, chunk, transposed, clusters, 0, 0};
  if (plan.is("grid")) {
    plan.grid_groups = grid_groups(sizes, device);
    plan.grid_rows = plan_grid(sizes, device, backward);
  }
  return nullptr;
}

}  // namespace treadle
