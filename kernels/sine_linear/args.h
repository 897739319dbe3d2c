// Arguments of the sine layer's kernels on the CPU and on CUDA, without torch or CUDA. Shapes:
// R rows, O columns, I inputs; everything is contiguous unless a stride is given. With
// z = input weight^T + bias: output = sin(omega z), and phase has what the derivatives need in
// addition to output (math/sine_linear.h).
#pragma once

#include <cstdint>

#include "kernels/common/dtype.h"

namespace treadle {

// Up to this many inputs (coordinates) the pointwise kernels compute the product themselves.
inline constexpr int64_t kMaxCoordinates = 4;

struct SineLinearForward {
  Dtype dtype;  // of output, bias, input and weight
  int64_t rows, columns;
  double omega;
  // [R, O] in acc_t, which output may overwrite; null: computed from input and weight.
  const void* product;
  const void* input;  // [R, I]; I <= kMaxCoordinates except in the fused kernel
  int64_t row_stride, column_stride, inputs;
  const void* weight;  // [O, I]
  const void* bias;    // [O] or null
  void* output;        // [R, O]
  void* phase;         // [R, O] or null
};

// result = grad * factor * scale * wave, where wave is the cosine or the sine of the phase. For the
// first derivative, wave is the cosine, there is no factor, grad is the gradient of output, and
// result is grad_z.
// result may alias grad, because the thread that writes an element has read it before. So no kernel
// may declare these pointers __restrict__ or load grad with ld.global.nc.
struct SineLinearSlope {
  Dtype dtype;
  int64_t numel;
  double scale;
  bool cosine;
  const void *grad, *factor, *output, *phase;  // factor may be null; so may output if not read
  void* result;
};

// Computes grad_z [R, O], which is slope.result, and its column sums grad_bias [O].
struct SineLinearBackwardBias {
  SineLinearSlope slope;
  int64_t rows, columns;
  void* parts;  // [P, O] in acc_t: partial sums of P row blocks; not used if P is 1
  void* grad_bias;
};

// The vjp of SineLinearSlope; v is the gradient of its result. A null result is not computed.
//   grad_grad = v factor scale wave        grad_factor = v grad scale wave
//   grad_z = v grad factor next_scale next_wave, where next_wave is the sine if wave is the
//   cosine, and the cosine otherwise
struct SineLinearSlopeBackward {
  Dtype dtype;
  int64_t numel;
  double scale, next_scale;
  bool cosine;
  const void *v, *grad, *factor, *output, *phase;
  void *grad_grad, *grad_factor, *grad_z;
};

// The fused backward kernel accepts layers with up to this many inputs and outputs.
inline constexpr int64_t kMaxFusedWidth = 256;

// The gradients of input, weight and bias, from that of output. A null result is not computed.
struct SineLinearFusedBackward {
  Dtype dtype;
  int64_t rows, columns, inputs;
  double scale;                                // omega
  const void *grad, *output, *phase;           // [R, O]; output may be null if not read
  const void* input;                           // [R, I], dense along I
  int64_t row_stride;                          // of input
  const void* weight;                          // [O, I]
  void *grad_input, *grad_weight, *grad_bias;  // [R, I], [O, I], [O]
};

}  // namespace treadle
