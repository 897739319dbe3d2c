// Converts between the dispatcher, which passes a layer's arguments one by one, and LayerArguments.
#pragma once

#include "recurrent/layer/check.h"

namespace treadle {

// A call of recurrent_layer_backward.
struct LayerBackwardCall {
  LayerOutputs grads;  // gradients of output, h_n and c_n; gates is undefined
  LayerArguments arguments;
  Tensor output, gates;
  bool recompute;
  c10::string_view algorithm;
  LayerMask mask;
};

// Raises for an unknown cell.
inline LayerArguments layer_arguments(const char* op, const Tensor& input,
                                      const OptionalTensor& batch_sizes, const Tensor& h0,
                                      const Tensor& c0, const Tensor& weight_ih,
                                      const Tensor& weight_hh, const OptionalTensor& bias_ih,
                                      const OptionalTensor& bias_hh, c10::string_view cell,
                                      const OptionalTensor& reset, const OptionalTensor& reset_h,
                                      const OptionalTensor& reset_c) {
  return {input,
          h0,
          c0,
          weight_ih,
          weight_hh,
          value_or_undefined(bias_ih),
          value_or_undefined(bias_hh),
          value_or_undefined(reset_h),
          value_or_undefined(reset_c),
          value_or_undefined(batch_sizes),
          value_or_undefined(reset),
          find_cell(op, cell)};
}

// Wraps f(before..., arguments, recompute, algorithm) as a kernel of recurrent_layer or of its
// forward pass. Raises for an unknown cell.
template <auto f, class... Before>
struct LayerKernel {
  static auto call(Before... before, const Tensor& input, const OptionalTensor& batch_sizes,
                   const Tensor& h0, const Tensor& c0, const Tensor& weight_ih,
                   const Tensor& weight_hh, const OptionalTensor& bias_ih,
                   const OptionalTensor& bias_hh, c10::string_view cell, bool recompute,
                   c10::string_view algorithm, const OptionalTensor& reset,
                   const OptionalTensor& reset_h, const OptionalTensor& reset_c) {
    const LayerArguments arguments =
        layer_arguments(layer_op_name(), input, batch_sizes, h0, c0, weight_ih, weight_hh, bias_ih,
                        bias_hh, cell, reset, reset_h, reset_c);
    return f(before..., arguments, recompute, algorithm);
  }
};

// Wraps f(before..., call) as a kernel of recurrent_layer_backward.
template <auto f, class... Before>
struct LayerBackwardKernel {
  static LayerGrads call(Before... before, const OptionalTensor& grad_output,
                         const OptionalTensor& grad_h_n, const OptionalTensor& grad_c_n,
                         const Tensor& input, const OptionalTensor& batch_sizes, const Tensor& h0,
                         const Tensor& c0, const Tensor& weight_ih, const Tensor& weight_hh,
                         const OptionalTensor& bias_ih, const OptionalTensor& bias_hh,
                         const Tensor& output, const Tensor& gates, c10::string_view cell,
                         bool recompute, c10::string_view algorithm, LayerMask mask,
                         const OptionalTensor& reset, const OptionalTensor& reset_h,
                         const OptionalTensor& reset_c) {
    const LayerOutputs grads{value_or_undefined(grad_output), value_or_undefined(grad_h_n),
                             value_or_undefined(grad_c_n), Tensor()};
    const LayerArguments arguments =
        layer_arguments("recurrent_layer_backward", input, batch_sizes, h0, c0, weight_ih,
                        weight_hh, bias_ih, bias_hh, cell, reset, reset_h, reset_c);
    return f(before...,
             LayerBackwardCall{grads, arguments, output, gates, recompute, algorithm, mask});
  }
};

// Calls `call` with the arguments in the order of the schema.
template <class F>
auto with_arguments(const LayerArguments& a, bool recompute, c10::string_view algorithm,
                    const F& call) {
  return call(a.input, optional(a.batch_sizes), a.h0, a.c0, a.weight_ih, a.weight_hh,
              optional(a.bias_ih), optional(a.bias_hh), cell_info(a.cell).name, recompute,
              algorithm, optional(a.reset), optional(a.reset_h), optional(a.reset_c));
}

template <class F>
auto with_arguments(const LayerBackwardCall& c, const F& call) {
  const LayerArguments& a = c.arguments;
  return call(optional(c.grads.output), optional(c.grads.h_n), optional(c.grads.c_n), a.input,
              optional(a.batch_sizes), a.h0, a.c0, a.weight_ih, a.weight_hh, optional(a.bias_ih),
              optional(a.bias_hh), c.output, c.gates, cell_info(a.cell).name, c.recompute,
              c.algorithm, c.mask, optional(a.reset), optional(a.reset_h), optional(a.reset_c));
}

}  // namespace treadle
