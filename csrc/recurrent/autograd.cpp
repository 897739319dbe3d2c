// The derivatives of lltm_layer: a Node that calls the fused lltm_layer_backward, and for that op
// and for tangents the composition of lltm_layer_derivatives.h.
#include <torch/library.h>

#include "autograd.h"
#include "lltm_layer.h"
#include "lltm_layer_derivatives.h"

namespace treadle {

// ---- dispatcher calls

static const auto& layer_op() {
  static const auto op = find_op<LayerSignature>("treadle::lltm_layer");
  return op;
}

static const auto& forward_op() {
  static const auto op = find_op<LayerForwardSignature>("treadle::lltm_layer_forward");
  return op;
}

static const auto& backward_op() {
  static const auto op = find_op<LayerBackwardSignature>("treadle::lltm_layer_backward");
  return op;
}

static bool any_moves(const LayerInputs& t) {
  return moves(t.input) || moves(t.h0) || moves(t.c0) || moves(t.weight_ih) || moves(t.weight_hh) ||
         moves(t.bias);
}

// For an argument, or a result to come, like `model`.
static Tensor finished(const Tensor& value, const Tensor& model) {
  return value.defined() ? value.to(model.scalar_type()).contiguous() : at::zeros_like(model);
}

// ---- the backward op's derivatives

// Inputs: grad_output, grad_h_n, grad_c_n, input, h0, c0, weight_ih, weight_hh, bias. output and
// gates are functions of the arguments, whose gradients already count them.
struct LltmLayerBackwardBackward : OpNode<LltmLayerBackwardBackward, Tensor, Tensor, Tensor, Tensor,
                                          Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> {
  static constexpr const char* kName = "LltmLayerBackwardBackward";

  static variable_list backward(const variable_list& v, const Need& need, const Tensor& grad_output,
                                const Tensor& grad_h_n, const Tensor& grad_c_n, const Tensor& input,
                                const Tensor& batch_sizes, const Tensor& h0, const Tensor& c0,
                                const Tensor& weight_ih, const Tensor& weight_hh,
                                const Tensor& bias) {
    const LayerInputs theta{input, h0, c0, weight_ih, weight_hh, bias};
    LayerComposition layer("lltm_layer_backward", theta, batch_sizes);
    const auto of_grads = layer.push({v[0], v[1], v[2], v[3], v[4], v[5]});
    variable_list result(9);
    const auto put = [&](size_t i, const Tensor& value, const Tensor& model) {
      if (need[i]) result[i] = finished(value, model);
    };
    put(0, of_grads.output, grad_output);
    put(1, of_grads.h_n, grad_h_n);
    put(2, of_grads.c_n, grad_c_n);
    bool any = false;
    for (size_t i = 3; i < 9; ++i) any |= need[i];
    if (!any) return result;
    const auto found = layer.pull({grad_output, grad_h_n, grad_c_n, {}}, {});
    put(3, found.input, input);
    put(4, found.h0, h0);
    put(5, found.c0, c0);
    put(6, found.weight_ih, weight_ih);
    put(7, found.weight_hh, weight_hh);
    put(8, found.bias, bias);
    return result;
  }
};

static void set_backward_tangents(const LayerGrads& out, const LayerOutputs& grads,
                                  const LayerInputs& theta, const Tensor& batch_sizes) {
  LayerComposition layer("lltm_layer_backward", theta.map(primal), batch_sizes);
  layer.push(theta.map(tangent));
  const auto found = layer.pull(grads.map(primal), grads.map(tangent));
  const auto set = [](const Tensor& t, const Tensor& value) {
    if (t.defined()) set_tangent(t, finished(value, primal(t)));
  };
  set(std::get<0>(out), found.input);
  set(std::get<1>(out), found.h0);
  set(std::get<2>(out), found.c0);
  set(std::get<3>(out), found.weight_ih);
  set(std::get<4>(out), found.weight_hh);
  set(std::get<5>(out), found.bias);
}

static LayerGrads lltm_layer_backward_autograd(
    c10::DispatchKeySet keys, const OptionalTensor& grad_output, const OptionalTensor& grad_h_n,
    const OptionalTensor& grad_c_n, const Tensor& input, const OptionalTensor& batch_sizes,
    const Tensor& h0, const Tensor& c0, const Tensor& weight_ih, const Tensor& weight_hh,
    const OptionalTensor& bias, const Tensor& output, const Tensor& gates, bool recompute,
    std::string_view regime, LayerMask mask) {
  const Tensor go = value_or_undefined(grad_output), gh = value_or_undefined(grad_h_n);
  const Tensor gc = value_or_undefined(grad_c_n), b = value_or_undefined(bias);
  const Tensor sizes = value_or_undefined(batch_sizes);
  auto node = LltmLayerBackwardBackward::record(go, gh, gc, input, h0, c0, weight_ih, weight_hh, b);
  auto out =
      below_autograd(backward_op(), keys, grad_output, grad_h_n, grad_c_n, input, batch_sizes, h0,
                     c0, weight_ih, weight_hh, bias, output, gates, recompute, regime, mask);
  if (node) {
    const auto& [r0, r1, r2, r3, r4, r5] = out;
    set_history(variable_list{r0, r1, r2, r3, r4, r5}, node);
    node->save(go, gh, gc, input, sizes, h0, c0, weight_ih, weight_hh, b);
  }
  const LayerInputs theta{input, h0, c0, weight_ih, weight_hh, b};
  if (any_moves(theta) || moves(go) || moves(gh) || moves(gc)) {
    set_backward_tangents(out, {go, gh, gc, {}}, theta, sizes);
  }
  return out;
}

// ---- the layer's derivatives

struct LltmLayerBackward : OpNode<LltmLayerBackward, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
                                  Tensor, Output, Tensor, bool, std::string> {
  static constexpr const char* kName = "LltmLayerBackward";

  static variable_list backward(const variable_list& grads, const Need& need, const Tensor& input,
                                const Tensor& batch_sizes, const Tensor& h0, const Tensor& c0,
                                const Tensor& weight_ih, const Tensor& weight_hh,
                                const Tensor& bias, const Tensor& output, const Tensor& gates,
                                bool recompute, const std::string& regime) {
    const LayerMask mask{need[0], need[1], need[2], need[3], need[4], need[5]};
    auto [r0, r1, r2, r3, r4, r5] = backward_op().call(
        optional(grads[0]), optional(grads[1]), optional(grads[2]), input, optional(batch_sizes),
        h0, c0, weight_ih, weight_hh, optional(bias), output, gates, recompute, regime, mask);
    return {r0, r1, r2, r3, r4, r5};
  }
};

static void set_forward_tangents(const LayerSaved& out, const LayerInputs& theta,
                                 const Tensor& batch_sizes, bool recompute) {
  LayerComposition layer("lltm_layer", theta.map(primal), batch_sizes);
  const auto moved = layer.push(theta.map(tangent));
  const auto set = [](const Tensor& t, const Tensor& value) {
    set_tangent(t, finished(value, primal(t)));
  };
  set(std::get<0>(out), moved.output);
  set(std::get<1>(out), moved.h_n);
  set(std::get<2>(out), moved.c_n);
  if (!recompute) set(std::get<3>(out), moved.gates);
}

// What lltm_layer calls, so that outer levels of torch.func see one op with all its derivatives.
// In reverse mode gates have none: backward ops count them in the arguments.
static LayerSaved lltm_layer_forward_autograd(c10::DispatchKeySet keys, const Tensor& input,
                                              const OptionalTensor& batch_sizes, const Tensor& h0,
                                              const Tensor& c0, const Tensor& weight_ih,
                                              const Tensor& weight_hh, const OptionalTensor& bias,
                                              bool recompute, std::string_view regime) {
  const Tensor b = value_or_undefined(bias), sizes = value_or_undefined(batch_sizes);
  auto node = LltmLayerBackward::record(input, h0, c0, weight_ih, weight_hh, b);
  auto out = below_autograd(forward_op(), keys, input, batch_sizes, h0, c0, weight_ih, weight_hh,
                            bias, recompute, regime);
  const auto& [output, h_n, c_n, gates] = out;
  if (node) set_history({output, h_n, c_n}, node);
  const LayerInputs theta{input, h0, c0, weight_ih, weight_hh, b};
  if (any_moves(theta)) set_forward_tangents(out, theta, sizes, recompute);
  if (node) {
    node->save(input, sizes, h0, c0, weight_ih, weight_hh, b, output, gates, recompute,
               std::string(regime));
  }
  return out;
}

static LayerResults lltm_layer_autograd(c10::DispatchKeySet keys, const Tensor& input,
                                        const OptionalTensor& batch_sizes, const Tensor& h0,
                                        const Tensor& c0, const Tensor& weight_ih,
                                        const Tensor& weight_hh, const OptionalTensor& bias,
                                        bool recompute, std::string_view regime) {
  const Tensor b = value_or_undefined(bias);
  // Without derivatives nothing has to be kept of the steps.
  if (!compute_requires_grad(input, h0, c0, weight_ih, weight_hh, b) &&
      !any_moves({input, h0, c0, weight_ih, weight_hh, b})) {
    return below_autograd(layer_op(), keys, input, batch_sizes, h0, c0, weight_ih, weight_hh, bias,
                          recompute, regime);
  }
  auto [output, h_n, c_n, gates] = lltm_layer_forward_autograd(
      keys, input, batch_sizes, h0, c0, weight_ih, weight_hh, bias, recompute, regime);
  return {output, h_n, c_n};
}

TORCH_LIBRARY_IMPL(treadle, Autograd, m) {
  m.impl("lltm_layer", lltm_layer_autograd);
  m.impl("lltm_layer_forward", lltm_layer_forward_autograd);
  m.impl("lltm_layer_backward", lltm_layer_backward_autograd);
}

}  // namespace treadle
