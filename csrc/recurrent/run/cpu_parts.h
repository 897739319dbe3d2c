// Divides the steps of a recurrent layer among ATen's threads.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/recurrent/cpu/rows.h"

namespace treadle {

struct CpuSteps {
  int64_t batch, hidden, acc_bytes;
  const RecurrenceStep* steps;
  int64_t step_count;
  int64_t step_work;     // multiplications for a step of a row, or as much other work
  bool reads_all_units;  // whether a step of a unit reads results of other units
};

template <class Args>
CpuSteps cpu_steps(const Args& args, int64_t acc_bytes, int64_t step_work, bool reads_all_units) {
  return {args.batch,      args.hidden, acc_bytes,      args.steps,
          args.step_count, step_work,   reads_all_units};
}

// The parts of a batch that threads compute: as many as there are threads, and work for them.
class CpuParts {
 public:
  explicit CpuParts(const CpuSteps& steps);

  // The mean number of rows of a part in a step.
  double rows_of_a_step() const;

  // Whether one thread computes everything.
  bool single() const { return begins_.size() == 2 && units_ == 1; }

  // Calls f for all parts.
  void run(const std::function<void(const cpu::RowsPart&)>& f) const;

  // Calls f(first, last) for ranges of units that together are all units, to pack their weights,
  // which have `elements` elements.
  void over_units(int64_t elements, const std::function<void(int64_t, int64_t)>& f) const;

 private:
  CpuSteps steps_;
  std::vector<int64_t> begins_;  // where each part of the rows begins, and the end of the last
  int64_t units_;                // the number of parts of the units
};

}  // namespace treadle
