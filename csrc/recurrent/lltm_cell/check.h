// Checks the arguments of lltm_cell and lltm_cell_backward. Sizes may be symbolic.
#pragma once

#include "common/check.h"
#include "common/dispatch.h"

namespace treadle {

void check_lltm_cell(const char* op, const Tensor& input, const Tensor& weights,
                     const OptionalTensor& bias, const Tensor& old_h, const Tensor& old_cell);

void check_lltm_cell_backward(const OptionalTensor& grad_h, const OptionalTensor& grad_cell,
                              const Tensor& input, const Tensor& weights,
                              const OptionalTensor& bias, const Tensor& old_h,
                              const Tensor& old_cell, const Tensor& new_cell, const Tensor& gates);

}  // namespace treadle
