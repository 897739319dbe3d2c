// The gradients of the input and the parameters on CUDA, for layer.cpp.
#pragma once

#include "recurrent/backend.h"

namespace treadle {

void parameters_cuda(const ParameterGradients& args, at::Device device);

}  // namespace treadle
