// The pointwise part of an LLTM cell for one hidden unit with gates g [3], and its backward pass:
//   i = sigmoid(g0), o = sigmoid(g1), z = elu(g2); new_cell = old_cell + z i,
//   new_h = tanh(new_cell) o
// Twin in plain PyTorch: treadle.reference.lltm_cell. The twin computes the state in state_t, the
// dtype of old_cell. This code uses acc_t, which is at least float. If the state has a half type,
// the twin rounds some gates to exactly 0 or 1, and 0 * inf is NaN. So where a factor is infinite,
// this code rounds gates in the same way, and NaN appears in the same places. Where all factors are
// finite, gates are not rounded.
#pragma once

#include "kernels/math/activations.h"
#include "kernels/math/h_bound.h"

namespace treadle::math {

// The limits of rounding in the twin: gates up to `zero` round to 0, and gates within `sigmoid_one`
// or `tanh_one` of 1 round to 1.
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

  // z i, which a step adds to the cell state.
  static TREADLE_HD T added(T g0, T g2) { return through_gate(elu(g2).value, sigmoid(g0).value()); }

  static TREADLE_HD T output(T g1, T new_cell) {
    const Fraction<T> t = tanh(new_cell), o = sigmoid(g1);
    return divide(t.numerator * o.numerator, t.denominator * o.denominator);
  }

  static TREADLE_HD State forward(T g0, T g1, T g2, T old_cell) {
    const T new_cell = old_cell + added(g0, g2);
    return {output(g1, new_cell), new_cell};
  }

  // Like forward, with cheaper tanh and sigmoid, for a new_h that is rounded to a half type.
  static TREADLE_HD State forward_of_halves(T g0, T g1, T g2, T old_cell) {
    const T new_cell = old_cell + through_gate(elu(g2).value, sigmoid_of_halves(g0));
    return {tanh_of_halves(new_cell) * sigmoid_of_halves(g1), new_cell};
  }

  // Factors that the backward pass can compute before the gradients arrive.
  struct Slopes {
    SigmoidPair<T> i, o;
    Elu<T> z;
    TanhPair<T> t;
  };

  static TREADLE_HD Slopes slopes(T g0, T g1, T g2, T new_cell) {
    return {sigmoid_pair(g0), sigmoid_pair(g1), elu(g2), tanh_pair(new_cell)};
  }

  static TREADLE_HD Slopes slopes_from(T g0, T g1, T g2, T old_cell) {
    const SigmoidPair<T> i = sigmoid_pair(g0);
    const Elu<T> z = elu(g2);
    return {i, sigmoid_pair(g1), z, tanh_pair(old_cell + through_gate(z.value, i.value))};
  }

  // has_grad_h is false if nothing used new_h. Then grad_h is not read.
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

  // Multiplies in autograd's order, so that products overflow where autograd's do.
  static TREADLE_HD T through_sigmoid(T grad, SigmoidPair<T> s) {
    const bool closed = is_inf(grad) & (s.complement <= T(Rounding::sigmoid_one));
    return through_gate(grad * select(closed, T(0), s.complement), s.value);
  }

  static TREADLE_HD T through_tanh(T grad, TanhPair<T> t) {
    const bool flat = is_inf(grad) & (t.complement <= T(Rounding::tanh_one));
    return grad * select(flat, T(0), t.complement * (T(2) - t.complement));
  }
};

// The interface for the kernels of recurrent layers. Gates are an array: h W_hh^T is added to the
// first kStateGates, and x W_ih^T to the last kInputGates. W_hh consists of blocks of H rows; the
// block of gate g is weight_block(g).
template <class acc>
struct LltmRecurrence {
  static constexpr int kGates = 3, kInputGates = 3, kStateGates = 3;
  static constexpr int kCParts = 1;
  static constexpr HBound kHBound = HBound::kOne;
  static constexpr TREADLE_HD int weight_block(int gate) { return gate; }

  struct Gradients {
    acc gates[kGates], old_cell;
  };

  static TREADLE_HD acc next(const acc (&g)[kGates], acc old_cell) {
    return old_cell + LltmCell<acc>::added(g[0], g[2]);
  }

  static TREADLE_HD acc output(const acc (&g)[kGates], acc new_cell) {
    return LltmCell<acc>::output(g[1], new_cell);
  }

  static TREADLE_HD auto forward(const acc (&g)[kGates], acc old_cell) {
    return LltmCell<acc>::forward(g[0], g[1], g[2], old_cell);
  }

  // A step as an affine map of the state, new_cell = keep * old_cell + add. Maps can be composed
  // before old_cell is known.
  struct Link {
    acc keep, add;
  };

  static TREADLE_HD Link link(const acc (&g)[kGates]) {
    return {acc(1), LltmCell<acc>::added(g[0], g[2])};
  }

  using Slopes = typename LltmCell<acc>::Slopes;

  static TREADLE_HD Slopes slopes(const acc (&g)[kGates], acc old_cell) {
    return LltmCell<acc>::slopes_from(g[0], g[1], g[2], old_cell);
  }

  static constexpr bool kReadsNewCell = true;
  static TREADLE_HD Slopes slopes(const acc (&g)[kGates], acc, acc new_cell) {
    return LltmCell<acc>::slopes(g[0], g[1], g[2], new_cell);
  }

  static TREADLE_HD Gradients backward(const Slopes& slopes, acc grad_h, acc grad_cell) {
    const auto grad = LltmCell<acc>::template backward<true>(slopes, grad_h, grad_cell);
    return {{grad.g0, grad.g1, grad.g2}, grad.old_cell};
  }

  static TREADLE_HD Gradients backward(const acc (&g)[kGates], acc old_cell, acc grad_h,
                                       acc grad_cell) {
    return backward(slopes(g, old_cell), grad_h, grad_cell);
  }
};

// Forward for states that are rounded to a half type. The device's tanh has a relative error of
// about 1e-5, much less than float16's 5e-4. The accurate tanh would take a third of the time from
// one step to the next.
template <class acc>
struct LltmRecurrenceOfHalves : LltmRecurrence<acc> {
  static TREADLE_HD auto forward(const acc (&g)[3], acc old_cell) {
    return LltmCell<acc>::forward_of_halves(g[0], g[1], g[2], old_cell);
  }
};

// The `Kind` with which the launchers are instantiated (kernels/recurrent/cell_launchers.h).
struct Lltm {
  template <class acc>
  using Cell = LltmRecurrence<acc>;
  // The cell of the forward pass if h is stored in a half type.
  template <class acc>
  using HalfCell = LltmRecurrenceOfHalves<acc>;
};

}  // namespace treadle::math
