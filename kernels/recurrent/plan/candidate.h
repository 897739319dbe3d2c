// What an algorithm offers for a layer: its kernel, and the time that a step is expected to take.
// The planner (plan.cpp) takes the candidate with the least time. Each algorithm's folder defines
// its candidate.
#pragma once

#include <limits>

#include "kernels/recurrent/plan/plan.h"
#include "kernels/recurrent/plan/times.h"

// Separate namespace: the kernels define constants and functions of the same names.
namespace treadle::plans {

using namespace plan_times;

inline constexpr double kNever = std::numeric_limits<double>::infinity();

struct Candidate {
  bool exists = false;  // the algorithm has a kernel for the layer
  double time = kNever;
  RecurrencePlan plan{};
};

// ---- for the algorithms that keep weights on the chip

inline constexpr int64_t kBatch = int64_t{1} << 26;  // 2 * 16 blocks a row are fewer than 2^31
inline constexpr int64_t kSteps = int64_t{1} << 30;  // 32-bit counters run a few steps further

// Whether weights of H up to `most_hidden` are kept on the chip.
inline bool on_chip(const RecurrenceSizes& sizes, const RecurrenceDevice& device,
                    int64_t most_hidden) {
  return device.persistent() && sizes.hidden >= 1 && sizes.hidden <= most_hidden &&
         sizes.batch < kBatch && sizes.steps < kSteps;
}

}  // namespace treadle::plans
