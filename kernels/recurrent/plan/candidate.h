// A candidate: the plan with which an algorithm would run a layer, and its estimated time per step.
// The planner (plan.cpp) chooses the candidate with the least time. The folder of each algorithm
// defines a function that returns its candidate.
#pragma once

#include <limits>

#include "kernels/recurrent/plan/plan.h"
#include "kernels/recurrent/plan/times.h"

// This is a separate namespace because the kernels define constants and functions with the same
// names.
namespace treadle::plans {

using namespace plan_times;

inline constexpr double kNever = std::numeric_limits<double>::infinity();

struct Candidate {
  bool exists = false;  // whether the algorithm has a kernel for the layer
  double time = kNever;
  RecurrencePlan plan{};
};

// ---- for the algorithms that keep weights on the chip

inline constexpr int64_t kBatch = int64_t{1} << 26;  // B * 2 * 16 blocks are fewer than 2^31
inline constexpr int64_t kSteps = int64_t{1} << 30;  // 32-bit counters go a few steps beyond T

// Whether c is one number per unit. The general cluster kernels support only such cells.
inline bool one_c(const RecurrenceSizes& sizes) { return cell_info(sizes.cell).c_parts == 1; }

// The general cluster kernel is faster than the dense kernel with resets in the backward pass up to
// H 128. An LSTM on an H100, in bfloat16 with T 512 and H 128, took 0.52 us per step instead of
// 0.55 with B 16, and 0.61 instead of 0.70 with B 64.
inline bool takes_resets_densely(const RecurrenceSizes& sizes, bool backward) {
  const CellInfo& cell = cell_info(sizes.cell);
  const bool general_is_faster = backward && sizes.hidden <= 128 && one_c(sizes);
  return takes_dense_resets(cell.gates, cell.c_parts) && !general_is_faster;
}

// Whether the dense cluster kernels support the batch.
inline bool is_dense(const RecurrenceSizes& sizes, bool backward) {
  const bool resets = !sizes.resets || takes_resets_densely(sizes, backward);
  return !sizes.packed && resets && sizes.hidden % 8 == 0;
}

// Whether clusters of several blocks support the cell and the batch.
inline bool in_clusters(const RecurrenceSizes& sizes, bool backward) {
  return one_c(sizes) || (is_half(sizes.dtype) && is_dense(sizes, backward));
}

// Whether an algorithm that supports H up to `most_hidden` can run a layer of these sizes.
inline bool on_chip(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                    int64_t most_hidden) {
  return device.persistent() && sizes.hidden >= 1 && sizes.hidden <= most_hidden &&
         sizes.batch < kBatch && sizes.steps < kSteps;
}

}  // namespace treadle::plans
