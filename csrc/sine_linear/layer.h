// One sine layer as its derivatives see it: sine_linear_autograd.cpp.
#pragma once

#include "autograd.h"
#include "sine_linear.h"

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
      find_op<FourTensors(const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&,
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
      find_op<ThreeTensors(const Tensor&, const Tensor&, const OptionalTensor&, const Tensor&,
                           const Tensor&, const OptionalTensor&, const OptionalTensor&,
                           const Tensor&, double, int64_t, std::array<bool, 3>)>(
          "treadle::sine_linear_slope_backward");
  return op;
}

inline OptionalTensor optional(const Tensor& t) {
  return t.defined() ? OptionalTensor(t) : std::nullopt;
}

inline bool moves(const Tensor& t) { return t.defined() && isFwGradDefined(t); }

// One layer at one point: the arguments, of which bias may be undefined, and what was kept.
struct Layer {
  const Tensor &input, &weight, &bias, &output, &phase;
  double omega;

  Tensor slope(const Tensor& grad, const Tensor& factor, int64_t order) const {
    return slope_op().call(grad, optional(factor), input, weight, optional(bias), optional(output),
                           phase, omega, order);
  }

  // Gradients of input, weight, bias and z for one of the output.
  FourTensors backward(const Tensor& grad, std::array<bool, 4> mask) const {
    return backward_op().call(grad, input, weight, optional(bias), optional(output), phase, omega,
                              mask);
  }

  // The gradient of z over `grad`, and that of the bias.
  Tensor backward_inplace(Tensor& grad, bool by_bias) const {
    return backward_inplace_op().call(grad, input, weight, optional(bias), optional(output), phase,
                                      omega, by_bias);
  }

  // grad times `other` times a slope, where `factor` may be undefined.
  Tensor slope_of_product(const Tensor& grad, const Tensor& other, const Tensor& factor,
                          int64_t order) const {
    return factor.defined() ? slope(grad * other, factor, order) : slope(grad, other, order);
  }

  // What a slope hands on of v: by grad, by factor, by z.
  ThreeTensors slope_backward(const Tensor& v, const Tensor& grad, const Tensor& factor,
                              int64_t order, std::array<bool, 3> mask) const {
    return slope_backward_op().call(v, grad, optional(factor), input, weight, optional(bias),
                                    optional(output), phase, omega, order, mask);
  }

  // Gradients of input, weight and bias for one of z, of which `need` says from `first` on which.
  void to_arguments(const Tensor& grad, const Need& need, size_t first,
                    variable_list& result) const {
    std::tie(result[first], result[first + 1], result[first + 2]) =
        gradients_of_sum(grad, input, weight, {need[first], need[first + 1], need[first + 2]});
  }

  // The tangent of z, undefined where nothing moves.
  Tensor tangent_of_sum() const {
    // Within autocast the products, too, are of the dtype that the layer had.
    const c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
    const Tensor x = rows_of(primal(input), weight);
    Tensor moved;
    if (moves(input)) {
      moved = product_like(rows_of(tangent(input), weight), primal(weight).mT());
    }
    if (moves(weight)) moved = plus(moved, product_like(x, tangent(weight).mT()));
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

}  // namespace treadle::sine_layer
