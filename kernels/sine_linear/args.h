// The sine layer's pointwise part as the host describes it, for CPU and CUDA: no torch, no CUDA.
// Shapes: R rows, O columns, I inputs; everything is contiguous but for input.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"

namespace treadle {

// The most inputs that a kernel takes the products of: coordinates.
inline constexpr int64_t kMostCoordinates = 4;

// output = sin(omega (product + bias)), and phase for the derivatives (math/sine_linear.h).
struct SineLinearForward {
  Dtype dtype;  // output, bias, input, weight
  int64_t rows, columns;
  double omega;
  // [R, O] of acc_t, which output may overwrite; null: it is made of input and weight.
  const void* product;
  const void* input;  // [R, I]; I <= kMostCoordinates but in sine_linear_product.cu
  int64_t row_stride, column_stride, inputs;
  const void* weight;  // [O, I]
  const void* bias;    // [O] or null
  void* output;        // [R, O]
  void* phase;         // [R, O] or null
};

// result = grad * factor * scale * wave, a cosine or a sine of the phase. result may be grad: who
// writes an element has read it before, and nobody else reads it. So no kernel may declare these
// pointers __restrict__, or load grad past the coherent caches (ld.global.nc).
struct SineLinearSlope {
  Dtype dtype;
  int64_t numel;
  double scale;
  bool cosine;
  const void *grad, *factor, *output, *phase;  // null: factor, if missing; output, if not read
  void* result;
};

// Such a result [R, O], without a factor, and its sums [O] over the rows.
struct SineLinearSlopeSums {
  SineLinearSlope slope;
  int64_t rows, columns;
  void* parts;  // [P, O] of acc_t, for the sums of P parts of the rows; not read if P is 1
  void* sums;
};

// Of such a result, for a gradient v: v * factor * scale * wave, v * grad * scale * wave, and
// v * grad * factor * next_scale * the other wave. Null: a result that nobody wants.
struct SineLinearSlopeBackward {
  Dtype dtype;
  int64_t numel;
  double scale, next_scale;
  bool cosine;
  const void *v, *grad, *factor, *output, *phase;
  void *by_grad, *by_factor, *by_sum;
};

// The most inputs and outputs of a layer whose gradients one kernel makes, without a slope.
inline constexpr int64_t kMostAtOnce = 256;

// Gradients of input, weight and bias, for one of output. Null: a gradient that nobody wants.
struct SineLinearGradients {
  Dtype dtype;
  int64_t rows, columns, inputs;
  double scale;                                // omega
  const void *grad, *output, *phase;           // [R, O]; null: output, if not read
  const void* input;                           // [R, I]
  int64_t row_stride;                          // of input, whose columns are dense
  const void* weight;                          // [O, I]
  void *grad_input, *grad_weight, *grad_bias;  // [R, I], [O, I], [O]
};

}  // namespace treadle
