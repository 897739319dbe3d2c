// The plan of the pass that this thread is running. treadle.launch_info shows it with each launch,
// and TREADLE_PRINT_PLANS=1 prints it.
#pragma once

#include "kernels/common/launches.h"
#include "kernels/recurrent/plan/plan.h"

namespace treadle {

// Prints a line to stderr if TREADLE_PRINT_PLANS is 1: "treadle: lstm forward, bfloat16, T 512,
// B 16, H 512, D 1: cluster_dense {32, 16, 1}, 3 rows (why)".
void print_plan(const RecurrenceSizes& sizes, bool backward, const RecurrencePlan& plan)
    TREADLE_EXPORTED(print_plan);

class PlanScope {
 public:
  PlanScope(const RecurrenceSizes& sizes, bool backward, const RecurrencePlan& plan)
      : launches_(plan.kernel_name(), plan.algorithm_name(), plan.reason) {
    print_plan(sizes, backward, plan);
  }

 private:
  LaunchScope launches_;
};

}  // namespace treadle
