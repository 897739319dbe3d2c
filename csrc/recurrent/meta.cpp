// Empty results of lltm_layer, for the fake kernels of treadle/_fakes.py: torch refuses a Meta
// kernel's, because batch_sizes are on the CPU.
#include <torch/library.h>

#include "recurrent/check.h"

namespace treadle {

static LayerSaved lltm_layer_forward_empty(const Tensor& input, const OptionalTensor& batch_sizes,
                                           const Tensor& h0, const Tensor& c0,
                                           const Tensor& weight_ih, const Tensor& weight_hh,
                                           const OptionalTensor& bias, bool recompute,
                                           c10::string_view) {
  const auto a = layer_arguments(input, batch_sizes, h0, c0, weight_ih, weight_hh, bias);
  check_layer("lltm_layer", a);
  return {at::empty_symint(layer_output_shape(a), input.options()),
          at::empty_symint(h0.sym_sizes(), h0.options()),
          at::empty_symint(c0.sym_sizes(), c0.options()),
          at::empty_symint(layer_gates_shape(a, recompute), input.options())};
}

static LayerGrads lltm_layer_backward_empty(const OptionalTensor& grad_output,
                                            const OptionalTensor& grad_h_n,
                                            const OptionalTensor& grad_c_n, const Tensor& input,
                                            const OptionalTensor& batch_sizes, const Tensor& h0,
                                            const Tensor& c0, const Tensor& weight_ih,
                                            const Tensor& weight_hh, const OptionalTensor& bias,
                                            const Tensor& output, const Tensor& gates,
                                            bool recompute, c10::string_view, LayerMask mask) {
  check_layer_backward(layer_grads(grad_output, grad_h_n, grad_c_n),
                       layer_arguments(input, batch_sizes, h0, c0, weight_ih, weight_hh, bias),
                       output, gates, recompute);
  Tensor grad_bias;
  if (mask[5]) grad_bias = at::empty_symint(weight_hh.sym_sizes().slice(0, 2), weight_hh.options());
  return {empty_like_if(mask[0], input),     empty_like_if(mask[1], h0),
          empty_like_if(mask[2], c0),        empty_like_if(mask[3], weight_ih),
          empty_like_if(mask[4], weight_hh), grad_bias};
}

TORCH_LIBRARY_IMPL(treadle, CompositeImplicitAutograd, m) {
  m.impl("lltm_layer_forward_empty", lltm_layer_forward_empty);
  m.impl("lltm_layer_backward_empty", lltm_layer_backward_empty);
}

}  // namespace treadle
