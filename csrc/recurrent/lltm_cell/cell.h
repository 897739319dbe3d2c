// Declarations shared by the CPU and CUDA kernels of lltm_cell. ATen computes the matrix products;
// a backend computes the rest.
#pragma once

#include <array>

#include "common/tensors.h"
#include "kernels/recurrent/lltm_cell/args.h"

namespace treadle {

// The shapes are those in kernels/recurrent/lltm_cell/args.h.
struct LltmBackend {
  void (*forward)(const LltmForward& args, at::Device device);
  void (*backward)(const LltmBackward& args, at::Device device);
  Tensor (*pack)(const Tensor& old_h, const Tensor& input);  // [..., B, H+I], contiguous
  Tensor (*bias_grad)(const Tensor& grad_gates);             // [..., 3H]
  // For few rows: the forward pass, and the gradients of input, weights, bias and old_h, in one
  // launch each. Null if separate matrix products are as fast.
  void (*few_forward)(const LltmFewForward& args, at::Device device) = nullptr;
  void (*few_gradients)(const LltmGradients& args, at::Device device) = nullptr;
};

LltmView view(const Tensor& t);

// Which of input, weights, bias, old_h, old_cell get a gradient.
using GradMask = std::array<bool, 5>;

// ---- kernels

Tensors2 lltm_cell_kernel(const LltmBackend& backend, const Tensor& input, const Tensor& weights,
                          const OptionalTensor& bias, const Tensor& old_h, const Tensor& old_cell);

Tensors3 lltm_cell_forward_kernel(const LltmBackend& backend, const Tensor& input,
                                  const Tensor& weights, const OptionalTensor& bias,
                                  const Tensor& old_h, const Tensor& old_cell);

Tensors5 lltm_cell_backward_kernel(const LltmBackend& backend, const OptionalTensor& grad_h,
                                   const OptionalTensor& grad_cell, const Tensor& input,
                                   const Tensor& weights, const OptionalTensor& bias,
                                   const Tensor& old_h, const Tensor& old_cell,
                                   const Tensor& new_cell, const Tensor& gates, GradMask mask);

template <const LltmBackend& backend>
void register_lltm_cell(torch::Library& m) {
  m.impl("lltm_cell", bind<backend, lltm_cell_kernel>);
  m.impl("lltm_cell_forward", bind<backend, lltm_cell_forward_kernel>);
  m.impl("lltm_cell_backward", bind<backend, lltm_cell_backward_kernel>);
}

}  // namespace treadle
