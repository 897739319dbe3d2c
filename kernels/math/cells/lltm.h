// The LLTM cell's pointwise part, for one hidden unit, with g = gates [3]:
//   i = sigmoid(g0), o = sigmoid(g1), z = elu(g2); new_cell = old_cell + z i; new_h =
//   tanh(new_cell) o
// and its backward. Twin in plain PyTorch: treadle.reference.lltm_cell.
// state_t: the dtype that the composition computes the state in (old_cell's); acc_t: ours, float at
// least. In a half state the composition rounds gates to exactly 0 or 1, and 0 * inf is NaN: so
// that infinities give NaN where it does, they meet gates rounded like that. Finite values never
// do.
#pragma once

#include "kernels/math/activations.h"

namespace treadle::math {

// What the composition's gates round to: 0 up to `zero`, 1 from `sigmoid_one` or `tanh_one`
// below 1.
template <class state_t>
struct GateRounding {
  static constexpr double zero = 0;
  static constexpr double sigmoid_one = sizeof(state_t) == 4 ? 0x1p-24 : 0x1p-53;
  static constexpr double tanh_one = sigmoid_one / 2;
};

template <>
struct GateRounding<Half> {
  static constexpr double zero = 0x1p-25, sigmoid_one = 0x1p-12, tanh_one = 0x1p-12;
};

template <>
struct GateRounding<BFloat16> {
  static constexpr double zero = 0, sigmoid_one = 0x1p-9, tanh_one = 0x1p-9;
};

template <class state_t>
struct LltmCell {
  using T = treadle::acc_t<state_t>;
  using Rounding = GateRounding<state_t>;

  struct State {
    T new_h, new_cell;
  };

  struct Gradients {
    T g0, g1, g2, old_cell;
  };

  // What a step adds to the cell.
  static TREADLE_HD T added(T g0, T g2) { return through_gate(elu(g2).value, sigmoid(g0).value()); }

  static TREADLE_HD State forward(T g0, T g1, T g2, T old_cell) {
    const T new_cell = old_cell + added(g0, g2);
    const Fraction<T> t = tanh(new_cell), o = sigmoid(g1);
    return {divide(t.numerator * o.numerator, t.denominator * o.denominator), new_cell};
  }

  // As forward, where new_h is rounded to a half type.
  static TREADLE_HD State forward_of_halves(T g0, T g1, T g2, T old_cell) {
    const T new_cell = old_cell + added(g0, g2);
    return {tanh_of_halves(new_cell) * sigmoid(g1).value(), new_cell};
  }

  // What the gradients are multiplied by, which does not depend on them.
  struct Slopes {
    SigmoidPair<T> i, o;
    Elu<T> z;
    TanhPair<T> t;
  };

  static TREADLE_HD Slopes slopes(T g0, T g1, T g2, T new_cell) {
    return {sigmoid_pair(g0), sigmoid_pair(g1), elu(g2), tanh_pair(new_cell)};
  }

  // has_grad_h = false: new_h is unused, and grad_h is not looked at.
  template <bool has_grad_h>
  static TREADLE_HD Gradients backward(const Slopes& s, T grad_h, T grad_cell) {
    T grad_g1 = T(0);
    if constexpr (has_grad_h) {
      grad_g1 = through_sigmoid(grad_h * s.t.value, s.o);
      grad_cell = grad_cell + through_tanh(through_gate(grad_h, s.o.value), s.t);
    }
    return {through_sigmoid(grad_cell * s.z.value, s.i), grad_g1,
            through_gate(grad_cell, s.i.value) * s.z.slope, grad_cell};
  }

  template <bool has_grad_h>
  static TREADLE_HD Gradients backward(T g0, T g1, T g2, T new_cell, T grad_h, T grad_cell) {
    return backward<has_grad_h>(slopes(g0, g1, g2, new_cell), grad_h, grad_cell);
  }

 private:
  static TREADLE_HD T through_gate(T x, T gate) {
    if constexpr (Rounding::zero > 0) {
      gate = select(is_inf(x) & (gate <= T(Rounding::zero)), T(0), gate);
    }
    return x * gate;
  }

  // The order of the products is autograd's: where they overflow, so does it.
  static TREADLE_HD T through_sigmoid(T grad, SigmoidPair<T> s) {
    const bool closed = is_inf(grad) & (s.complement <= T(Rounding::sigmoid_one));
    return through_gate(grad * select(closed, T(0), s.complement), s.value);
  }

  static TREADLE_HD T through_tanh(T grad, TanhPair<T> t) {
    const bool flat = is_inf(grad) & (t.complement <= T(Rounding::tanh_one));
    return grad * select(flat, T(0), t.complement * (T(2) - t.complement));
  }
};

}  // namespace treadle::math
