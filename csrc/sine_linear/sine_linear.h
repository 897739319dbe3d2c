// sine_linear: declarations that its ops and their backends share. Derivatives: autograd.cpp. The
// values saved for derivatives: kernels/math/sine_linear.h.
#pragma once

#include <array>

#include "common/tensors.h"
#include "kernels/sine_linear/args.h"

namespace treadle {

using OutputAndPhase = Tensors2;

// A device's functions. A fused kernel may be null. For arguments that it does not support, it does
// nothing and returns false.
struct SineLinearBackend {
  Tensor (*gemm_operand)(const Tensor& t);  // converts t to an argument of `gemm`
  // out [R, O] = x [R, I] weight [O, I]^T, in the dtype of sums (float32 for half types)
  void (*gemm)(const Tensor& out, const Tensor& x, const Tensor& weight);
  int64_t gemm_bytes;  // the maximum size of the product for a chunk of rows
  void (*forward)(const SineLinearForward& args, at::Device device);
  // Fused: computes the product from input and weight, both dense along I, without storing it.
  bool (*fused_forward)(const SineLinearForward& args, at::Device device);
  void (*slope)(const SineLinearSlope& args, at::Device device);
  void (*slope_backward)(const SineLinearSlopeBackward& args, at::Device device);
  // grad_z [R, O] and grad_bias [O] in one pass. Null: ATen sums grad_z.
  void (*backward_bias)(const SineLinearSlope& args, const Tensor& grad_z, const Tensor& grad_bias);
  // Fused: computes the gradients of input, weight and bias without storing grad_z.
  bool (*fused_backward)(const SineLinearFusedBackward& args, at::Device device);
};

// A layer's arguments, and the values that its forward pass saved. bias and output may be
// undefined.
struct SineLayer {
  const Tensor &input, &weight, &bias, &output, &phase;
  double omega;
};

// ---- check.cpp

void check_sine_linear(const char* op, const Tensor& input, const Tensor& weight,
                       const Tensor& bias);
// Checks that `t`, the argument `name`, has output's `shape`, and input's dtype and device.
void check_output_like(const char* op, const char* name, const Tensor& t, const Tensor& input,
                       c10::SymIntArrayRef shape);
// Checks that `phase` has `shape`, and the device and dtype of a phase that a forward pass of
// `input`, the argument `name`, saves.
void check_phase(const char* op, const Tensor& phase, const char* name, const Tensor& input,
                 c10::SymIntArrayRef shape);
// factor may be undefined.
void check_sine_linear_slope(const char* op, const SineLayer& layer, const Tensor& grad,
                             const Tensor& factor, int64_t order);

// [..., O]
c10::SymDimVector output_shape(const Tensor& input, const Tensor& weight);
// The dtype of `phase` for an input of `dtype`.
ScalarType phase_dtype(ScalarType dtype);
// Whether derivatives read output in addition to phase.
inline bool reads_output(ScalarType dtype) { return dtype == at::kFloat; }

// ---- shared by forward, backward and autograd

// A tensor [..., C] as [R, C] if `front` is 0, or as [N, R, C] if `front` is 1.
Tensor rows_of(const Tensor& t, int64_t front);
// Keeps the dimension N if the weight has one.
inline Tensor rows_of(const Tensor& t, const Tensor& weight) {
  return rows_of(t, weight.dim() - 2);
}

// a b in the dtype of a. The cast is needed because between levels of torch.func, autocast lowers
// the dtype of products even if its dispatch keys are excluded.
Tensor product_like(const Tensor& a, const Tensor& b);

// Gradients of input, weight and bias where `mask` is true, from the gradient grad_z of z = input
// weight^T + bias. Composed of ATen ops, so differentiable.
Tensors3 gradients_from_z(const Tensor& grad_z, const Tensor& input, const Tensor& weight,
                          std::array<bool, 3> mask);

// ---- kernels of the ops: `bind` fixes the backend

Tensor sine_linear_kernel(const SineLinearBackend& backend, const Tensor& input,
                          const Tensor& weight, const OptionalTensor& bias, double omega);
OutputAndPhase sine_linear_forward_kernel(const SineLinearBackend& backend, const Tensor& input,
                                          const Tensor& weight, const OptionalTensor& bias,
                                          double omega);
Tensor sine_linear_slope_kernel(const SineLinearBackend& backend, const Tensor& grad,
                                const OptionalTensor& factor, const Tensor& input,
                                const Tensor& weight, const OptionalTensor& bias,
                                const OptionalTensor& output, const Tensor& phase, double omega,
                                int64_t order);
// Gradients of input, weight, bias and z.
Tensors4 sine_linear_backward_kernel(const SineLinearBackend& backend, const Tensor& grad,
                                     const Tensor& input, const Tensor& weight,
                                     const OptionalTensor& bias, const OptionalTensor& output,
                                     const Tensor& phase, double omega, std::array<bool, 4> mask);
// Writes grad_z over grad; returns grad_bias, or an undefined tensor if `sums` is false.
Tensor sine_linear_backward_inplace_kernel(const SineLinearBackend& backend, Tensor& grad,
                                           const Tensor& input, const Tensor& weight,
                                           const OptionalTensor& bias, const OptionalTensor& output,
                                           const Tensor& phase, double omega, bool sums);
Tensors3 sine_linear_slope_backward_kernel(const SineLinearBackend& backend, const Tensor& v,
                                           const Tensor& grad, const OptionalTensor& factor,
                                           const Tensor& input, const Tensor& weight,
                                           const OptionalTensor& bias, const OptionalTensor& output,
                                           const Tensor& phase, double omega, int64_t order,
                                           std::array<bool, 3> mask);

template <const SineLinearBackend& backend>
void register_sine_linear(torch::Library& m) {
  m.impl("sine_linear", bind<backend, sine_linear_kernel>);
  m.impl("sine_linear_forward", bind<backend, sine_linear_forward_kernel>);
  m.impl("sine_linear_slope", bind<backend, sine_linear_slope_kernel>);
  m.impl("sine_linear_backward", bind<backend, sine_linear_backward_kernel>);
  m.impl("sine_linear_backward_", bind<backend, sine_linear_backward_inplace_kernel>);
  m.impl("sine_linear_slope_backward", bind<backend, sine_linear_slope_backward_kernel>);
}

}  // namespace treadle
