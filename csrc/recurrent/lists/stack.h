// Layers of a call without derivatives, transforms or modes, below the dispatcher: only their
// kernels are launched.
#pragma once

#include "recurrent/lists/layers.h"
#include "recurrent/run/stack.h"

namespace treadle {

// Whether layers may be run so: tensors without wrappers on the CPU or a GPU, and nobody to see
// what happens between two layers.
bool is_plain(const Tensor& input, const OptionalTensor& batch_sizes, const Layers& layers);

// All layers of a call that is_plain(), after check_layers().
LayersResults run_stack(LayerInference run_layer, const Tensor& input,
                        const OptionalTensor& batch_sizes, const Layers& layers);

}  // namespace treadle
