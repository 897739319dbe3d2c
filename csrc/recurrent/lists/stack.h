// Runs the layers of a call without derivatives, transforms or modes below the dispatcher, where
// only their kernels are launched.
#pragma once

#include "recurrent/lists/layers.h"
#include "recurrent/run/stack.h"

namespace treadle {

// Whether layers may run in this way: tensors are on the CPU or a GPU without wrappers, and no
// mode or transform could observe the ops between two layers.
bool is_plain(const Tensor& input, const OptionalTensor& batch_sizes, const Layers& layers);

// Runs all layers of a call that is_plain(), after check_layers().
LayersResults run_stack(LayerInference run_layer, const Tensor& input,
                        const OptionalTensor& batch_sizes, const Layers& layers);

}  // namespace treadle
