// A tensor with its tangent. With Duals, the formula of a cell's results also computes their
// tangents, and the formula of its gradients also computes second derivatives. An undefined tensor
// is zero and needs no computation. Operands must have equal shapes.
#pragma once

#include <utility>

#include "common/tensors.h"

namespace treadle {

struct Dual {
  Tensor value = {}, tangent = {};

  template <class F>
  Dual map(F f) const {
    return {f(value), f(tangent)};
  }
};

// ---- sums and products

inline Dual operator+(const Dual& a, const Dual& b) {
  return {plus(a.value, b.value), plus(a.tangent, b.tangent)};
}

inline Dual operator-(const Dual& a, const Dual& b) {
  return {minus(a.value, b.value), minus(a.tangent, b.tangent)};
}

inline Dual operator*(const Dual& a, const Dual& b) {
  return {times(a.value, b.value), plus(times(a.tangent, b.value), times(a.value, b.tangent))};
}

inline Tensor tangent_of_product(const Dual& a, const Dual& b) {
  return plus(matrix_product(a.tangent, b.value), matrix_product(a.value, b.tangent));
}

inline Dual matrix_product(const Dual& a, const Dual& b) {
  return {matrix_product(a.value, b.value), tangent_of_product(a, b)};
}

inline Dual transposed(const Dual& a) {
  return a.map([](const Tensor& t) { return transposed(t); });
}

inline Dual columns(const Dual& a, const c10::SymInt& begin, const c10::SymInt& size) {
  return a.map([&](const Tensor& t) { return columns(t, begin, size); });
}

// ---- activations

// y = f(x) and its derivatives: slope is f', bend is f'' / f'.
struct Activation {
  Tensor (*value)(const Tensor& x);
  Tensor (*slope)(const Tensor& x, const Tensor& y);
  Tensor (*bend)(const Tensor& x, const Tensor& y);

  Dual operator()(const Dual& x) const {
    const Tensor y = value(x.value);
    return {y, x.tangent.defined() ? x.tangent * slope(x.value, y) : Tensor()};
  }

  std::pair<Dual, Dual> with_slope(const Dual& x) const {
    const Tensor y = value(x.value), of_x = slope(x.value, y);
    const Tensor tangent = times(x.tangent, of_x);
    return {{y, tangent}, {of_x, tangent.defined() ? tangent * bend(x.value, y) : Tensor()}};
  }
};

// The slope is not computed as s (1 - s), which is 0 where s rounds to 1.
inline constexpr Activation kSigmoid = {
    [](const Tensor& x) { return at::sigmoid(x); },
    [](const Tensor& x, const Tensor& y) { return y * at::sigmoid(-x); },
    [](const Tensor&, const Tensor& y) { return 1 - 2 * y; },
};

inline constexpr Activation kTanh = {
    [](const Tensor& x) { return at::tanh(x); },
    [](const Tensor&, const Tensor& y) { return 1 - y * y; },
    [](const Tensor&, const Tensor& y) { return -2 * y; },
};

inline constexpr Activation kRelu = {
    [](const Tensor& x) { return at::relu(x); },
    [](const Tensor& x, const Tensor&) { return (x <= 0).logical_not().to(x.scalar_type()); },
    [](const Tensor& x, const Tensor&) { return at::zeros_like(x); },
};

inline constexpr Activation kElu = {
    [](const Tensor& x) { return at::elu(x); },
    [](const Tensor& x, const Tensor&) { return at::exp(at::clamp_max(x, 0)); },
    [](const Tensor& x, const Tensor&) { return (x <= 0).to(x.scalar_type()); },
};

}  // namespace treadle
