// The steps of a formula's layer on a CPU without a C++ compiler: tensor operations on all rows of
// a step. The arguments are those of kernels/recurrent/cpu/rows.h, for the whole batch.
#pragma once

#include "common/tensors.h"
#include "kernels/recurrent/step_args.h"

namespace treadle {

// weight_hh: [G_h H, H], in the dtype of sums.
void formula_forward_cpu(const RecurrenceForward& args, const Tensor& weight_hh);
void formula_c_states_cpu(const RecurrenceCStates& args);
void formula_backward_cpu(const RecurrenceBackward& args, const Tensor& weight_hh);

}  // namespace treadle
