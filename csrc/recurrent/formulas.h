// The LLTM cell in ATen ops, first and second derivatives, for what no fused kernel does: tangents
// and gradients of gradients.
//
// With X = [old_h, input], G = X W^T + b, c' = new_cell, t = tanh(c'), and g', g'' derivatives of a
// gate:   u = grad_cell + grad_h o (1 - t^2);   D = [u z i', grad_h t o', u i z']
// are the gradients of c' and of the gates; those of X, W, b, old_cell are D W, D^T X, sum D, u.
// A tangent P of the gates and one of old_cell move c', h', u and D, which is `Moved` below. The
// second derivatives are symmetric, so that the vector-Jacobian product of the backward op is the
// same thing with its cotangents in the places of the inputs' tangents.
#pragma once

#include <array>

#include "autograd.h"

namespace treadle {

// ---- sums and products in which an undefined tensor is zero

inline OptionalTensor optional(const Tensor& t) {
  return t.defined() ? OptionalTensor(t) : std::nullopt;
}

inline Tensor value_or_undefined(const OptionalTensor& t) { return t.value_or(Tensor()); }

inline bool moves(const Tensor& t) { return t.defined() && isFwGradDefined(t); }

inline Tensor times(const Tensor& a, const Tensor& b) {
  return a.defined() && b.defined() ? a * b : Tensor();
}

inline Tensor matrix_product(const Tensor& a, const Tensor& b) {
  return a.defined() && b.defined() ? at::matmul(a, b) : Tensor();
}

inline Tensor transposed(const Tensor& t) { return t.defined() ? t.mT() : t; }

inline Tensor cast(const Tensor& t, ScalarType dtype) { return t.defined() ? t.to(dtype) : t; }

template <class... T>
Tensor sum(const T&... terms) {
  Tensor total;
  (..., (total = plus(total, terms)));
  return total;
}

inline Tensor join(const Tensor& a, const Tensor& b, const Tensor& like_a, const Tensor& like_b) {
  if (!a.defined() && !b.defined()) return Tensor();
  return at::cat(
      {a.defined() ? a : at::zeros_like(like_a), b.defined() ? b : at::zeros_like(like_b)}, -1);
}

inline Tensor columns(const Tensor& t, const c10::SymInt& begin, const c10::SymInt& size) {
  return t.defined() ? t.narrow_symint(-1, begin, size) : t;
}

// The parts of gates [..., 3H]. A split would give one part where H is 0.
inline std::array<Tensor, 3> gate_parts(const Tensor& gates, const c10::SymInt& hidden) {
  return {columns(gates, 0, hidden), columns(gates, hidden, hidden),
          columns(gates, hidden * 2, hidden)};
}

// ---- the cell in ATen ops, in float at least

struct Values {
  ScalarType dtype;
  c10::SymInt hidden, features;
  Tensor x, w, i, o, z, di, dO, dz, d2i, d2o, d2z, t, slope_t;

  Values(const Tensor& input, const Tensor& weights, const OptionalTensor& bias,
         const Tensor& old_h, const Tensor& old_cell)
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
    t = at::tanh(old_cell.to(dtype) + z * i);
    slope_t = 1 - t * t;
  }

  // [3H] or [1, 3H] as a row that broadcasts over B, also behind a leading N.
  static Tensor row(const Tensor& bias, const Tensor& input) {
    return bias.dim() == input.dim() ? bias : bias.unsqueeze(-2);
  }

  // The tangent of the gates, from those of X, W and b.
  Tensor gates_tangent(const Tensor& tx, const Tensor& tw, const Tensor& tb,
                       const Tensor& input) const {
    const Tensor moved = plus(matrix_product(tx, w.mT()), matrix_product(x, transposed(tw)));
    if (!tb.defined()) return moved;
    const Tensor bias = row(tb, input);
    return moved.defined() ? moved + bias : bias + at::zeros_like(at::matmul(x, w.mT()));
  }
};

// First derivatives with respect to gates and state, for given grad_h and grad_cell.
struct First {
  Tensor u, d;

  First(const Values& v, const Tensor& grad_h, const Tensor& grad_cell) {
    u = plus(grad_cell, times(grad_h, v.o * v.slope_t));
    d = at::cat({u * v.z * v.di, grad_h.defined() ? grad_h * v.t * v.dO : at::zeros_like(v.t),
                 u * v.i * v.dz},
                -1);
  }
};

// What moves with tangents p of the gates and of old_cell; undefined where nothing does.
struct Moved {
  Tensor new_cell, new_h;  // tangents
  Tensor u, d;             // those of First, filled by `second`

  Moved(const Values& v, const Tensor& gates_tangent, const Tensor& cell_tangent) {
    p = gate_parts(gates_tangent, v.hidden);
    new_cell = sum(cell_tangent, times(p[0], v.z * v.di), times(p[2], v.i * v.dz));
    new_h = sum(times(new_cell, v.slope_t * v.o), times(p[1], v.t * v.dO));
  }

  void second(const Values& v, const First& first, const Tensor& grad_h,
              const Tensor& grad_h_tangent, const Tensor& grad_cell_tangent) {
    u = sum(grad_cell_tangent, times(grad_h_tangent, v.o * v.slope_t),
            times(times(grad_h, p[1]), v.dO * v.slope_t),
            times(times(grad_h, new_cell), -2 * v.o * v.t * v.slope_t));
    const Tensor d0 = sum(times(u, v.z * v.di), times(times(first.u, p[2]), v.dz * v.di),
                          times(times(first.u, p[0]), v.z * v.d2i));
    const Tensor d1 =
        sum(times(grad_h_tangent, v.t * v.dO), times(times(grad_h, new_cell), v.slope_t * v.dO),
            times(times(grad_h, p[1]), v.t * v.d2o));
    const Tensor d2 = sum(times(u, v.i * v.dz), times(times(first.u, p[0]), v.di * v.dz),
                          times(times(first.u, p[2]), v.i * v.d2z));
    const auto whole = [&](const Tensor& t) { return t.defined() ? t : at::zeros_like(v.t); };
    if (d0.defined() || d1.defined() || d2.defined()) {
      d = at::cat({whole(d0), whole(d1), whole(d2)}, -1);
    }
  }

 private:
  std::array<Tensor, 3> p;  // tangents of the gates
};

inline Tensor sum_rows(const Tensor& d, const Tensor& bias) {
  return d.defined() && bias.defined() ? d.sum(-2).reshape_symint(bias.sym_sizes()) : Tensor();
}

}  // namespace treadle
