// Derivatives of sine_linear, of every order. With z = x W^T + b and s_k = d^k sin(omega z) / dz^k,
// the derivatives of slope(g, f, k) = g f s_k are slopes again. sine_linear_slope_backward computes
// the VJP for a gradient v of the result in one pass:
//   for g: slope(v, f, k)    for f: slope(v, g, k)    for z: slope(v g, f, k + 1)
// The gradient of z gives grad_x = grad_z W, grad_W = grad_z^T x and grad_b = sum grad_z. output
// and phase are functions of x, W and b, whose gradients include those through output and phase.
//
// z is never stored. Its gradients accumulate at a second gradient input of the layer's Node, which
// a slope finds through output.grad_fn(). So the GEMMs run once for the sum of all gradients of z.
#include <ATen/TensorSubclassLikeUtils.h>

#include "sine_linear/kept_output.h"
#include "sine_linear/layer.h"
#include "treadle/ops.h"

namespace treadle {
namespace {

using namespace sine_layer;

// The size of grad_z, in bytes, from which saving memory is worth another dispatcher call.
constexpr int64_t kLarge = int64_t{1} << 24;

// Layers that fused_backward.cu supports never store grad_z. Symbolic sizes are not compared.
bool large_grad_z(const Tensor& grad, const Tensor& weight) {
  if (grad.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) return false;
  const bool half = grad.element_size() == 2 && grad.is_cuda();
  const bool narrow = std::max(weight.size(-1), weight.size(-2)) <= kMaxFusedWidth;
  return grad.numel() * static_cast<int64_t>(grad.element_size()) >= kLarge && !(half && narrow);
}

// Whether grad has no other user, so that grad_z may overwrite it. torch's engine accumulates in
// place under the same condition (InputBuffer). A tensor that is known to Python has two owners.
// Tensor subclasses, levels of torch.func and modes need ops without side effects.
bool may_write(const Tensor& grad, const Layer& layer) {
  const auto plain = [](const Tensor& t) {
    return !at::isTensorSubclassLike(t) && !has_tangent(t);
  };
  return !at::GradMode::is_enabled() && grad.use_count() == 1 && grad.has_storage() &&
         grad.storage().use_count() == 1 && grad.is_contiguous() && !grad._is_zerotensor() &&
         plain(grad) && plain(layer.input) && plain(layer.weight) && plain(layer.bias) &&
         plain(layer.output) && plain(layer.phase);
}

// ---- Nodes

// The incoming gradients are those of output and z.
struct SineLinearBackward
    : OpNode<SineLinearBackward, Tensor, Tensor, Tensor, LayerOutput<true>, Tensor, double> {
  static constexpr const char* kName = "SineLinearBackward";
  static constexpr uint32_t kZ = 1;

  static variable_list backward(variable_list& grads, const Need& need, const Tensor& input,
                                const Tensor& weight, const Tensor& bias, Tensor& output,
                                Tensor& phase, double omega) {
    make_again(input, weight, bias, output, phase, omega);
    const Layer layer{{input, weight, bias, output, phase, omega}};
    if (grads.size() > kZ && grads[kZ].defined()) {
      variable_list result(3);
      Tensor grad_z;
      if (grads[0].defined()) grad_z = layer.slope(grads[0], Tensor(), 1);
      grad_z = plus(grad_z, grads[kZ]);
      layer.backward_from_z(grad_z, need, 0, result);
      return result;
    }
    // Releases an output that is not read, before gradients are allocated. In grad mode it is kept,
    // because derivatives of the gradients find this Node through the output.
    if (!at::GradMode::is_enabled() && !reads_output(output.scalar_type())) output.reset();
    const bool in_steps = (need[0] || need[1]) && large_grad_z(grads[0], weight);
    if (!in_steps) {
      auto [grad_input, grad_weight, grad_bias, none] =
          layer.backward(grads[0], {need[0], need[1], need[2], false});
      return {grad_input, grad_weight, grad_bias};
    }
    // grad_z replaces grads[0]. output and phase are released before the GEMMs allocate memory.
    Tensor grad_input, grad_weight, grad_bias;
    if (may_write(grads[0], layer)) {
      grad_bias = layer.backward_inplace(grads[0], need[2]);
    } else {
      std::tie(std::ignore, std::ignore, grad_bias, grads[0]) =
          layer.backward(grads[0], {false, false, need[2], true});
    }
    output.reset();
    phase.reset();
    std::tie(grad_input, grad_weight, std::ignore) =
        gradients_from_z(grads[0], input, weight, {need[0], need[1], false});
    return {grad_input, grad_weight, grad_bias};
  }
};

// The outgoing gradients are those of grad, factor and z. If the layer has no Node, they are those
// of grad, factor, input, weight and bias.
struct SineLinearSlopeNode : OpNode<SineLinearSlopeNode, Tensor, Tensor, Tensor, Tensor, Tensor,
                                    LayerOutput<false>, Tensor, double, int64_t> {
  static constexpr const char* kName = "SineLinearSlopeBackward";

  static auto record(const Tensor& grad, const Tensor& factor, const Tensor& input,
                     const Tensor& weight, const Tensor& bias, const Tensor& output) {
    auto node = OpNode::record(grad, factor, input, weight, bias);
    const NodePtr layer = node && output.defined() ? output.grad_fn() : NodePtr();
    if (dynamic_cast<SineLinearBackward*>(layer.get()) != nullptr) {
      auto edges = collect_next_edges(grad, factor);
      edges.emplace_back(layer, SineLinearBackward::kZ);
      node->set_next_edges(std::move(edges));
    }
    return node;
  }

  static variable_list backward(const variable_list& v, const Need& need, const Tensor& grad,
                                const Tensor& factor, const Tensor& input, const Tensor& weight,
                                const Tensor& bias, Tensor& output, Tensor& phase, double omega,
                                int64_t order) {
    make_again(input, weight, bias, output, phase, omega);
    const Layer layer{{input, weight, bias, output, phase, omega}};
    const bool needs_z = std::find(need.begin() + 2, need.end(), true) != need.end();
    variable_list result(need.size());
    Tensor grad_z;
    std::tie(result[0], result[1], grad_z) =
        layer.slope_backward(v[0], grad, factor, order, {need[0], need[1], needs_z});
    if (need.size() == 3) {
      result[2] = grad_z;
    } else if (needs_z) {
      layer.backward_from_z(grad_z, need, 2, result);
    }
    return result;
  }
};

// ---- the slope

void set_slope_tangent(const Tensor& out, const Tensor& grad, const Tensor& factor,
                       const Layer& layer, int64_t order) {
  const PrimalLayer beneath(layer);
  const Layer at = beneath.layer();
  const Tensor g = primal(grad), f = primal(factor);
  Tensor result;
  if (has_tangent(grad)) result = at.slope(tangent(grad), f, order);
  if (has_tangent(factor)) result = plus(result, at.slope(g, tangent(factor), order));
  const Tensor dz = layer.tangent_of_z();
  if (dz.defined()) result = plus(result, at.slope_of_product(dz, g, f, order + 1));
  set_tangent(out, result);
}

Tensor sine_linear_slope_autograd(c10::DispatchKeySet keys, const Tensor& grad,
                                  const OptionalTensor& factor, const Tensor& input,
                                  const Tensor& weight, const OptionalTensor& bias,
                                  const OptionalTensor& output, const Tensor& phase, double omega,
                                  int64_t order) {
  const Tensor f = value_or_undefined(factor), b = value_or_undefined(bias);
  const Tensor y = value_or_undefined(output);
  auto node = SineLinearSlopeNode::record(grad, f, input, weight, b, y);
  const Tensor out = below_autograd(slope_op(), keys, grad, factor, input, weight, bias, output,
                                    phase, omega, order);
  if (node) {
    set_history(out, node);
    node->save(grad, f, input, weight, b, y, phase, omega, order);
  }
  if (has_tangent(grad, f, input, weight, b)) {
    set_slope_tangent(out, grad, f, {{input, weight, b, y, phase, omega}}, order);
  }
  return out;
}

// If the gradients must be differentiable, they are computed from a slope, which has derivatives of
// every order.
Tensors4 sine_linear_backward_autograd(c10::DispatchKeySet keys, const Tensor& grad,
                                       const Tensor& input, const Tensor& weight,
                                       const OptionalTensor& bias, const OptionalTensor& output,
                                       const Tensor& phase, double omega,
                                       std::array<bool, 4> mask) {
  const Tensor b = value_or_undefined(bias), y = value_or_undefined(output);
  const bool any_tangent = has_tangent(grad, input, weight, b);
  if (!any_tangent && !compute_requires_grad(grad, input, weight, b)) {
    return below_autograd(backward_op(), keys, grad, input, weight, bias, output, phase, omega,
                          mask);
  }
  const Layer layer{{input, weight, b, y, phase, omega}};
  const Tensor grad_z = layer.slope(grad, Tensor(), 1);
  return std::tuple_cat(gradients_from_z(grad_z, input, weight, {mask[0], mask[1], mask[2]}),
                        std::tuple(mask[3] ? grad_z : Tensor()));
}

Tensor sine_linear_backward_inplace_autograd(c10::DispatchKeySet keys, Tensor& grad,
                                             const Tensor& input, const Tensor& weight,
                                             const OptionalTensor& bias,
                                             const OptionalTensor& output, const Tensor& phase,
                                             double omega, bool sums) {
  refuse_autograd("sine_linear_backward_", "grad", grad, input, weight, value_or_undefined(bias));
  return below_autograd_inplace(backward_inplace_op(), keys, grad, input, weight, bias, output,
                                phase, omega, sums);
}

Tensors3 sine_linear_slope_backward_autograd(c10::DispatchKeySet keys, const Tensor& v,
                                             const Tensor& grad, const OptionalTensor& factor,
                                             const Tensor& input, const Tensor& weight,
                                             const OptionalTensor& bias,
                                             const OptionalTensor& output, const Tensor& phase,
                                             double omega, int64_t order,
                                             std::array<bool, 3> mask) {
  const Tensor f = value_or_undefined(factor), b = value_or_undefined(bias);
  const Tensor y = value_or_undefined(output);
  const bool any_tangent = has_tangent(v, grad, f, input, weight, b);
  if (!any_tangent && !compute_requires_grad(v, grad, f, input, weight, b)) {
    return below_autograd(slope_backward_op(), keys, v, grad, factor, input, weight, bias, output,
                          phase, omega, order, mask);
  }
  const Layer layer{{input, weight, b, y, phase, omega}};
  return {mask[0] ? layer.slope(v, f, order) : Tensor(),
          mask[1] ? layer.slope(v, grad, order) : Tensor(),
          mask[2] ? layer.slope_of_product(v, grad, f, order + 1) : Tensor()};
}

// ---- the layer

// sine_linear calls this if derivatives may be needed. Then outer levels of torch.func see the op
// sine_linear_forward, for which this file registers all derivatives. phase itself is not
// differentiable.
OutputAndPhase sine_linear_forward_autograd(c10::DispatchKeySet keys, const Tensor& input,
                                            const Tensor& weight, const OptionalTensor& bias,
                                            double omega) {
  const Tensor b = value_or_undefined(bias);
  auto node = SineLinearBackward::record(input, weight, b);
  auto out = below_autograd(forward_op(), keys, input, weight, bias, omega);
  const auto& [output, phase] = out;
  if (node) {
    set_history(output, node);
    node->add_input_metadata(output);  // z has output's shape and dtype
  }
  if (has_tangent(input, weight, b)) {
    const Layer layer{{input, weight, b, output, phase, omega}};
    const PrimalLayer beneath(layer);
    set_tangent(output, beneath.layer().slope(layer.tangent_of_z(), Tensor(), 1));
  }
  if (node) node->save(input, weight, b, output, phase, omega);
  return out;
}

Tensor sine_linear_autograd(c10::DispatchKeySet keys, const Tensor& input, const Tensor& weight,
                            const OptionalTensor& bias, double omega) {
  const Tensor b = value_or_undefined(bias);
  if (!compute_requires_grad(input, weight, b) && !has_tangent(input, weight, b)) {
    return below_autograd(layer_op(), keys, input, weight, bias, omega);
  }
  return std::get<0>(sine_linear_forward_autograd(keys, input, weight, bias, omega));
}

}  // namespace

Tensor sine_linear(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                   double omega) {
  return layer_op().call(input, weight, bias, omega);
}

TORCH_LIBRARY_IMPL(treadle, Autograd, m) {
  m.impl("sine_linear", sine_linear_autograd);
  m.impl("sine_linear_forward", sine_linear_forward_autograd);
  m.impl("sine_linear_slope", sine_linear_slope_autograd);
  m.impl("sine_linear_backward", sine_linear_backward_autograd);
  m.impl("sine_linear_backward_", sine_linear_backward_inplace_autograd);
  m.impl("sine_linear_slope_backward", sine_linear_slope_backward_autograd);
}

}  // namespace treadle
