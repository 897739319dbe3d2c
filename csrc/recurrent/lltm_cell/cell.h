// lltm_cell: what its CPU and CUDA kernels share. Matrix products are ATen's; each backend brings
// what is around them.
#pragma once

#include <torch/library.h>

#include <array>
#include <tuple>

#include "dispatch.h"
#include "kernels/lltm_args.h"

namespace treadle {

// What a backend brings. Shapes as in lltm_args.h.
struct LltmBackend {
  void (*forward)(const LltmForward& args, at::Device device);
  void (*backward)(const LltmBackward& args, at::Device device);
  Tensor (*pack)(const Tensor& old_h, const Tensor& input);  // [..., B, H+I], contiguous
  Tensor (*bias_grad)(const Tensor& grad_gates);             // [..., 3H]
};

LltmView view(const Tensor& t);

// Which of input, weights, bias, old_h, old_cell get a gradient.
using GradMask = std::array<bool, 5>;
using Tensors2 = std::tuple<Tensor, Tensor>;
using Tensors3 = std::tuple<Tensor, Tensor, Tensor>;
using Tensors5 = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

Tensors3 lltm_cell_forward_with(const LltmBackend& backend, const Tensor& input,
                                const Tensor& weights, const OptionalTensor& bias,
                                const Tensor& old_h, const Tensor& old_cell);

Tensors5 lltm_cell_backward_with(const LltmBackend& backend, const OptionalTensor& grad_h,
                                 const OptionalTensor& grad_cell, const Tensor& input,
                                 const Tensor& weights, const OptionalTensor& bias,
                                 const Tensor& old_h, const Tensor& old_cell,
                                 const Tensor& new_cell, const Tensor& gates, GradMask mask);

template <const LltmBackend& backend>
Tensors3 lltm_cell_forward_kernel(const Tensor& input, const Tensor& weights,
                                  const OptionalTensor& bias, const Tensor& old_h,
                                  const Tensor& old_cell) {
  return lltm_cell_forward_with(backend, input, weights, bias, old_h, old_cell);
}

template <const LltmBackend& backend>
Tensors2 lltm_cell_kernel(const Tensor& input, const Tensor& weights, const OptionalTensor& bias,
                          const Tensor& old_h, const Tensor& old_cell) {
  auto [new_h, new_cell, gates] =
      lltm_cell_forward_with(backend, input, weights, bias, old_h, old_cell);
  return {new_h, new_cell};
}

template <const LltmBackend& backend>
Tensors5 lltm_cell_backward_kernel(const OptionalTensor& grad_h, const OptionalTensor& grad_cell,
                                   const Tensor& input, const Tensor& weights,
                                   const OptionalTensor& bias, const Tensor& old_h,
                                   const Tensor& old_cell, const Tensor& new_cell,
                                   const Tensor& gates, GradMask mask) {
  return lltm_cell_backward_with(backend, grad_h, grad_cell, input, weights, bias, old_h, old_cell,
                                 new_cell, gates, mask);
}

template <const LltmBackend& backend>
void register_lltm_cell(torch::Library& m) {
  m.impl("lltm_cell", lltm_cell_kernel<backend>);
  m.impl("lltm_cell_forward", lltm_cell_forward_kernel<backend>);
  m.impl("lltm_cell_backward", lltm_cell_backward_kernel<backend>);
}

}  // namespace treadle
