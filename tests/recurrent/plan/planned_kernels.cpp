// Prints each cluster kernel of cluster/kernels.h that the planner never chooses, and each cluster
// kernel that the planner chooses although cluster/kernels.h does not list it. Exits with 1 if it
// prints any kernel. The arguments are numbers of multiprocessors. They are tried one after another
// until all kernels have been chosen.
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/recurrent/plan/plan.h"

using namespace treadle;

// A compiled kernel: its cell, whether it is for backward and for half types, its id, whether it
// supports resets, its units, blocks and tiles, and the rows of a tile.
using Kernel = std::tuple<CellKind, bool, bool, KernelId, bool, int, int, int, int>;

std::string name(const Kernel& named) {
  const auto& [cell, backward, half, kernel, resets, units, blocks, tiles, tile_rows] = named;
  return std::string(cell_info(cell).name) + (backward ? " backward " : " forward ") +
         kernel_info(kernel).name + (half ? " half" : " float32") + (resets ? " resets" : "") +
         " {" + std::to_string(units) + ", " + std::to_string(blocks) + ", " +
         std::to_string(tiles) + "}" + (tile_rows > 0 ? " rows " + std::to_string(tile_rows) : "");
}

// All compiled kernels. Those that support any batch are compiled with and without resets.
std::set<Kernel> compiled() {
  std::set<Kernel> found;
  for (const CellKind cell : kCellKinds) {
    for (size_t i = 0; i < kShapes; ++i) {
      const ClusterShape& shape = kClusterShapes[i];
      const ShapeKernels kernels = kernels_of(i, cell);
      for (const bool backward : {false, true}) {
        for (const bool half : {false, true}) {
          const bool half_any = backward ? kernels.half_backward : kernels.half_forward;
          const bool fp32 = backward ? kernels.fp32_backward : kernels.fp32_forward;
          const KernelId any = shape.blocks == 1 ? KernelId::kBlock
                               : half            ? KernelId::kClusterGeneral
                                                 : KernelId::kClusterFma;
          for (const bool resets : {false, true}) {
            if (half ? half_any : fp32) {
              found.insert(
                  {cell, backward, half, any, resets, shape.units, shape.blocks, shape.tiles, 0});
            }
            const bool none =
                half ? resets && !takes_dense_resets(cell_info(cell).gates, cell_info(cell).c_parts)
                     : backward;
            const RowCounts dense = none   ? RowCounts()
                                    : half ? kernels.dense(backward, resets)
                                           : kernels.split(resets);
            const KernelId of_dense = half ? KernelId::kClusterDense : KernelId::kClusterFp16x2;
            for (int rows = 1; rows <= RowCounts::kMost; ++rows) {
              if (!dense.has(rows)) continue;
              found.insert({cell, backward, half, of_dense, resets, shape.units, shape.blocks,
                            shape.tiles, rows});
            }
          }
        }
      }
    }
  }
  return found;
}

// Whether a plan uses the kernel's instance with resets. Only cluster_fp16x2 uses it for packed
// batches, too.
bool instance(const RecurrencePlan& plan) {
  return plan.kernel == KernelId::kClusterFp16x2 ? plan.ragged : plan.resets;
}

void add_planned(std::set<Kernel>& found, const std::vector<RecurrenceSizes>& layers,
                 const RecurrenceDevice& device) {
  for (const RecurrenceSizes& layer : layers) {
    for (const bool backward : {false, true}) {
      RecurrencePlan plan;
      plan_recurrence(layer, device, "auto", backward, &plan);
      if (plan.algorithm() != Algorithm::kCluster) continue;
      const auto& [units, blocks, tiles] = plan.shape;
      found.insert({layer.cell, backward, is_half(layer.dtype), plan.kernel, instance(plan), units,
                    blocks, tiles, plan.tile_rows});
    }
  }
}

// Pairs: whether rows have different numbers of steps, and whether rows may reset.
constexpr std::pair<bool, bool> kRagged[] = {{false, false}, {true, false}, {false, true}};

std::vector<RecurrenceSizes> all_layers() {
  std::vector<RecurrenceSizes> found;
  for (const CellKind cell : kCellKinds) {
    for (const Dtype dtype : {Dtype::kHalf, Dtype::kFloat}) {
      for (const auto& [packed, resets] : kRagged) {
        for (const int64_t directions : {1, 2}) {
          // With every second width, rows do not consist of whole 16-byte chunks.
          for (int64_t width = 31; width <= 768; width += width % 2 == 0 ? 31 : 1) {
            for (int64_t batch = 1; batch < 20000; batch += batch < 128 ? 1 : batch / 8) {
              found.push_back({cell, 512, batch, width, directions, dtype, packed, resets});
            }
          }
        }
      }
    }
  }
  return found;
}

int main(int count, char** arguments) {
  const std::vector<RecurrenceSizes> layers = all_layers();
  const std::set<Kernel> there = compiled();
  std::set<Kernel> named;
  for (int i = 1; i < count && named != there; ++i) {
    for (const bool tf32 : {false, true}) {
      for (const int architecture : {90, 80}) {
        add_planned(named, layers,
                    {true, architecture, std::atoi(arguments[i]), size_t{50} << 20, tf32});
      }
    }
  }
  int wrong = 0;
  for (const Kernel& kernel : there) {
    if (named.count(kernel) == 0) wrong += std::printf("never planned: %s\n", name(kernel).c_str());
  }
  for (const Kernel& kernel : named) {
    if (there.count(kernel) == 0) wrong += std::printf("not there: %s\n", name(kernel).c_str());
  }
  std::printf("%zu kernels\n", there.size());
  return wrong > 0;
}
