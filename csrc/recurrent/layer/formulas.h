// The cells composed of ATen ops, for derivatives that have no fused kernels: tangents and second
// derivatives. A cell defines a step and the gradients of a step, both as functions of Duals. The
// tangents of forward's results are the JVP, and the tangents of backward's results are second
// derivatives. These are symmetric, so the VJP of a backward op is computed in the same way, with
// its cotangents in place of tangents.
#pragma once

#include <functional>
#include <vector>

#include "kernels/recurrent/cell_info.h"
#include "recurrent/layer/dual.h"

namespace treadle {

// Gates before activation, in the order of cell_info.h; [..., H] each.
using Gates = std::vector<Dual>;

struct CellStates {
  Dual h, c;
};

struct CellGrads {
  Gates gates;
  Dual old_c;
};

struct CellFormula {
  std::function<CellStates(const Gates& gates, const Dual& old_c)> forward;
  // grad_h and grad_c are the gradients of forward's results.
  std::function<CellGrads(const Gates& gates, const Dual& old_c, const Dual& grad_h,
                          const Dual& grad_c)>
      backward;
};

// ---- the cells

inline const CellFormula kLltm = {
    [](const Gates& g, const Dual& old_c) -> CellStates {
      const Dual c = old_c + kSigmoid(g[0]) * kElu(g[2]);
      return {kSigmoid(g[1]) * kTanh(c), c};
    },
    [](const Gates& g, const Dual& old_c, const Dual& grad_h, const Dual& grad_c) -> CellGrads {
      const auto [i, di] = kSigmoid.with_slope(g[0]);
      const auto [o, dO] = kSigmoid.with_slope(g[1]);
      const auto [z, dz] = kElu.with_slope(g[2]);
      const auto [tanh_c, dtanh_c] = kTanh.with_slope(old_c + i * z);
      const Dual of_c = grad_c + grad_h * o * dtanh_c;
      return {{of_c * z * di, grad_h * tanh_c * dO, of_c * i * dz}, of_c};
    },
};

inline const CellFormula kLstm = {
    [](const Gates& g, const Dual& old_c) -> CellStates {
      const Dual c = kSigmoid(g[1]) * old_c + kSigmoid(g[0]) * kTanh(g[2]);
      return {kSigmoid(g[3]) * kTanh(c), c};
    },
    [](const Gates& g, const Dual& old_c, const Dual& grad_h, const Dual& grad_c) -> CellGrads {
      const auto [i, di] = kSigmoid.with_slope(g[0]);
      const auto [f, df] = kSigmoid.with_slope(g[1]);
      const auto [a, da] = kTanh.with_slope(g[2]);
      const auto [o, dO] = kSigmoid.with_slope(g[3]);
      const auto [tanh_c, dtanh_c] = kTanh.with_slope(f * old_c + i * a);
      const Dual of_c = grad_c + grad_h * o * dtanh_c;
      return {{of_c * a * di, of_c * old_c * df, of_c * i * da, grad_h * tanh_c * dO}, of_c * f};
    },
};

// In a GRU and an RNN, the state c is h before h is rounded. An RNN does not read c.
inline const CellFormula kGru = {
    [](const Gates& g, const Dual& old_h) -> CellStates {
      const Dual n = kTanh(g[3] + kSigmoid(g[1]) * g[0]);
      const Dual h = n + kSigmoid(g[2]) * (old_h - n);
      return {h, h};
    },
    [](const Gates& g, const Dual& old_h, const Dual& grad_h, const Dual& grad_c) -> CellGrads {
      const auto [r, dr] = kSigmoid.with_slope(g[1]);
      const auto [z, dz] = kSigmoid.with_slope(g[2]);
      const auto [n, dn] = kTanh.with_slope(g[3] + r * g[0]);
      const Dual grad = grad_h + grad_c, of_old_h = grad * z;
      const Dual of_n_i = (grad - of_old_h) * dn;
      return {{of_n_i * r, of_n_i * g[0] * dr, grad * (old_h - n) * dz, of_n_i}, of_old_h};
    },
};

template <const Activation& activation>
inline const CellFormula kRnn = {
    [](const Gates& g, const Dual&) -> CellStates {
      const Dual h = activation(g[0]);
      return {h, h};
    },
    [](const Gates& g, const Dual&, const Dual& grad_h, const Dual& grad_c) -> CellGrads {
      return {{(grad_h + grad_c) * activation.with_slope(g[0]).second}, Dual()};
    },
};

// The formula of a registered cell, which recurrent/formula/evaluate.cpp evaluates.
const CellFormula& formula_of(CellKind cell);

inline const CellFormula& cell_formula(CellKind kind) {
  if (is_formula(kind)) return formula_of(kind);
  static const CellFormula* const formulas[] = {&kLltm, &kLstm, &kGru, &kRnn<kTanh>, &kRnn<kRelu>};
  return *formulas[static_cast<int>(kind)];
}

// ---- gates

// Splits gates into parts of H columns. at::split would return a single part if H is 0.
inline Gates gate_parts(const Dual& gates, int count, const c10::SymInt& hidden) {
  Gates parts;
  for (int k = 0; k < count; ++k) parts.push_back(columns(gates, hidden * k, hidden));
  return parts;
}

// Concatenates the gradients of the gates. Missing ones are zeros of the shape of their gate.
inline Dual join_gates(const Gates& grads, const Gates& gates) {
  std::vector<Tensor> values, tangents, models;
  for (size_t k = 0; k < gates.size(); ++k) {
    values.push_back(grads[k].value);
    tangents.push_back(grads[k].tangent);
    models.push_back(gates[k].value);
  }
  return {join(std::move(values), models), join(std::move(tangents), models)};
}

// Adds a bias, which is one row, to the gates. The tangent of the sum has the shape of the gates.
inline Dual add_bias(const Dual& gates, const Dual& bias) {
  const bool alone = bias.tangent.defined() && !gates.tangent.defined();
  return {plus(gates.value, bias.value),
          alone ? bias.tangent.expand_as(gates.value) : plus(gates.tangent, bias.tangent)};
}

// The dtype in which derivatives are computed.
inline ScalarType derivative_dtype(const Tensor& input) {
  return c10::isReducedFloatingType(input.scalar_type()) ? at::kFloat : input.scalar_type();
}

}  // namespace treadle
