// c_t of every step (`return_cells=True`), recomputed from input and output. c_t is linear in
// c_{t-1}, with factors that follow from the gates, and the gates follow from the input and
// h_{t-1}. So two products and one pass over the steps (run/affine_scan.h) give every c_t, with
// all derivatives.
#pragma once

#include "recurrent/layer/layer.h"

namespace treadle {

// c of one direction of a dense layer: [T, B, H], at least float.
Tensor direction_cells(const LayerArguments& layer, const Tensor& output, int64_t direction);

// c of all directions, dense or packed: [T, B, D*H] or [S, D*H], at least float.
Tensor layer_cells(const LayerArguments& layer, const Tensor& output);

}  // namespace treadle
