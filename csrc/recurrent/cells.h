// The cells c of all steps, which the layers keep to themselves. c is linear in the c before it,
// with factors that follow from the gates; and these from the input and the h before, which the
// output has. So two products and one pass over the steps (affine_scan.h) give all of them, with
// every derivative that these have.
#pragma once

#include "recurrent/layer.h"

namespace treadle {

// c of one direction of a dense layer: [T, B, H], in float at least.
Tensor direction_cells(const LayerArguments& layer, const Tensor& output, int64_t direction);

// c of all directions, dense or packed: [T, B, D*H] or [S, D*H], in float at least.
Tensor layer_cells(const LayerArguments& layer, const Tensor& output);

}  // namespace treadle
