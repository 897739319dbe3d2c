// The derivatives of sine_linear, of every order. With z = x W^T + b and s_k = d^k sin(omega z) /
// dz^k, slope(g, f, k) = g f s_k is closed under differentiation:
//   by g: slope(v, f, k)    by f: slope(v, g, k)    by z: slope(v g, f, k + 1)
// and from a gradient w by z come those by x, W and b: w W, w^T x and sum w. output and phase are
// functions of the arguments, whose gradients already count them.
//
// z is no tensor, but gradients by it, of which every slope gives one, are added up before any is
// multiplied: the layer's Node has a second input for them. A slope finds it by its output.
#include <algorithm>

#include "autograd.h"
#include "sine_linear.h"
#include "treadle/ops.h"

namespace treadle {
namespace {

// ---- dispatcher calls

const auto& layer_op() {
  static const auto op =
      find_op<Tensor(const Tensor&, const Tensor&, const OptionalTensor&, double)>(
          "treadle::sine_linear");
  return op;
}

const auto& forward_op() {
  static const auto op =
      find_op<OutputAndPhase(const Tensor&, const Tensor&, const OptionalTensor&, double)>(
          "treadle::sine_linear_forward");
  return op;
}

const auto& slope_op() {
  static const auto op =
      find_op<Tensor(const Tensor&, const OptionalTensor&, const Tensor&, const Tensor&,
                     const OptionalTensor&, const OptionalTensor&, const Tensor&, double, int64_t)>(
          "treadle::sine_linear_slope");
  return op;
}

OptionalTensor optional(const Tensor& t) { return t.defined() ? OptionalTensor(t) : std::nullopt; }

bool moves(const Tensor& t) { return t.defined() && isFwGradDefined(t); }

// One layer at one point: the arguments, of which bias may be undefined, and what was kept.
struct Layer {
  const Tensor &input, &weight, &bias, &output, &phase;
  double omega;

  Tensor slope(const Tensor& grad, const Tensor& factor, int64_t order) const {
    return slope_op().call(grad, optional(factor), input, weight, optional(bias), optional(output),
                           phase, omega, order);
  }

  // grad times `other` times a slope, where `factor` may be undefined.
  Tensor slope_of_product(const Tensor& grad, const Tensor& other, const Tensor& factor,
                          int64_t order) const {
    return factor.defined() ? slope(grad * other, factor, order) : slope(grad, other, order);
  }

  // Gradients of input, weight and bias for one of z, of which `need` says from `first` on which.
  void to_arguments(const Tensor& grad, const Need& need, size_t first,
                    variable_list& result) const {
    const Tensor w = rows_of(grad, weight);
    if (need[first]) {
      result[first] = at::matmul(w, weight).reshape_symint(input.sym_sizes());
    }
    if (need[first + 1]) result[first + 1] = at::matmul(w.mT(), rows_of(input, weight));
    if (need[first + 2]) result[first + 2] = w.sum(-2);
  }

  // The tangent of z, undefined where nothing moves.
  Tensor tangent_of_sum() const {
    const Tensor x = rows_of(primal(input), weight);
    Tensor moved;
    if (moves(input)) {
      moved = at::matmul(rows_of(tangent(input), weight), primal(weight).mT());
    }
    if (moves(weight)) moved = plus(moved, at::matmul(x, tangent(weight).mT()));
    if (moves(bias)) {
      const Tensor row = weight.dim() == 3 ? tangent(bias).unsqueeze(1) : tangent(bias);
      moved = moved.defined() ? moved + row : row.expand_symint(rows_of(phase, weight).sym_sizes());
    }
    return moved.defined() ? moved.reshape_symint(phase.sym_sizes()) : moved;
  }
};

// The layer that tangents are taken at: below this level's dual numbers. Those of the output and
// of the phase are not looked at.
struct Beneath {
  Tensor input, weight, bias, output, phase;
  double omega;

  explicit Beneath(const Layer& l)
      : input(primal(l.input)),
        weight(primal(l.weight)),
        bias(l.bias.defined() ? primal(l.bias) : l.bias),
        output(l.output),
        phase(l.phase),
        omega(l.omega) {}

  Layer layer() const { return {input, weight, bias, output, phase, omega}; }
};

// ---- Nodes

// Gradients in: of output, and of z.
struct SineLinearBackward
    : OpNode<SineLinearBackward, Tensor, Tensor, Tensor, Output, Tensor, double> {
  static constexpr const char* kName = "SineLinearBackward";
  static constexpr uint32_t kSum = 1;

  static variable_list backward(const variable_list& grads, const Need& need, const Tensor& input,
                                const Tensor& weight, const Tensor& bias, const Tensor& output,
                                const Tensor& phase, double omega) {
    const Layer layer{input, weight, bias, output, phase, omega};
    variable_list result(3);
    Tensor by_sum;
    if (grads[0].defined()) by_sum = layer.slope(grads[0], Tensor(), 1);
    if (grads.size() > kSum) by_sum = plus(by_sum, grads[kSum]);
    layer.to_arguments(by_sum, need, 0, result);
    return result;
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
    variable_list result(need.size());
    if (need[0]) result[0] = layer.slope(v[0], factor, order);
    if (need[1]) result[1] = layer.slope(v[0], grad, order);
    if (std::none_of(need.begin() + 2, need.end(), [](bool needed) { return needed; })) {
      return result;
    }
    const Tensor by_sum = layer.slope_of_product(v[0], grad, factor, order + 1);
    if (need.size() == 3) {
      result[2] = by_sum;
    } else {
      layer.to_arguments(by_sum, need, 2, result);
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
}

}  // namespace treadle
