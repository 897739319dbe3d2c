// The pointwise part of an LSTM cell for one hidden unit, and its backward pass. Gates [4] have
// torch.nn.LSTM's order:
//   i = sigmoid(g0), f = sigmoid(g1), z = tanh(g2), o = sigmoid(g3); new_cell = f old_cell + i z,
//   new_h = o tanh(new_cell)
// Twin in plain PyTorch: treadle.reference.lstm_cell.
#pragma once

#include "kernels/math/activations.h"
#include "kernels/math/h_bound.h"

namespace treadle::math {

// The interface for the kernels of recurrent layers (lltm.h).
template <class acc>
struct LstmRecurrence {
  static constexpr int kGates = 4, kInputGates = 4, kStateGates = 4;
  static constexpr int kCParts = 1;
  static constexpr HBound kHBound = HBound::kOne;
  static constexpr TREADLE_HD int weight_block(int gate) { return gate; }

  struct State {
    acc new_h, new_cell;
  };

  struct Gradients {
    acc gates[kGates], old_cell;
  };

  struct Link {
    acc keep, add;
  };

  static TREADLE_HD Link link(const acc (&g)[kGates]) {
    const Fraction<acc> i = sigmoid(g[0]), z = tanh(g[2]);
    return {sigmoid(g[1]).value(),
            divide(i.numerator * z.numerator, i.denominator * z.denominator)};
  }

  static TREADLE_HD acc next(const acc (&g)[kGates], acc old_cell) {
    const Link step = link(g);
    return step.keep * old_cell + step.add;
  }

  static TREADLE_HD acc output(const acc (&g)[kGates], acc new_cell) {
    const Fraction<acc> t = tanh(new_cell), o = sigmoid(g[3]);
    return divide(t.numerator * o.numerator, t.denominator * o.denominator);
  }

  static TREADLE_HD State forward(const acc (&g)[kGates], acc old_cell) {
    const acc new_cell = next(g, old_cell);
    return {output(g, new_cell), new_cell};
  }

  // Factors that the backward pass can compute before the gradient of h arrives.
  struct Slopes {
    SigmoidPair<acc> i, f, o;
    TanhPair<acc> z, t;
    acc old_cell;
  };

  static TREADLE_HD Slopes slopes(const acc (&g)[kGates], acc old_cell) {
    const SigmoidPair<acc> i = sigmoid_pair(g[0]), f = sigmoid_pair(g[1]);
    const TanhPair<acc> z = tanh_pair(g[2]);
    const acc new_cell = f.value * old_cell + i.value * z.value;
    return {i, f, sigmoid_pair(g[3]), z, tanh_pair(new_cell), old_cell};
  }

  static constexpr bool kReadsNewCell = true;
  static TREADLE_HD Slopes slopes(const acc (&g)[kGates], acc old_cell, acc new_cell) {
    return {sigmoid_pair(g[0]), sigmoid_pair(g[1]),  sigmoid_pair(g[3]),
            tanh_pair(g[2]),    tanh_pair(new_cell), old_cell};
  }

  static TREADLE_HD Gradients backward(const Slopes& s, acc grad_h, acc grad_cell) {
    const acc grad = grad_cell + grad_h * s.o.value * slope(s.t);
    return {{grad * s.z.value * slope(s.i), grad * s.old_cell * slope(s.f),
             grad * s.i.value * slope(s.z), grad_h * s.t.value * slope(s.o)},
            grad * s.f.value};
  }

  static TREADLE_HD Gradients backward(const acc (&g)[kGates], acc old_cell, acc grad_h,
                                       acc grad_cell) {
    return backward(slopes(g, old_cell), grad_h, grad_cell);
  }
};

// Forward for states that are rounded to a half type. As in LLTM, the tanh of c and the sigmoids
// are the cheaper ones.
template <class acc>
struct LstmRecurrenceOfHalves : LstmRecurrence<acc> {
  static TREADLE_HD auto forward(const acc (&g)[4], acc old_cell) {
    const acc new_cell =
        sigmoid_of_halves(g[1]) * old_cell + sigmoid_of_halves(g[0]) * tanh(g[2]).value();
    return typename LstmRecurrence<acc>::State{tanh_of_halves(new_cell) * sigmoid_of_halves(g[3]),
                                               new_cell};
  }
};

// The `Kind` with which the launchers are instantiated (kernels/recurrent/cell_launchers.h).
struct Lstm {
  template <class acc>
  using Cell = LstmRecurrence<acc>;
  // The cell of the forward pass if h is stored in a half type.
  template <class acc>
  using HalfCell = LstmRecurrenceOfHalves<acc>;
};

}  // namespace treadle::math
