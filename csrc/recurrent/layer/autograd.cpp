// Derivatives of recurrent_layer. Its Node calls the fused recurrent_layer_backward. Derivatives of
// that op and all tangents are computed by a composition of ATen ops, composition.h.
#include "common/autograd.h"

#include <algorithm>

#include "recurrent/layer/composition.h"
#include "recurrent/run/dispatch.h"

namespace treadle {

static constexpr const char* kBackwardOp = "recurrent_layer_backward";

// ---- dispatcher calls

static const auto& layer_op() {
  static const auto op = find_op<LayerSignature>("treadle::recurrent_layer");
  return op;
}

static const auto& forward_op() {
  static const auto op = find_op<LayerForwardSignature>("treadle::recurrent_layer_forward");
  return op;
}

static const auto& backward_op() {
  static const auto op = find_op<LayerBackwardSignature>("treadle::recurrent_layer_backward");
  return op;
}

static bool has_tangent(const LayerArguments& a) {
  return has_tangent(a.input, a.h0, a.c0, a.weight_ih, a.weight_hh, a.bias_ih, a.bias_hh, a.reset_h,
                     a.reset_c);
}

// `value`, a derivative, in the dtype of `model`; zeros if `value` is undefined.
static Tensor like(const Tensor& value, const Tensor& model) {
  return value.defined() ? value.to(model.scalar_type()).contiguous() : at::zeros_like(model);
}

// ---- the backward op's derivatives

// Inputs: grad_output, grad_h_n, grad_c_n, input, h0, c0, weight_ih, weight_hh, bias_ih, bias_hh,
// reset_h, reset_c.
// output and gates are not among them: they are functions of the arguments, so their gradients are
// included in those of the arguments.
struct RecurrentLayerBackwardBackward
    : OpNode<RecurrentLayerBackwardBackward, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
             Tensor, Tensor, Tensor, Tensor, std::string, Tensor, Tensor, Tensor> {
  static constexpr const char* kName = "RecurrentLayerBackwardBackward";

  static variable_list backward(const variable_list& v, const Need& need, const Tensor& grad_output,
                                const Tensor& grad_h_n, const Tensor& grad_c_n, const Tensor& input,
                                const Tensor& batch_sizes, const Tensor& h0, const Tensor& c0,
                                const Tensor& weight_ih, const Tensor& weight_hh,
                                const Tensor& bias_ih, const Tensor& bias_hh,
                                const std::string& cell, const Tensor& reset, const Tensor& reset_h,
                                const Tensor& reset_c) {
    const LayerArguments arguments{input,     h0,          c0,      weight_ih,
                                   weight_hh, bias_ih,     bias_hh, reset_h,
                                   reset_c,   batch_sizes, reset,   find_cell(kBackwardOp, cell)};
    LayerComposition layer(kBackwardOp, arguments);
    const auto of_grads = layer.jvp({v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8]});
    variable_list result(12);
    const auto put = [&](size_t i, const Tensor& value, const Tensor& model) {
      if (need[i]) result[i] = like(value, model);
    };
    put(0, of_grads.output, grad_output);
    put(1, of_grads.h_n, grad_h_n);
    put(2, of_grads.c_n, grad_c_n);
    if (std::find(need.begin() + 3, need.end(), true) == need.end()) return result;
    const auto found = layer.vjp_tangent({grad_output, grad_h_n, grad_c_n, {}}, {});
    put(3, found.input, input);
    put(4, found.h0, h0);
    put(5, found.c0, c0);
    put(6, found.weight_ih, weight_ih);
    put(7, found.weight_hh, weight_hh);
    put(8, found.bias_ih, bias_ih);
    put(9, found.bias_hh, bias_hh);
    put(10, found.reset_h, reset_h);
    put(11, found.reset_c, reset_c);
    return result;
  }
};

static void set_backward_tangents(const LayerGrads& out, const LayerOutputs& grads,
                                  const LayerArguments& arguments) {
  LayerComposition layer(kBackwardOp, arguments.map(primal));
  layer.jvp(arguments.map(tangent));
  const auto found = layer.vjp_tangent(grads.map(primal), grads.map(tangent));
  const auto set = [](const Tensor& t, const Tensor& value) {
    if (t.defined()) set_tangent(t, like(value, primal(t)));
  };
  set(std::get<0>(out), found.input);
  set(std::get<1>(out), found.h0);
  set(std::get<2>(out), found.c0);
  set(std::get<3>(out), found.weight_ih);
  set(std::get<4>(out), found.weight_hh);
  set(std::get<5>(out), found.bias_ih);
  set(std::get<6>(out), found.bias_hh);
  set(std::get<7>(out), found.reset_h);
  set(std::get<8>(out), found.reset_c);
}

static LayerGrads recurrent_layer_backward_autograd(c10::DispatchKeySet keys,
                                                    const LayerBackwardCall& call) {
  const LayerOutputs& g = call.grads;
  const LayerArguments& a = call.arguments;
  auto node = RecurrentLayerBackwardBackward::record(g.output, g.h_n, g.c_n, a.input, a.h0, a.c0,
                                                     a.weight_ih, a.weight_hh, a.bias_ih, a.bias_hh,
                                                     a.reset_h, a.reset_c);
  auto out = with_arguments(
      call, [&](const auto&... each) { return below_autograd(backward_op(), keys, each...); });
  if (node) {
    const auto& [r0, r1, r2, r3, r4, r5, r6, r7, r8] = out;
    set_history(variable_list{r0, r1, r2, r3, r4, r5, r6, r7, r8}, node);
    node->save(g.output, g.h_n, g.c_n, a.input, a.batch_sizes, a.h0, a.c0, a.weight_ih, a.weight_hh,
               a.bias_ih, a.bias_hh, cell_info(a.cell).name, a.reset, a.reset_h, a.reset_c);
  }
  if (has_tangent(a) || has_tangent(g.output, g.h_n, g.c_n)) set_backward_tangents(out, g, a);
  return out;
}

// ---- the layer's derivatives

struct RecurrentLayerBackward
    : OpNode<RecurrentLayerBackward, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
             Output, Tensor, std::string, bool, std::string, Tensor, Tensor, Tensor> {
  static constexpr const char* kName = "RecurrentLayerBackward";

  static variable_list backward(const variable_list& grads, const Need& need, const Tensor& input,
                                const Tensor& batch_sizes, const Tensor& h0, const Tensor& c0,
                                const Tensor& weight_ih, const Tensor& weight_hh,
                                const Tensor& bias_ih, const Tensor& bias_hh, const Tensor& output,
                                const Tensor& gates, const std::string& cell, bool recompute,
                                const std::string& algorithm, const Tensor& reset,
                                const Tensor& reset_h, const Tensor& reset_c) {
    LayerMask mask;
    std::copy_n(need.begin(), mask.size(), mask.begin());
    auto [r0, r1, r2, r3, r4, r5, r6, r7, r8] = backward_op().call(
        optional(grads[0]), optional(grads[1]), optional(grads[2]), input, optional(batch_sizes),
        h0, c0, weight_ih, weight_hh, optional(bias_ih), optional(bias_hh), output, gates, cell,
        recompute, algorithm, mask, optional(reset), optional(reset_h), optional(reset_c));
    return {r0, r1, r2, r3, r4, r5, r6, r7, r8};
  }
};

static void set_forward_tangents(const LayerSaved& out, const LayerArguments& arguments,
                                 bool recompute) {
  LayerComposition layer(layer_op_name(), arguments.map(primal));
  const auto tangents = layer.jvp(arguments.map(tangent), !recompute);
  const auto set = [](const Tensor& t, const Tensor& value) {
    set_tangent(t, like(value, primal(t)));
  };
  set(std::get<0>(out), tangents.output);
  set(std::get<1>(out), tangents.h_n);
  set(std::get<2>(out), tangents.c_n);
  if (!recompute) set(std::get<3>(out), tangents.gates);
}

// recurrent_layer calls this. So outer levels of torch.func see the op recurrent_layer_forward, for
// which this file registers all derivatives. In reverse mode, no gradient with respect to gates is
// computed: the derivatives of the backward op with respect to the arguments include it.
static LayerSaved recurrent_layer_forward_autograd(c10::DispatchKeySet keys,
                                                   const LayerArguments& a, bool recompute,
                                                   std::string_view algorithm) {
  auto node = RecurrentLayerBackward::record(a.input, a.h0, a.c0, a.weight_ih, a.weight_hh,
                                             a.bias_ih, a.bias_hh, a.reset_h, a.reset_c);
  auto out = with_arguments(a, recompute, algorithm, [&](const auto&... each) {
    return below_autograd(forward_op(), keys, each...);
  });
  const auto& [output, h_n, c_n, gates] = out;
  if (node) set_history({output, h_n, c_n}, node);
  if (has_tangent(a)) set_forward_tangents(out, a, recompute);
  if (node) {
    node->save(a.input, a.batch_sizes, a.h0, a.c0, a.weight_ih, a.weight_hh, a.bias_ih, a.bias_hh,
               output, gates, cell_info(a.cell).name, recompute, std::string(algorithm), a.reset,
               a.reset_h, a.reset_c);
  }
  return out;
}

static LayerResults recurrent_layer_autograd(c10::DispatchKeySet keys, const LayerArguments& a,
                                             bool recompute, std::string_view algorithm) {
  // Without derivatives, nothing is saved.
  if (!compute_requires_grad(a.input, a.h0, a.c0, a.weight_ih, a.weight_hh, a.bias_ih, a.bias_hh,
                             a.reset_h, a.reset_c) &&
      !has_tangent(a)) {
    return with_arguments(a, recompute, algorithm, [&](const auto&... each) {
      return below_autograd(layer_op(), keys, each...);
    });
  }
  auto [output, h_n, c_n, gates] = recurrent_layer_forward_autograd(keys, a, recompute, algorithm);
  return {output, h_n, c_n};
}

TORCH_LIBRARY_IMPL(treadle, Autograd, m) {
  m.impl("recurrent_layer", LayerKernel<recurrent_layer_autograd, c10::DispatchKeySet>::call);
  m.impl("recurrent_layer_forward",
         LayerKernel<recurrent_layer_forward_autograd, c10::DispatchKeySet>::call);
  m.impl("recurrent_layer_backward",
         LayerBackwardKernel<recurrent_layer_backward_autograd, c10::DispatchKeySet>::call);
}

}  // namespace treadle
