// Work before and after the steps on CUDA, for layer.cpp: products, copies, gradients of input and
// parameters.
#pragma once

#include "recurrent/run/backend.h"

namespace treadle {

void multiply_cuda(const Matrix& out, const Matrix& a, const Matrix& b, Dtype dtype,
                   at::Device device, std::optional<bool> tf32);

void pad_rows_cuda(const PadRows& args, at::Device device);

void parameters_cuda(const ParameterGradients& args, at::Device device);

}  // namespace treadle
