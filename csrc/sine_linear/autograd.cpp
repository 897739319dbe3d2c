// The derivatives of sine_linear, of every order. With z = x W^T + b and s_k = d^k sin(omega z) /
// dz^k, slope(g, f, k) = g f s_k is closed under differentiation:
//   by g: slope(v, f, k)    by f: slope(v, g, k)    by z: slope(v g, f, k + 1)
// (sine_linear_slope_backward gives the three in one pass), and from a gradient w by z come those
// by x, W and b: w W, w^T x and sum w. sine_linear_backward is all of the first backward pass.
// output and phase are functions of the arguments, whose gradients already count them.
//
// z is no tensor, but gradients by it, of which every slope gives one, are added up before any is
// multiplied: the layer's Node has a second input for them. A slope finds it by its output.
#include <ATen/TensorSubclassLikeUtils.h>

#include "sine_linear_derivatives.h"
#include "treadle/ops.h"

namespace treadle {
namespace {

using namespace sine_layer;

// Whether memory counts more than a call of the dispatcher. Not of what a kernel gives without a
// slope (sine_linear_gradients.cu), and not of sizes that are symbols.
constexpr int64_t kLarge = int64_t{1} << 24;  // bytes

bool large_slope(const Tensor& grad, const Tensor& weight) {
  if (grad.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) return false;
  const bool half = grad.element_size() == 2 && grad.is_cuda();
  const bool narrow = std::max(weight.size(-1), weight.size(-2)) <= kMostAtOnce;
  return grad.numel() * static_cast<int64_t>(grad.element_size()) >= kLarge && !(half && narrow);
}

// Whether nobody else sees a gradient, so that its slope may be written over it: where torch's
// engine adds in place to what it alone owns (InputBuffer). One that Python has seen has two
// owners. No subclass, no level of torch.func and no mode: they count on ops without side effects.
bool may_write(const Tensor& grad, const Layer& layer) {
  const auto plain = [](const Tensor& t) { return !at::isTensorSubclassLike(t) && !moves(t); };
  return !at::GradMode::is_enabled() && grad.use_count() == 1 && grad.has_storage() &&
         grad.storage().use_count() == 1 && grad.is_contiguous() && !grad._is_zerotensor() &&
         plain(grad) && plain(layer.input) && plain(layer.weight) && plain(layer.bias) &&
         plain(layer.output) && plain(layer.phase);
}

// ---- Nodes

// Gradients in: of output, and of z.
struct SineLinearBackward
    : OpNode<SineLinearBackward, Tensor, Tensor, Tensor, Output, Tensor, double> {
  static constexpr const char* kName = "SineLinearBackward";
  static constexpr uint32_t kSum = 1;

  static variable_list backward(variable_list& grads, const Need& need, const Tensor& input,
                                const Tensor& weight, const Tensor& bias, Tensor& output,
                                Tensor& phase, double omega) {
    const Layer layer{input, weight, bias, output, phase, omega};
    const bool joined = grads.size() > kSum && grads[kSum].defined();
    if (joined) {
      variable_list result(3);
      Tensor by_sum;
      if (grads[0].defined()) by_sum = layer.slope(grads[0], Tensor(), 1);
      by_sum = plus(by_sum, grads[kSum]);
      layer.to_arguments(by_sum, need, 0, result);
      return result;
    }
    // With nothing to join, nobody else wants the slope. An output that it does not read goes
    // before memory is taken; but a derivative of this one would find this Node by it.
    if (!at::GradMode::is_enabled() && !reads_output(output.scalar_type())) output.reset();
    const bool apart = (need[0] || need[1]) && large_slope(grads[0], weight);
    if (!apart) {
      auto [by_input, by_weight, by_bias, none] =
          layer.backward(grads[0], {need[0], need[1], need[2], false});
      return {by_input, by_weight, by_bias};
    }
    // A large slope has the place of the gradient that it is made of: products come after.
    Tensor by_input, by_weight, by_bias;
    if (may_write(grads[0], layer)) {
      by_bias = layer.backward_inplace(grads[0], need[2]);
    } else {
      std::tie(std::ignore, std::ignore, by_bias, grads[0]) =
          layer.backward(grads[0], {false, false, need[2], true});
    }
    output.reset();
    phase.reset();
    std::tie(by_input, by_weight, std::ignore) =
        gradients_of_sum(grads[0], input, weight, {need[0], need[1], false});
    return {by_input, by_weight, by_bias};
  }
};

// Gradients out: of grad, factor and z; without the layer's Node, instead of that of z those of
// input, weight and bias.
struct SineLinearSlopeBackward : OpNode<SineLinearSlopeBackward, Tensor, Tensor, Tensor, Tensor,
                                        Tensor, Tensor, Tensor, double, int64_t> {
  static constexpr const char* kName = "SineLinearSlopeBackward";

  static auto record(const Tensor& grad, const Tensor& factor, const Tensor& input,
                     const Tensor& weight, const Tensor& bias, const Tensor& output) {
    auto node = OpNode::record(grad, factor, input, weight, bias);
    const NodePtr layer = node && output.defined() ? output.grad_fn() : NodePtr();
    if (dynamic_cast<SineLinearBackward*>(layer.get()) != nullptr) {
      auto edges = collect_next_edges(grad, factor);
      edges.emplace_back(layer, SineLinearBackward::kSum);
      node->set_next_edges(std::move(edges));
    }
    return node;
  }

  static variable_list backward(const variable_list& v, const Need& need, const Tensor& grad,
                                const Tensor& factor, const Tensor& input, const Tensor& weight,
                                const Tensor& bias, const Tensor& output, const Tensor& phase,
                                double omega, int64_t order) {
    const Layer layer{input, weight, bias, output, phase, omega};
    const bool by_sum = std::find(need.begin() + 2, need.end(), true) != need.end();
    const auto found = layer.slope_backward(v[0], grad, factor, order, {need[0], need[1], by_sum});
    variable_list result(need.size());
    result[0] = std::get<0>(found);
    result[1] = std::get<1>(found);
    if (need.size() == 3) {
      result[2] = std::get<2>(found);
    } else if (by_sum) {
      layer.to_arguments(std::get<2>(found), need, 2, result);
    }
    return result;
  }
};

// ---- the slope

void set_slope_tangent(const Tensor& out, const Tensor& grad, const Tensor& factor,
                       const Layer& layer, int64_t order) {
  const Beneath beneath(layer);
  const Layer at = beneath.layer();
  const Tensor g = primal(grad), f = factor.defined() ? primal(factor) : factor;
  Tensor moved;
  if (moves(grad)) moved = at.slope(tangent(grad), f, order);
  if (moves(factor)) moved = plus(moved, at.slope(g, tangent(factor), order));
  const Tensor sum = layer.tangent_of_sum();
  if (sum.defined()) moved = plus(moved, at.slope_of_product(sum, g, f, order + 1));
  set_tangent(out, moved);
}

Tensor sine_linear_slope_autograd(c10::DispatchKeySet keys, const Tensor& grad,
                                  const OptionalTensor& factor, const Tensor& input,
                                  const Tensor& weight, const OptionalTensor& bias,
                                  const OptionalTensor& output, const Tensor& phase, double omega,
                                  int64_t order) {
  const Tensor f = factor.value_or(Tensor()), b = bias.value_or(Tensor());
  const Tensor y = output.value_or(Tensor());
  auto node = SineLinearSlopeBackward::record(grad, f, input, weight, b, y);
  const Tensor out = below_autograd(slope_op(), keys, grad, factor, input, weight, bias, output,
                                    phase, omega, order);
  if (node) {
    set_history(out, node);
    node->save(grad, f, input, weight, b, y, phase, omega, order);
  }
  if (moves(grad) || moves(f) || moves(input) || moves(weight) || moves(b)) {
    set_slope_tangent(out, grad, f, {input, weight, b, y, phase, omega}, order);
  }
  return out;
}

// Where a derivative will be asked for, this one and the next are made of slopes, which have them
// all.
FourTensors sine_linear_backward_autograd(c10::DispatchKeySet keys, const Tensor& grad,
                                          const Tensor& input, const Tensor& weight,
                                          const OptionalTensor& bias, const OptionalTensor& output,
                                          const Tensor& phase, double omega,
                                          std::array<bool, 4> mask) {
  const Tensor b = bias.value_or(Tensor()), y = output.value_or(Tensor());
  const bool any_moves = moves(grad) || moves(input) || moves(weight) || moves(b);
  if (!any_moves && !compute_requires_grad(grad, input, weight, b)) {
    return below_autograd(backward_op(), keys, grad, input, weight, bias, output, phase, omega,
                          mask);
  }
  const Tensor slope = Layer{input, weight, b, y, phase, omega}.slope(grad, Tensor(), 1);
  return std::tuple_cat(gradients_of_sum(slope, input, weight, {mask[0], mask[1], mask[2]}),
                        std::tuple(mask[3] ? slope : Tensor()));
}

Tensor sine_linear_backward_inplace_autograd(c10::DispatchKeySet keys, Tensor& grad,
                                             const Tensor& input, const Tensor& weight,
                                             const OptionalTensor& bias,
                                             const OptionalTensor& output, const Tensor& phase,
                                             double omega, bool sums) {
  refuse_autograd("sine_linear_backward_", "grad", grad, input, weight, bias.value_or(Tensor()));
  return below_autograd_inplace(backward_inplace_op(), keys, grad, input, weight, bias, output,
                                phase, omega, sums);
}

ThreeTensors sine_linear_slope_backward_autograd(c10::DispatchKeySet keys, const Tensor& v,
                                                 const Tensor& grad, const OptionalTensor& factor,
                                                 const Tensor& input, const Tensor& weight,
                                                 const OptionalTensor& bias,
                                                 const OptionalTensor& output, const Tensor& phase,
                                                 double omega, int64_t order,
                                                 std::array<bool, 3> mask) {
  const Tensor f = factor.value_or(Tensor()), b = bias.value_or(Tensor());
  const Tensor y = output.value_or(Tensor());
  const bool any_moves =
      moves(v) || moves(grad) || moves(f) || moves(input) || moves(weight) || moves(b);
  if (!any_moves && !compute_requires_grad(v, grad, f, input, weight, b)) {
    return below_autograd(slope_backward_op(), keys, v, grad, factor, input, weight, bias, output,
                          phase, omega, order, mask);
  }
  const Layer layer{input, weight, b, y, phase, omega};
  return {mask[0] ? layer.slope(v, f, order) : Tensor(),
          mask[1] ? layer.slope(v, grad, order) : Tensor(),
          mask[2] ? layer.slope_of_product(v, grad, f, order + 1) : Tensor()};
}

// ---- the layer

// What sine_linear calls where a derivative will be asked for, so that outer levels of torch.func
// see one op with all its derivatives. The phase has none of its own.
OutputAndPhase sine_linear_forward_autograd(c10::DispatchKeySet keys, const Tensor& input,
                                            const Tensor& weight, const OptionalTensor& bias,
                                            double omega) {
  const Tensor b = bias.value_or(Tensor());
  auto node = SineLinearBackward::record(input, weight, b);
  auto out = below_autograd(forward_op(), keys, input, weight, bias, omega);
  const auto& [output, phase] = out;
  if (node) {
    set_history(output, node);
    node->add_input_metadata(output);  // of z, which is like it
  }
  if (moves(input) || moves(weight) || moves(b)) {
    const Layer layer{input, weight, b, output, phase, omega};
    const Beneath beneath(layer);
    set_tangent(output, beneath.layer().slope(layer.tangent_of_sum(), Tensor(), 1));
  }
  if (node) node->save(input, weight, b, output, phase, omega);
  return out;
}

Tensor sine_linear_autograd(c10::DispatchKeySet keys, const Tensor& input, const Tensor& weight,
                            const OptionalTensor& bias, double omega) {
  const Tensor b = bias.value_or(Tensor());
  if (!compute_requires_grad(input, weight, b) && !moves(input) && !moves(weight) && !moves(b)) {
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
