// Prints each cluster kernel of cluster/kernels.h that the planner uses for no layer, and each that
// it uses but that does not exist; exits with 1 if there is one. Arguments: numbers of
// multiprocessors, read one after the other until all kernels have been named.
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/recurrent/plan/plan.h"

using namespace treadle;

// A name for each compiled kernel: a kernel for any batch stands for one with and one without
// resets.
std::string name(const CellInfo& cell, bool backward, const char* kind, const ClusterShape& shape,
                 int rows) {
  return std::string(cell.name) + (backward ? " backward " : " forward ") + kind + " {" +
         std::to_string(shape.units) + ", " + std::to_string(shape.blocks) + ", " +
         std::to_string(shape.tiles) + "}" + (rows > 0 ? " rows " + std::to_string(rows) : "");
}

const char* any_kind(bool half, bool resets) {
  return half ? (resets ? "half resets" : "half") : (resets ? "float32 resets" : "float32");
}

const char* dense_kind(bool half) { return half ? "half dense" : "float32 dense"; }

std::set<std::string> compiled() {
  std::set<std::string> found;
  for (const CellInfo& cell : kCells) {
    for (const auto& [shape, three, four] : kClusterKernels) {
      const ShapeKernels& kernels = cell.state_gates == 3 ? three : four;
      for (const bool backward : {false, true}) {
        for (const bool half : {false, true}) {
          const bool half_any = backward ? kernels.half_backward : kernels.half_forward;
          for (const bool resets : {false, true}) {
            if (half ? half_any : kernels.fp32) {
              found.insert(name(cell, backward, any_kind(half, resets), shape, 0));
            }
          }
          const RowCounts split = backward ? RowCounts() : kernels.split;
          const RowCounts dense = half ? kernels.dense(backward) : split;
          for (int rows = 1; rows <= RowCounts::kMost; ++rows) {
            if (dense.has(rows)) {
              found.insert(name(cell, backward, dense_kind(half), shape, rows));
            }
          }
        }
      }
    }
  }
  return found;
}

// Cell, backward, half, ragged, units, blocks, tiles, rows, dense: everything that determines the
// kernels of a plan.
using Named = std::tuple<CellKind, bool, bool, bool, int, int, int, int, bool>;

// Millions of layers have only a few hundred plans, so names are made for plans.
std::set<Named> plans(const std::vector<RecurrenceSizes>& layers, const RecurrenceDevice& device) {
  std::set<Named> found;
  for (const RecurrenceSizes& layer : layers) {
    for (const bool backward : {false, true}) {
      RecurrencePlan plan;
      plan_recurrence(layer, device, "auto", backward, &plan);
      if (!plan.is("cluster")) continue;
      const auto& [shape, rows, dense] = plan.clusters;
      found.insert({layer.cell, backward, is_half(layer.dtype), layer.ragged, shape.units,
                    shape.blocks, shape.tiles, rows, dense});
    }
  }
  return found;
}

std::vector<RecurrenceSizes> all_layers() {
  std::vector<RecurrenceSizes> found;
  for (const CellKind cell : kCellKinds) {
    for (const Dtype dtype : {Dtype::kHalf, Dtype::kFloat}) {
      for (const bool ragged : {false, true}) {
        for (const int64_t directions : {1, 2}) {
          // For every other width, rows are not whole chunks of 16 bytes.
          for (int64_t width = 31; width <= 768; width += width % 2 == 0 ? 31 : 1) {
            for (int64_t batch = 1; batch < 20000; batch += batch < 128 ? 1 : batch / 8) {
              found.push_back({cell, 512, batch, width, directions, dtype, ragged});
            }
          }
        }
      }
    }
  }
  return found;
}

void take(std::set<std::string>& found, const Named& named) {
  const auto& [kind, backward, half, ragged, units, blocks, tiles, rows, by_dense] = named;
  const CellInfo& cell = cell_info(kind);
  const ClusterShape shape{units, blocks, tiles};
  if (!by_dense) {
    found.insert(name(cell, backward, any_kind(half, false), shape, 0));
    // The planner treats packed batches and batches with resets alike.
    if (ragged) found.insert(name(cell, backward, any_kind(half, true), shape, 0));
    return;
  }
  for (size_t i = 0; i < kShapes; ++i) {
    if (!(kClusterShapes[i] == shape)) continue;
    const ShapeKernels& kernels = kernels_of(i, cell.state_gates);
    const RowCounts& dense = half ? kernels.dense(backward) : kernels.split;
    found.insert(
        name(cell, backward, dense_kind(half), shape, dense.at_least((rows + tiles - 1) / tiles)));
  }
}

int main(int count, char** arguments) {
  const std::vector<RecurrenceSizes> layers = all_layers();
  const std::set<std::string> there = compiled();
  std::set<std::string> named;
  for (int i = 1; i < count && named != there; ++i) {
    for (const bool tf32 : {false, true}) {
      for (const int architecture : {90, 80}) {
        const RecurrenceDevice device{true, architecture, std::atoi(arguments[i]), size_t{50} << 20,
                                      tf32};
        for (const Named& plan : plans(layers, device)) take(named, plan);
      }
    }
  }
  int wrong = 0;
  for (const std::string& kernel : there) {
    if (named.count(kernel) == 0) wrong += std::printf("never planned: %s\n", kernel.c_str());
  }
  for (const std::string& kernel : named) {
    if (there.count(kernel) == 0) wrong += std::printf("not there: %s\n", kernel.c_str());
  }
  std::printf("%zu kernels\n", there.size());
  return wrong > 0;
}
