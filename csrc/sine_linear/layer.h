// Dispatcher calls of sine_linear's ops for autograd.cpp, and a layer with its derivatives.
#pragma once

#include "common/autograd.h"
#include "sine_linear/sine_linear.h"

namespace treadle::sine_layer {

// ---- dispatcher calls

inline const auto& layer_op() {
  static const auto op =
      find_op<Tensor(const Tensor&, const Tensor&, const OptionalTensor&, double)>(
          "treadle::sine_linear");
  return op;
}

inline const auto& forward_op() {
  static const auto op =
      find_op<OutputAndPhase(const Tensor&, const Tensor&, const OptionalTensor&, double)>(
          "treadle::sine_linear_forward");
  return op;
}

inline const auto& slope_op() {
  static const auto op =
      find_op<Tensor(const Tensor&, const OptionalTensor&, const Tensor&, const Tensor&,
                     const OptionalTensor&, const OptionalTensor&, const Tensor&, double, int64_t)>(
          "treadle::sine_linear_slope");
  return op;
}

inline const auto& backward_op() {
  static const auto op =
      find_op<Tensors4(const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&,
                       const OptionalTensor&, const Tensor&, double, std::array<bool, 4>)>(
          "treadle::sine_linear_backward");
  return op;
}

inline const auto& backward_inplace_op() {
  static const auto op =
      find_op<Tensor(Tensor&, const Tensor&, const Tensor&, const OptionalTensor&,
                     const OptionalTensor&, const Tensor&, double, bool)>(
          "treadle::sine_linear_backward_");
  return op;
}

inline const auto& slope_backward_op() {
  static const auto op =
      find_op<Tensors3(const Tensor&, const Tensor&, const OptionalTensor&, const Tensor&,
                       const Tensor&, const OptionalTensor&, const OptionalTensor&, const Tensor&,
                       double, int64_t, std::array<bool, 3>)>(
          "treadle::sine_linear_slope_backward");
  return op;
}

// ---- a layer with its derivatives

struct Layer : SineLayer {
  Tensor slope(const Tensor& grad, const Tensor& factor, int64_t order) const {
    return slope_op().call(grad, optional(factor), input, weight, optional(bias), optional(output),
                           phase, omega, order);
  }

  // Gradients of input, weight, bias and z.
  Tensors4 backward(const Tensor& grad, std::array<bool, 4> mask) const {
    return backward_op().call(grad, input, weight, optional(bias), optional(output), phase, omega,
                              mask);
  }

  // Overwrites grad with grad_z; returns grad_bias if wants_bias.
  Tensor backward_inplace(Tensor& grad, bool wants_bias) const {
    return backward_inplace_op().call(grad, input, weight, optional(bias), optional(output), phase,
                                      omega, wants_bias);
  }

  // slope(grad * other, factor, order), with one multiplication fewer if factor is undefined.
  Tensor slope_of_product(const Tensor& grad, const Tensor& other, const Tensor& factor,
                          int64_t order) const {
    return factor.defined() ? slope(grad * other, factor, order) : slope(grad, other, order);
  }

  // The vjp of a slope with respect to grad, factor and z.
  Tensors3 slope_backward(const Tensor& v, const Tensor& grad, const Tensor& factor, int64_t order,
                          std::array<bool, 3> mask) const {
    return slope_backward_op().call(v, grad, optional(factor), input, weight, optional(bias),
                                    optional(output), phase, omega, order, mask);
  }

  // Writes the gradients of input, weight and bias to result[first ...] where need[first ...] is
  // true.
  void backward_from_z(const Tensor& grad_z, const Need& need, size_t first,
                       variable_list& result) const {
    std::tie(result[first], result[first + 1], result[first + 2]) =
        gradients_from_z(grad_z, input, weight, {need[first], need[first + 1], need[first + 2]});
  }

  // The tangent of z, undefined if no argument has one.
  Tensor tangent_of_z() const {
    // GEMMs keep the layer's dtype even under autocast.
    const c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
    const Tensor x = rows_of(primal(input), weight);
    Tensor dz;
    if (has_tangent(input)) {
      dz = product_like(rows_of(tangent(input), weight), primal(weight).mT());
    }
    if (has_tangent(weight)) dz = plus(dz, product_like(x, tangent(weight).mT()));
    if (has_tangent(bias)) {
      const Tensor row = weight.dim() == 3 ? tangent(bias).unsqueeze(1) : tangent(bias);
      dz = dz.defined() ? dz + row : row.expand_symint(rows_of(phase, weight).sym_sizes());
    }
    return dz.defined() ? dz.reshape_symint(phase.sym_sizes()) : dz;
  }
};

// The primals of a layer, at which its tangents are computed. Tangents of output and phase are not
// read: these tensors are functions of the arguments.
struct PrimalLayer {
  Tensor input, weight, bias, output, phase;
  double omega;

  explicit PrimalLayer(const Layer& l)
      : input(primal(l.input)),
        weight(primal(l.weight)),
        bias(primal(l.bias)),
        output(l.output),
        phase(l.phase),
        omega(l.omega) {}

  Layer layer() const { return {{input, weight, bias, output, phase, omega}}; }
};

}  // namespace treadle::sine_layer
