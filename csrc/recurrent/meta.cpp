// Empty results of recurrent_layer, for the fake kernels of treadle/_fakes.py: torch refuses a Meta
// kernel's, because batch_sizes are on the CPU.
#include <torch/library.h>

#include "recurrent/check.h"

namespace treadle {

static LayerSaved recurrent_layer_forward_empty(
    const Tensor& input, const OptionalTensor& batch_sizes, const Tensor& h0, const Tensor& c0,
    const Tensor& weight_ih, const Tensor& weight_hh, const OptionalTensor& bias_ih,
    const OptionalTensor& bias_hh, c10::string_view cell, bool recompute, c10::string_view,
    const OptionalTensor& reset, const OptionalTensor& reset_h, const OptionalTensor& reset_c) {
  const char* const op = layer_op_name();
  const auto a = layer_arguments(op, input, batch_sizes, h0, c0, weight_ih, weight_hh, bias_ih,
                                 bias_hh, cell, reset, reset_h, reset_c);
  check_layer(op, a);
  return {at::empty_symint(layer_output_shape(a), input.options()),
          at::empty_symint(h0.sym_sizes(), h0.options()),
          at::empty_symint(c0.sym_sizes(), c0.options()),
          at::empty_symint(layer_gates_shape(a, recompute), input.options())};
}

static LayerGrads recurrent_layer_backward_empty(
    const OptionalTensor& grad_output, const OptionalTensor& grad_h_n,
    const OptionalTensor& grad_c_n, const Tensor& input, const OptionalTensor& batch_sizes,
    const Tensor& h0, const Tensor& c0, const Tensor& weight_ih, const Tensor& weight_hh,
    const OptionalTensor& bias_ih, const OptionalTensor& bias_hh, const Tensor& output,
    const Tensor& gates, c10::string_view cell, bool recompute, c10::string_view, LayerMask mask,
    const OptionalTensor& reset, const OptionalTensor& reset_h, const OptionalTensor& reset_c) {
  check_layer_backward(
      layer_grads(grad_output, grad_h_n, grad_c_n),
      layer_arguments("recurrent_layer_backward", input, batch_sizes, h0, c0, weight_ih, weight_hh,
                      bias_ih, bias_hh, cell, reset, reset_h, reset_c),
      output, gates, recompute);
  // A missing bias has a gradient, too.
  const auto grad_bias = [](bool needed, const Tensor& weight) {
    const auto shape = weight.sym_sizes();
    return needed ? at::empty_symint(shape.slice(0, shape.size() - 1), weight.options()) : Tensor();
  };
  const auto reset_grad = [](bool needed, const OptionalTensor& t) {
    return needed && t ? empty_like_if(true, *t) : Tensor();
  };
  return {empty_like_if(mask[0], input),     empty_like_if(mask[1], h0),
          empty_like_if(mask[2], c0),        empty_like_if(mask[3], weight_ih),
          empty_like_if(mask[4], weight_hh), grad_bias(mask[5], weight_ih),
          grad_bias(mask[6], weight_hh),     reset_grad(mask[7], reset_h),
          reset_grad(mask[8], reset_c)};
}

TORCH_LIBRARY_IMPL(treadle, CompositeImplicitAutograd, m) {
  m.impl("recurrent_layer_forward_empty", recurrent_layer_forward_empty);
  m.impl("recurrent_layer_backward_empty", recurrent_layer_backward_empty);
}

}  // namespace treadle
