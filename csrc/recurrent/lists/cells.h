// c_t of every step (`return_cells=True`), recomputed from input and output. c_t is an affine
// function of c_{t-1} whose coefficients depend on the gates, which depend on the input and
// h_{t-1}. So a matrix product and one pass over the steps (run/affine_scan.h) compute every c_t of
// a direction. The product and the pass are differentiable. layer/layer.h explains the sizes, such
// as S.
#pragma once

#include "recurrent/layer/layer.h"

namespace treadle {

// The marks [T, B, 1] that apply before each step of a direction: those of `reset`, which in
// direction 1 apply between the marked step and the one before it in time.
Tensor marks_before(const Tensor& reset, int64_t direction);

// c of one direction of time of a dense layer: [T, B, H], in float32 or float64.
Tensor direction_cells(const LayerArguments& layer, const Tensor& output, int64_t direction);

// c of all directions, dense or packed: [T, B, D*H] or [S, D*H], in float32 or float64.
Tensor layer_cells(const LayerArguments& layer, const Tensor& output);

}  // namespace treadle
