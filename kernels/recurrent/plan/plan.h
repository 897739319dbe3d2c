// The plan of a recurrent layer: a pure function of sizes, dtype and device. Algorithms:
// - rows, CPU: each thread computes all steps of some rows of the batch, or of some of their units
// - step, CUDA: a matrix product and a pointwise kernel for each step
// - tiles, CUDA: one launch for each step; tensor cores multiply tiles of many rows
// - warp, CUDA: one launch for a single step of few rows, without tensor cores
// - cluster, CUDA: one launch for all steps; a cluster of blocks (before sm_90, a single block)
//   keeps the weights on the chip
// - grid, CUDA: like cluster, with more blocks than a cluster may have, for larger H
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <tuple>

#include "kernels/common/exported.h"
#include "kernels/recurrent/cell_info.h"
#include "kernels/recurrent/cluster/kernels.h"
#include "kernels/recurrent/grid/shapes.h"

namespace treadle {

enum class Algorithm : uint8_t { kRows, kStep, kTiles, kWarp, kCluster, kGrid };

// The kernels of all algorithms. Only the planner decides which of them runs a layer.
enum class KernelId : uint8_t {
  kRows,
  kStep,
  kTiles,
  kWarp,
  kBlock,           // one block has all weights, as floats: half types and float32
  kClusterGeneral,  // half types, any batch
  kClusterDense,    // half types, dense batches; with resets: see cluster/kernels.h
  kClusterFp16x2,   // float32 forward on tensor cores, any batch; cells whose h cannot grow
  kClusterFma,      // float32, any batch
  kGridHalf,        // half types, H up to kGridHidden
  kGridH2048,       // half types forward, larger H
  kGridFp16x2,      // float32 on tensor cores
};

struct KernelInfo {
  const char* name;
  Algorithm algorithm;
};

inline constexpr KernelInfo kKernelInfos[] = {
    {"rows", Algorithm::kRows},
    {"step", Algorithm::kStep},
    {"tiles", Algorithm::kTiles},
    {"warp", Algorithm::kWarp},
    {"block", Algorithm::kCluster},
    {"cluster_general", Algorithm::kCluster},
    {"cluster_dense", Algorithm::kCluster},
    {"cluster_fp16x2", Algorithm::kCluster},
    {"cluster_fma", Algorithm::kCluster},
    {"grid_half", Algorithm::kGrid},
    {"grid_h2048", Algorithm::kGrid},
    {"grid_fp16x2", Algorithm::kGrid},
};

constexpr const KernelInfo& kernel_info(KernelId kernel) {
  return kKernelInfos[static_cast<size_t>(kernel)];
}

inline constexpr const char* kAlgorithmNames[] = {"rows", "step",    "tiles",
                                                  "warp", "cluster", "grid"};

struct RecurrenceSizes {
  CellKind cell;
  int64_t steps, batch, hidden, directions;
  Dtype dtype;
  bool packed = false;  // some row has fewer steps than others
  bool resets = false;  // rows may reset
  int groups = 1;       // as in PersistentSizes

  // Whether rows may lack steps, or begin a step in a state other than that after the previous
  // step.
  bool ragged() const { return packed || resets; }

  // Compares all members, so equal sizes have the same plan.
  bool operator==(const RecurrenceSizes& other) const {
    const auto all = [](const RecurrenceSizes& s) {
      return std::tie(s.cell, s.steps, s.batch, s.hidden, s.directions, s.dtype, s.packed, s.resets,
                      s.groups);
    };
    return all(*this) == all(other);
  }
};

inline constexpr int kHopperMhz = 1980;  // the clock of the GPU on which times were measured

// The size of acc_t in bytes. Products of half types are floats.
inline int64_t acc_bytes(Dtype dtype) { return dtype == Dtype::kDouble ? 8 : 4; }

struct RecurrenceDevice {
  bool cuda = false;
  int architecture = 0;  // 90 for sm_90
  int multiprocessors = 0;
  size_t l2_bytes = 0;                     // CPU: the cache that all cores share
  bool tf32 = false;                       // whether float32 products may use TF32
  size_t shared_bytes = kMostSharedBytes;  // the most per block
  int clock_mhz = kHopperMhz;              // the highest clock of the multiprocessors

  // Whether the GPU can run persistent kernels.
  bool persistent() const { return cuda && architecture >= 80; }
  // sm_120 also has clusters, but a block has at most 99 KB of shared memory, and no cluster kernel
  // is compiled for that size.
  bool clusters() const { return architecture >= 90 && architecture < 110; }
  bool setmaxnreg() const { return architecture == 90; }
};

// The kernel that runs a pass of a layer, and its parameters. Launchers use the plan unchanged.
struct RecurrencePlan {
  KernelId kernel = KernelId::kStep;
  const char* reason = "";
  bool resets = false;  // use the kernel's instance with resets
  bool ragged = false;  // cluster_fp16x2: use the instance for packed batches and resets
  bool tf32 = false;    // float32 products may use TF32

  // Only for cluster and grid: the most rows of the batch that a cluster, or a RowGroup of the
  // grid, computes. A RowGroup consists of the blocks that together keep one copy of W_hh.
  int rows = 0;
  ClusterShape shape{};     // cluster
  int tile_rows = 0;        // cluster_dense, cluster_fp16x2: the rows per tile of the kernel
  int64_t groups = 0;       // grid: RowGroups of a direction that run at once
  int64_t directions = 0;   // grid: directions that run at once
  bool setmaxnreg = false;  // grid: use the layouts that need setmaxnreg
  size_t group_bytes = 0;   // grid: bytes of the workspace for each RowGroup

  // Only for rows and step:
  int64_t steps_per_chunk = 0;     // steps whose input products are computed at once
  bool transposed = false;         // products are [GH, S], not [S, GH] (step_args.h)
  bool weight_by_columns = false;  // forward: multiply by a column-major copy of W_hh

  Algorithm algorithm() const { return kernel_info(kernel).algorithm; }
  const char* algorithm_name() const { return kAlgorithmNames[static_cast<int>(algorithm())]; }
  const char* kernel_name() const { return kernel_info(kernel).name; }

  bool by_steps() const { return kernel == KernelId::kStep; }
  bool fused() const { return kernel == KernelId::kTiles || kernel == KernelId::kWarp; }
  bool one_block() const { return kernel == KernelId::kBlock; }
  bool grid() const { return algorithm() == Algorithm::kGrid; }
  bool persistent() const { return grid() || algorithm() == Algorithm::kCluster; }

  // Rows of the batch that one launch computes. Further launches of the grid compute the rest.
  int64_t rows_at_once(int64_t batch) const {
    return grid() && groups * rows < batch ? groups * rows : batch;
  }
  // How many of `all` directions one launch computes.
  int64_t directions_at_once(int64_t all) const {
    return grid() && directions < all ? directions : all;
  }
  // Bytes of the workspace for a launch that computes `count` rows of the batch in `of` directions.
  size_t workspace(int64_t count, int64_t of) const {
    return grid() ? group_bytes * static_cast<size_t>((count + rows - 1) / rows * of) : 0;
  }
};

// Sets *plan and returns null, or returns the reason why the `forced` algorithm cannot run. That
// string is valid until this thread's next error. If `forced` is "auto", no algorithm is forced.
const char* plan_recurrence(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                            std::string_view forced, bool backward, RecurrencePlan* plan)
    TREADLE_EXPORTED(plan_recurrence);

}  // namespace treadle
