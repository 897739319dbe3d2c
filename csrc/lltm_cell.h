// lltm_cell: what its CPU and CUDA kernels share. Matrix products are ATen's; each backend brings
// the pointwise loops.
#pragma once

#include <torch/library.h>

#include <array>
#include <tuple>

#include "dispatch.h"
#include "kernels/lltm_args.h"

namespace treadle {

using LltmForwardRun = void (*)(const LltmForward& args, at::Device device);
using LltmBackwardRun = void (*)(const LltmBackward& args, at::Device device);

// Which of input, weights, bias, old_h, old_cell get a gradient.
using GradMask = std::array<bool, 5>;
using Tensors2 = std::tuple<Tensor, Tensor>;
using Tensors3 = std::tuple<Tensor, Tensor, Tensor>;
using Tensors5 = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

Tensors3 lltm_cell_forward_with(LltmForwardRun run, const Tensor& input, const Tensor& weights,
                                const OptionalTensor& bias, const Tensor& old_h,
                                const Tensor& old_cell);

Tensors5 lltm_cell_backward_with(LltmBackwardRun run, const OptionalTensor& grad_h,
                                 const OptionalTensor& grad_cell, const Tensor& input,
                                 const Tensor& weights, const OptionalTensor& bias,
                                 const Tensor& old_h, const Tensor& old_cell,
                                 const Tensor& new_cell, const Tensor& gates, GradMask mask);

template <LltmForwardRun run>
Tensors3 lltm_cell_forward_kernel(const Tensor& input, const Tensor& weights,
                                  const OptionalTensor& bias, const Tensor& old_h,
                                  const Tensor& old_cell) {
  return lltm_cell_forward_with(run, input, weights, bias, old_h, old_cell);
}

template <LltmForwardRun run>
Tensors2 lltm_cell_kernel(const Tensor& input, const Tensor& weights, const OptionalTensor& bias,
                          const Tensor& old_h, const Tensor& old_cell) {
  auto [new_h, new_cell, gates] =
      lltm_cell_forward_with(run, input, weights, bias, old_h, old_cell);
  return {new_h, new_cell};
}

template <LltmBackwardRun run>
Tensors5 lltm_cell_backward_kernel(const OptionalTensor& grad_h, const OptionalTensor& grad_cell,
                                   const Tensor& input, const Tensor& weights,
                                   const OptionalTensor& bias, const Tensor& old_h,
                                   const Tensor& old_cell, const Tensor& new_cell,
                                   const Tensor& gates, GradMask mask) {
  return lltm_cell_backward_with(run, grad_h, grad_cell, input, weights, bias, old_h, old_cell,
                                 new_cell, gates, mask);
}

template <LltmForwardRun forward, LltmBackwardRun backward>
void register_lltm_cell(torch::Library& m) {
  m.impl("lltm_cell", lltm_cell_kernel<forward>);
  m.impl("lltm_cell_forward", lltm_cell_forward_kernel<forward>);
  m.impl("lltm_cell_backward", lltm_cell_backward_kernel<backward>);
}

}  // namespace treadle
