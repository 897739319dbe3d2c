// Divides the steps of a recurrent layer among ATen's threads.
#pragma once

#include <cstdint>
#include <functional>

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

// Calls f for parts that together have all rows and units. The parts are computed by at most as
// many threads as there is work for.
void over_parts(const CpuSteps& steps, const std::function<void(const cpu::RowsPart&)>& f);

// Calls f(first, last) for ranges of units that together are all units, to pack their weights.
void over_units(int64_t hidden, int64_t acc_bytes, int64_t elements,
                const std::function<void(int64_t first, int64_t last)>& f);

}  // namespace treadle
