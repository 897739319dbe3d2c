// Ops that return uninitialized tensors in the shapes of recurrent_layer's results, for the fake
// kernels of treadle/_torch/fakes.py. torch would refuse a Meta kernel, because batch_sizes is on
// the CPU.
#include <torch/library.h>

#include "recurrent/run/dispatch.h"

namespace treadle {

static LayerSaved recurrent_layer_forward_empty(const LayerArguments& a, bool recompute,
                                                c10::string_view) {
  check_layer(layer_op_name(), a);
  return {at::empty_symint(layer_output_shape(a), a.input.options()), empty_like_if(true, a.h0),
          empty_like_if(true, a.c0),
          at::empty_symint(layer_gates_shape(a, recompute), a.input.options())};
}

static LayerGrads recurrent_layer_backward_empty(const LayerBackwardCall& call) {
  const auto& [grads, a, output, gates, recompute, algorithm, mask] = call;
  check_layer_backward(grads, a, output, gates, recompute);
  // A missing bias also gets a gradient.
  const auto grad_bias = [](bool needed, const Tensor& weight) {
    const auto shape = weight.sym_sizes();
    return needed ? at::empty_symint(shape.slice(0, shape.size() - 1), weight.options()) : Tensor();
  };
  return {empty_like_if(mask[0], a.input),
          empty_like_if(mask[1], a.h0),
          empty_like_if(mask[2], a.c0),
          empty_like_if(mask[3], a.weight_ih),
          empty_like_if(mask[4], a.weight_hh),
          grad_bias(mask[5], a.weight_ih),
          grad_bias(mask[6], a.weight_hh),
          empty_like_if(mask[7] && a.reset_h.defined(), a.reset_h),
          empty_like_if(mask[8] && a.reset_c.defined(), a.reset_c)};
}

TORCH_LIBRARY_IMPL(treadle, CompositeImplicitAutograd, m) {
  m.impl("recurrent_layer_forward_empty", LayerKernel<recurrent_layer_forward_empty>::call);
  m.impl("recurrent_layer_backward_empty",
         LayerBackwardKernel<recurrent_layer_backward_empty>::call);
}

}  // namespace treadle
