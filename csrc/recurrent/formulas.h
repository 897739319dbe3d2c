// The LLTM cell in ATen ops, with first and second derivatives, for what no fused kernel does:
// tangents, and gradients of gradients. X = [old_h, input], G = X W^T + b, c = new c, i, o, z the
// activations of G, and i', i'' derivatives of them. With grad_h and grad_c of the results:
//   u = grad_c + grad_h o (1 - tanh(c)^2);  D = [u z i', grad_h tanh(c) o', u i z']
// are the gradients of the new c and of G; those of X, W, b and the old c are D W, D^T X, sum D, u.
// Tangents of G and of the old c give those of c, h, u and D: CellTangents. Second derivatives are
// symmetric, so that the vjp of the backward op is the same with its cotangents for tangents.
#pragma once

#include <array>

#include "common/tensors.h"

namespace treadle {

// The parts of gates [..., 3H]. A split would give one part where H is 0.
inline std::array<Tensor, 3> gate_parts(const Tensor& gates, const c10::SymInt& hidden) {
  return {columns(gates, 0, hidden), columns(gates, hidden, hidden),
          columns(gates, hidden * 2, hidden)};
}

// ---- the cell, in float at least

// The activations of one step, their slopes d* and second derivatives d2*.
struct CellValues {
  ScalarType dtype;
  c10::SymInt hidden, features;
  Tensor x, w, i, o, z, di, dO, dz, d2i, d2o, d2z, tanh_c, slope_c;

  CellValues(const Tensor& input, const Tensor& weights, const OptionalTensor& bias,
             const Tensor& old_h, const Tensor& old_c)
      : dtype(c10::isReducedFloatingType(input.scalar_type()) ? at::kFloat : input.scalar_type()),
        hidden(old_h.sym_size(-1)),
        features(input.sym_size(-1)) {
    x = at::cat({old_h, input}, -1).to(dtype);
    w = weights.to(dtype);
    Tensor gates = at::matmul(x, w.mT());
    if (bias.has_value() && bias->defined()) gates = gates + row(bias->to(dtype), input);
    const auto g = gate_parts(gates, hidden);
    i = at::sigmoid(g[0]);
    o = at::sigmoid(g[1]);
    z = at::elu(g[2]);
    di = i * at::sigmoid(-g[0]);
    dO = o * at::sigmoid(-g[1]);
    dz = at::exp(at::clamp_max(g[2], 0));
    d2i = di * (1 - 2 * i);
    d2o = dO * (1 - 2 * o);
    d2z = at::where(g[2] > 0, at::zeros_like(dz), dz);
    tanh_c = at::tanh(old_c.to(dtype) + z * i);
    slope_c = 1 - tanh_c * tanh_c;
  }

  // [3H] or [1, 3H] as a row that broadcasts over B, also behind a leading N.
  static Tensor row(const Tensor& bias, const Tensor& input) {
    return bias.dim() == input.dim() ? bias : bias.unsqueeze(-2);
  }

  // The tangent of the gates, from those of X, W and b.
  Tensor gates_tangent(const Tensor& tx, const Tensor& tw, const Tensor& tb,
                       const Tensor& input) const {
    const Tensor found = plus(matrix_product(tx, w.mT()), matrix_product(x, transposed(tw)));
    if (!tb.defined()) return found;
    const Tensor bias = row(tb, input);
    return found.defined() ? found + bias : bias + at::zeros_like(at::matmul(x, w.mT()));
  }
};

// The gradients of the c that the step leaves, which is also that of the old c, and of the gates.
struct CellGrads {
  Tensor c, gates;

  CellGrads(const CellValues& v, const Tensor& grad_h, const Tensor& grad_c) {
    c = plus(grad_c, times(grad_h, v.o * v.slope_c));
    gates = at::cat(
        {c * v.z * v.di, grad_h.defined() ? grad_h * v.tanh_c * v.dO : at::zeros_like(v.tanh_c),
         c * v.i * v.dz},
        -1);
  }
};

// The tangents of the results, from those of the gates and of the old c; undefined where zero.
struct CellTangents {
  Tensor c, h;
  Tensor grad_c, grad_gates;  // of CellGrads, once set_grads is called

  CellTangents(const CellValues& v, const Tensor& gates_tangent, const Tensor& c_tangent) {
    g = gate_parts(gates_tangent, v.hidden);
    c = sum(c_tangent, times(g[0], v.z * v.di), times(g[2], v.i * v.dz));
    h = sum(times(c, v.slope_c * v.o), times(g[1], v.tanh_c * v.dO));
  }

  void set_grads(const CellValues& v, const CellGrads& grads, const Tensor& grad_h,
                 const Tensor& grad_h_tangent, const Tensor& grad_c_tangent) {
    grad_c = sum(grad_c_tangent, times(grad_h_tangent, v.o * v.slope_c),
                 times(times(grad_h, g[1]), v.dO * v.slope_c),
                 times(times(grad_h, c), -2 * v.o * v.tanh_c * v.slope_c));
    const Tensor of_i = sum(times(grad_c, v.z * v.di), times(times(grads.c, g[2]), v.dz * v.di),
                            times(times(grads.c, g[0]), v.z * v.d2i));
    const Tensor of_o =
        sum(times(grad_h_tangent, v.tanh_c * v.dO), times(times(grad_h, c), v.slope_c * v.dO),
            times(times(grad_h, g[1]), v.tanh_c * v.d2o));
    const Tensor of_z = sum(times(grad_c, v.i * v.dz), times(times(grads.c, g[0]), v.di * v.dz),
                            times(times(grads.c, g[2]), v.i * v.d2z));
    const auto whole = [&](const Tensor& t) { return t.defined() ? t : at::zeros_like(v.tanh_c); };
    if (of_i.defined() || of_o.defined() || of_z.defined()) {
      grad_gates = at::cat({whole(of_i), whole(of_o), whole(of_z)}, -1);
    }
  }

 private:
  std::array<Tensor, 3> g;  // tangents of the gates
};

// The gradient of the bias.
inline Tensor sum_rows(const Tensor& grad_gates, const Tensor& bias) {
  return grad_gates.defined() && bias.defined()
             ? grad_gates.sum(-2).reshape_symint(bias.sym_sizes())
             : Tensor();
}

}  // namespace treadle
