// sine_linear_jet: declarations that its ops share. Formula and saved values:
// kernels/math/sine_jet.h. Derivatives: jet_autograd.cpp.
#pragma once

#include <array>
#include <string_view>

#include "kernels/sine_linear/jet_args.h"
#include "sine_linear/sine_linear.h"

namespace treadle {

// A device's functions for jets, in addition to its SineLinearBackend.
struct SineJetBackend {
  const SineLinearBackend& layer;
  bool multiplies;   // for few input features, `forward` computes the product itself
  bool rounds_rest;  // `forward` reads products in the jet's dtype, except those of the value
  void (*forward)(const SineJetForward& args, at::Device device);
  // Like SineLinearBackend::fused_forward.
  bool (*fused_forward)(const SineJetForward& args, at::Device device);
  // grad_bias may be undefined.
  void (*backward)(SineJetBackward args, const Tensor& grad_z, const Tensor& grad_bias);
};

// A layer's arguments. bias may be undefined.
struct JetLayer {
  const Tensor &jet, &weight, &bias;
  double omega;
  JetParts parts;
};

// Checks the arguments. `second` must be none, laplacian or hessian_diagonal.
JetLayer check_jet(const char* op, const Tensor& jet, const Tensor& weight, const Tensor& bias,
                   double omega, int64_t coordinates, std::string_view second);
void check_jet_backward(const char* op, const JetLayer& layer, const Tensor& grad,
                        const Tensor& output, const Tensor& phase);

// The shape [..., O] of a phase for an output [P, ..., O].
c10::SymDimVector phase_shape(const Tensor& jet, const Tensor& weight);

// A jet [P, ..., C] as [P, N, C], or all of its rows as [P N, C].
inline Tensor points_of(const Tensor& jet) { return rows_of(jet, /*front=*/1); }
inline Tensor all_rows_of(const Tensor& jet) { return rows_of(jet, /*front=*/0); }

// ---- kernels of the ops: `bind` fixes the backend

Tensor sine_linear_jet_kernel(const SineJetBackend& backend, const Tensor& jet,
                              const Tensor& weight, const OptionalTensor& bias, double omega,
                              int64_t coordinates, std::string_view second);
OutputAndPhase sine_linear_jet_forward_kernel(const SineJetBackend& backend, const Tensor& jet,
                                              const Tensor& weight, const OptionalTensor& bias,
                                              double omega, int64_t coordinates,
                                              std::string_view second);
// Gradients of jet, weight and bias.
Tensors3 sine_linear_jet_backward_kernel(const SineJetBackend& backend, const Tensor& grad,
                                         const Tensor& jet, const Tensor& weight,
                                         const OptionalTensor& bias, const Tensor& output,
                                         const Tensor& phase, double omega, int64_t coordinates,
                                         std::string_view second, std::array<bool, 3> mask);

template <const SineJetBackend& backend>
void register_sine_jet(torch::Library& m) {
  m.impl("sine_linear_jet", bind<backend, sine_linear_jet_kernel>);
  m.impl("sine_linear_jet_forward", bind<backend, sine_linear_jet_forward_kernel>);
  m.impl("sine_linear_jet_backward", bind<backend, sine_linear_jet_backward_kernel>);
}

}  // namespace treadle
