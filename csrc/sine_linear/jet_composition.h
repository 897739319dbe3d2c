// sine_linear_jet composed of ATen ops, in float32 or float64, for tangents and second derivatives.
// With z = jet weight^T + bias (bias is added to the value only), the output is y = F(z), where F
// treats each point and column separately. With the Jacobian J of F:
//   push(v) = J v     pull(g) = J^T g     bend(g, v) = the gradient of g . (J v) with respect to z
// By symmetry, bend(g, v) is also the tangent of pull(g) for a tangent v of z.
#pragma once

#include <ATen/Functions.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>

#include <cmath>

#include "common/tensors.h"
#include "sine_linear/jet.h"

namespace treadle {

// Tangents or cotangents of a layer's arguments. Undefined ones are 0.
struct JetTangents {
  Tensor jet, weight, bias;
};

class JetComposition {
 public:
  JetComposition(const Tensor& jet, const Tensor& weight, const Tensor& bias, double omega,
                 const JetParts& parts)
      : dtype_(at::toOpMathType(jet.scalar_type())),
        parts_(parts),
        x_(cast(jet, dtype_)),
        w_(cast(weight, dtype_)) {
    const Tensor z = with_bias(at::matmul(x_, w_.t()), cast(bias, dtype_));
    const Tensor u = omega * value(z), s = u.sin(), c = u.cos();
    first_ = c * omega;
    second_ = s * -std::pow(omega, 2);
    third_ = c * -std::pow(omega, 3);
    fourth_ = s * std::pow(omega, 4);
    z1_ = firsts(z);
    z2_ = seconds(z);
    squares_ = fold(z1_ * z1_);
  }

  // The tangent of z, undefined if no argument has one.
  Tensor tangent_of_z(const JetTangents& t) const {
    Tensor dz = matrix_product(cast(t.jet, dtype_), w_.t());
    if (t.weight.defined()) dz = plus(dz, at::matmul(x_, cast(t.weight, dtype_).t()));
    if (!t.bias.defined()) return dz;
    if (!dz.defined())
      dz = at::cat({at::zeros_like(first_), at::zeros_like(z1_), at::zeros_like(z2_)});
    return with_bias(dz, cast(t.bias, dtype_));
  }

  Tensor push(const Tensor& v) const {
    const Tensor v0 = value(v), v1 = firsts(v), of_value = first_ * v0;
    const Tensor of_first = second_ * z1_ * v0 + first_ * v1;
    if (!any_second()) return at::cat({of_value, of_first});
    return at::cat({of_value, of_first,
                    first_ * seconds(v) + 2 * second_ * fold(z1_ * v1) +
                        v0 * (second_ * z2_ + third_ * squares_)});
  }

  Tensor pull(const Tensor& g) const {
    const Tensor g1 = firsts(g);
    Tensor of_value = first_ * value(g) + sum(second_ * g1 * z1_), of_first = first_ * g1;
    if (!any_second()) return at::cat({of_value, of_first});
    const Tensor g2 = seconds(g);
    of_value = of_value + sum(g2 * (second_ * z2_ + third_ * squares_));
    return at::cat({of_value, of_first + 2 * second_ * g2 * z1_, first_ * g2});
  }

  Tensor bend(const Tensor& g, const Tensor& v) const {
    const Tensor g1 = firsts(g), v0 = value(v), v1 = firsts(v);
    Tensor of_value = second_ * value(g) * v0 + sum(g1 * (third_ * z1_ * v0 + second_ * v1));
    Tensor of_first = second_ * g1 * v0;
    if (!any_second()) return at::cat({of_value, of_first});
    const Tensor g2 = seconds(g);
    of_value = of_value + sum(g2 * (v0 * (third_ * z2_ + fourth_ * squares_) +
                                    second_ * seconds(v) + 2 * third_ * fold(z1_ * v1)));
    of_first = of_first + 2 * g2 * (third_ * z1_ * v0 + second_ * v1);
    return at::cat({of_value, of_first, second_ * g2 * v0});
  }

  // Tangents of the gradients of jet, weight and bias, computed from the tangents of grad (dgrad,
  // which may be undefined) and of the arguments (t). By the symmetry of bend, these are also the
  // cotangents of the arguments if t contains cotangents of their gradients.
  std::array<Tensor, 3> second(const Tensor& grad, const Tensor& dgrad, const JetTangents& t,
                               std::array<bool, 3> mask) const {
    const Tensor g = cast(grad, dtype_), dz = tangent_of_z(t);
    Tensor dh = dgrad.defined() ? pull(cast(dgrad, dtype_)) : Tensor();
    if (dz.defined()) dh = plus(dh, bend(g, dz));
    const Tensor h = t.jet.defined() || t.weight.defined() ? pull(g) : Tensor();
    std::array<Tensor, 3> result;
    if (mask[0]) {
      result[0] = plus(matrix_product(dh, w_), matrix_product(h, cast(t.weight, dtype_)));
    }
    if (mask[1]) {
      result[1] = plus(of_rows(dh, x_), of_rows(h, cast(t.jet, dtype_)));
    }
    if (mask[2] && dh.defined()) result[2] = all_rows_of(value(dh)).sum(0);
    return result;
  }

 private:
  ScalarType dtype_;
  JetParts parts_;
  Tensor x_, w_;
  Tensor first_, second_, third_, fourth_;  // [1, ..., O], d^k sin(omega z) / dz^k
  Tensor z1_, z2_, squares_;                // first and second parts of z, and fold(z1_^2)

  bool any_second() const { return parts_.seconds() > 0; }
  static Tensor value(const Tensor& t) { return t.narrow(0, 0, 1); }
  Tensor firsts(const Tensor& t) const { return t.narrow(0, 1, parts_.coordinates); }
  Tensor seconds(const Tensor& t) const {
    return t.narrow(0, 1 + parts_.coordinates, parts_.seconds());
  }
  static Tensor sum(const Tensor& t) { return t.sum(0, /*keepdim=*/true); }

  // Combines one value per coordinate into a jet's second parts: for a Laplacian, into their sum.
  Tensor fold(const Tensor& t) const { return parts_.second == JetSecond::kLaplacian ? sum(t) : t; }

  Tensor with_bias(const Tensor& z, const Tensor& bias) const {
    if (!bias.defined()) return z;
    return at::cat({value(z) + bias, z.narrow(0, 1, parts_.total() - 1)});
  }

  // a^T b over all rows.
  static Tensor of_rows(const Tensor& a, const Tensor& b) {
    if (!a.defined() || !b.defined()) return Tensor();
    return at::matmul(all_rows_of(a).t(), all_rows_of(b));
  }
};

}  // namespace treadle
