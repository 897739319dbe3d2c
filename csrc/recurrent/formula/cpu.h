// The steps of a layer whose cell is a formula, on a machine without a C++ compiler. Tensor
// operations compute all rows of a step. The arguments are those of kernels/recurrent/cpu/rows.h,
// for the whole batch.
#pragma once

#include "common/tensors.h"
#include "kernels/recurrent/step_args.h"

namespace treadle {

// weight_hh has H rows for each gate to which the product of h contributes, and H columns.
void formula_forward_cpu(const RecurrenceForward& args, const Tensor& weight_hh);
void formula_c_states_cpu(const RecurrenceCStates& args);
void formula_backward_cpu(const RecurrenceBackward& args, const Tensor& weight_hh);

}  // namespace treadle
