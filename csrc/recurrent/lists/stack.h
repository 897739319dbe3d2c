// A call without derivatives, transforms or modes runs its layers below the dispatcher, where a
// layer only launches its kernels.
#pragma once

#include "recurrent/lists/layers.h"
#include "recurrent/run/stack.h"

namespace treadle {

// Whether layers may run in this way: all tensors are plain CPU or CUDA tensors, and no derivative,
// mode or transform needs to see the ops of single layers.
bool is_plain(const Tensor& input, const OptionalTensor& batch_sizes, const Layers& layers);

// Runs all layers of a call that is_plain(), after check_layers().
LayersResults run_stack(LayerInference run_layer, const Tensor& input,
                        const OptionalTensor& batch_sizes, const Layers& layers);

}  // namespace treadle
