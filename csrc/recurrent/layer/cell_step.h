// One step of torch's cells: arguments, and the kernels for few rows that a device may have.
#pragma once

#include "common/autograd.h"
#include "kernels/recurrent/cell_info.h"

namespace treadle {

inline constexpr const char* kStepOp = "cell_step";

// The arguments that can require grad. c is undefined if the cell has none, and so are the biases
// if there are none.
struct StepArguments {
  Tensor input, h, c, weight_ih, weight_hh, bias_ih, bias_hh;

  variable_list list() const { return {input, h, c, weight_ih, weight_hh, bias_ih, bias_hh}; }
};

struct StepValues {
  std::vector<Tensor> states;
  Tensor result, workspace;  // saved for the backward pass; result is one of the states, or none
};

// Kernels for steps of few rows. They are below autograd.
struct CellStepKernels {
  // Whether there are kernels for arguments of this dtype and these sizes.
  bool (*take)(const StepArguments& arguments);
  StepValues (*forward)(CellKind cell, const StepArguments& arguments, bool training);
  // The gradients of all arguments that are needed, given those of the states.
  variable_list (*backward)(CellKind cell, const StepArguments& arguments, const Tensor& workspace,
                            const variable_list& grads, const Need& need);
};

// Null unless the library was built with CUDA.
const CellStepKernels*& cell_step_kernels();

}  // namespace treadle
