// Derivatives of sine_linear_jet. Its Node calls the fused sine_linear_jet_backward. Derivatives of
// that op, and all tangents, are computed by a composition of ATen ops, jet_composition.h. The
// backward op also takes output and phase, which are functions of jet, weight and bias. So its
// derivatives with respect to these three include those through output and phase.
#include "common/autograd.h"
#include "sine_linear/jet_composition.h"
#include "sine_linear/kept_output.h"
#include "treadle/ops.h"

namespace treadle {
namespace {

// ---- dispatcher calls

const auto& jet_op() {
  static const auto op = find_op<Tensor(const Tensor&, const Tensor&, const OptionalTensor&, double,
                                        int64_t, std::string_view)>("treadle::sine_linear_jet");
  return op;
}

const auto& jet_forward_op() {
  static const auto op =
      find_op<OutputAndPhase(const Tensor&, const Tensor&, const OptionalTensor&, double, int64_t,
                             std::string_view)>("treadle::sine_linear_jet_forward");
  return op;
}

const auto& jet_backward_op() {
  static const auto op =
      find_op<Tensors3(const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&,
                       const Tensor&, const Tensor&, double, int64_t, std::string_view,
                       std::array<bool, 3>)>("treadle::sine_linear_jet_backward");
  return op;
}

// ---- the composition

// Checks the arguments and calls f(composition). Products keep their dtype even under autocast.
template <class F>
auto composed(const Tensor& jet, const Tensor& weight, const Tensor& bias, double omega,
              int64_t coordinates, std::string_view second, const F& f) {
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
  const auto parts =
      check_jet("sine_linear_jet", jet, weight, bias, omega, coordinates, second).parts;
  return f(JetComposition(jet, weight, bias, omega, parts));
}

JetTangents tangents_of(const Tensor& jet, const Tensor& weight, const Tensor& bias) {
  return {tangent(jet), tangent(weight), tangent(bias)};
}

// ---- the backward op's derivatives

// Inputs: grad, jet, weight, bias.
struct SineLinearJetBackwardBackward : OpNode<SineLinearJetBackwardBackward, Tensor, Tensor, Tensor,
                                              Tensor, double, int64_t, std::string> {
  static constexpr const char* kName = "SineLinearJetBackwardBackward";

  static variable_list backward(const variable_list& v, const Need& need, const Tensor& grad,
                                const Tensor& jet, const Tensor& weight, const Tensor& bias,
                                double omega, int64_t coordinates, const std::string& second) {
    return composed(
        jet, weight, bias, omega, coordinates, second, [&](const JetComposition& layer) {
          const JetTangents t{v[0], v[1], v[2]};
          variable_list result(4);
          if (need[0]) result[0] = cast(layer.push(layer.tangent_of_z(t)), grad.scalar_type());
          const auto found = layer.second(grad, Tensor(), t, {need[1], need[2], need[3]});
          for (size_t k = 0; k < 3; ++k) result[k + 1] = cast(found[k], grad.scalar_type());
          return result;
        });
  }
};

void set_backward_tangents(const Tensors3& out, const Tensor& grad, const Tensor& jet,
                           const Tensor& weight, const Tensor& bias, double omega,
                           int64_t coordinates, std::string_view second) {
  const auto [of_jet, of_weight, of_bias] = out;
  const std::array<bool, 3> mask{of_jet.defined(), of_weight.defined(), of_bias.defined()};
  const auto found = composed(primal(jet), primal(weight), primal(bias), omega, coordinates, second,
                              [&](const JetComposition& layer) {
                                return layer.second(primal(grad), tangent(grad),
                                                    tangents_of(jet, weight, bias), mask);
                              });
  const auto set = [](const Tensor& t, const Tensor& value) {
    if (t.defined() && value.defined()) set_tangent(t, value.to(t.scalar_type()).contiguous());
  };
  set(of_jet, found[0]);
  set(of_weight, found[1]);
  set(of_bias, found[2]);
}

Tensors3 sine_linear_jet_backward_autograd(c10::DispatchKeySet keys, const Tensor& grad,
                                           const Tensor& jet, const Tensor& weight,
                                           const OptionalTensor& bias, const Tensor& output,
                                           const Tensor& phase, double omega, int64_t coordinates,
                                           std::string_view second, std::array<bool, 3> mask) {
  const Tensor b = value_or_undefined(bias);
  auto node = SineLinearJetBackwardBackward::record(grad, jet, weight, b);
  auto out = below_autograd(jet_backward_op(), keys, grad, jet, weight, bias, output, phase, omega,
                            coordinates, second, mask);
  if (node) {
    auto& [of_jet, of_weight, of_bias] = out;
    set_history(variable_list{of_jet, of_weight, of_bias}, node);
    node->save(grad, jet, weight, b, omega, coordinates, std::string(second));
  }
  if (has_tangent(grad, jet, weight, b)) {
    set_backward_tangents(out, grad, jet, weight, b, omega, coordinates, second);
  }
  return out;
}

// ---- the layer's derivatives

struct SineLinearJetBackward : OpNode<SineLinearJetBackward, Tensor, Tensor, Tensor,
                                      LayerOutput<true>, Tensor, double, int64_t, std::string> {
  static constexpr const char* kName = "SineLinearJetBackward";

  static variable_list backward(const variable_list& grads, const Need& need, const Tensor& jet,
                                const Tensor& weight, const Tensor& bias, Tensor& output,
                                Tensor& phase, double omega, int64_t coordinates,
                                const std::string& second) {
    if (!output.defined()) {
      // The output was overwritten. Autocast must not change the dtype of the recomputed output.
      const c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
      std::tie(output, phase) =
          jet_forward_op().call(jet, weight, optional(bias), omega, coordinates, second);
    }
    auto [of_jet, of_weight, of_bias] =
        jet_backward_op().call(grads[0], jet, weight, optional(bias), output, phase, omega,
                               coordinates, second, {need[0], need[1], need[2]});
    return {of_jet, of_weight, of_bias};
  }
};

// sine_linear_jet calls this if derivatives may be needed. Then outer levels of torch.func see the
// op sine_linear_jet_forward, for which this file registers all derivatives. phase itself is not
// differentiable.
OutputAndPhase sine_linear_jet_forward_autograd(c10::DispatchKeySet keys, const Tensor& jet,
                                                const Tensor& weight, const OptionalTensor& bias,
                                                double omega, int64_t coordinates,
                                                std::string_view second) {
  const Tensor b = value_or_undefined(bias);
  auto node = SineLinearJetBackward::record(jet, weight, b);
  auto out = below_autograd(jet_forward_op(), keys, jet, weight, bias, omega, coordinates, second);
  const auto& [output, phase] = out;
  if (node) set_history(output, node);
  if (has_tangent(jet, weight, b)) {
    const Tensor moved =
        composed(primal(jet), primal(weight), primal(b), omega, coordinates, second,
                 [&](const JetComposition& layer) {
                   return layer.push(layer.tangent_of_z(tangents_of(jet, weight, b)));
                 });
    set_tangent(output, moved.to(output.scalar_type()));
  }
  if (node) node->save(jet, weight, b, output, phase, omega, coordinates, std::string(second));
  return out;
}

Tensor sine_linear_jet_autograd(c10::DispatchKeySet keys, const Tensor& jet, const Tensor& weight,
                                const OptionalTensor& bias, double omega, int64_t coordinates,
                                std::string_view second) {
  const Tensor b = value_or_undefined(bias);
  if (!compute_requires_grad(jet, weight, b) && !has_tangent(jet, weight, b)) {
    return below_autograd(jet_op(), keys, jet, weight, bias, omega, coordinates, second);
  }
  return std::get<0>(
      sine_linear_jet_forward_autograd(keys, jet, weight, bias, omega, coordinates, second));
}

}  // namespace

Tensor sine_linear_jet(const Tensor& jet, const Tensor& weight, const OptionalTensor& bias,
                       double omega, int64_t coordinates, std::string_view second) {
  return jet_op().call(jet, weight, bias, omega, coordinates, second);
}

TORCH_LIBRARY_IMPL(treadle, Autograd, m) {
  m.impl("sine_linear_jet", sine_linear_jet_autograd);
  m.impl("sine_linear_jet_forward", sine_linear_jet_forward_autograd);
  m.impl("sine_linear_jet_backward", sine_linear_jet_backward_autograd);
}

}  // namespace treadle
