// The pointwise part of a GRU cell for one hidden unit, and its backward pass. g1 and g2 are the
// gates r and z before activation. The candidate n has two parts, from h (g0) and from the input
// (g3). As in torch.nn.GRU, the reset gate r multiplies only h's part:
//   r = sigmoid(g1), z = sigmoid(g2), n = tanh(g3 + r g0); new_h = (1 - z) n + z old_h
// h W_hh^T is added to the first three gates and x W_ih^T to the last three, so that the gates of
// each product are adjacent. The cell state is h itself before rounding to its dtype. Twin in plain
// PyTorch: treadle.reference.gru_cell.
#pragma once

#include "kernels/math/activations.h"
#include "kernels/math/h_bound.h"

namespace treadle::math {

// The interface for the kernels of recurrent layers (lltm.h).
template <class acc>
struct GruRecurrence {
  static constexpr int kGates = 4, kInputGates = 3, kStateGates = 3;
  static constexpr int kCParts = 1;
  static constexpr HBound kHBound = HBound::kFirst;
  // The order of torch's W_hh is r, z, n.
  static constexpr TREADLE_HD int weight_block(int gate) { return (gate + 2) % 3; }

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
    const SigmoidPair<acc> z = sigmoid_pair(g[2]);
    return {z.value, z.complement * tanh(g[3] + sigmoid(g[1]).value() * g[0]).value()};
  }

  static TREADLE_HD acc next(const acc (&g)[kGates], acc old_cell) {
    const Link step = link(g);
    return step.keep * old_cell + step.add;
  }

  static TREADLE_HD acc output(const acc (&)[kGates], acc new_cell) { return new_cell; }

  static TREADLE_HD State forward(const acc (&g)[kGates], acc old_cell) {
    const acc h = next(g, old_cell);
    return {h, h};
  }

  // Factors that the backward pass can compute before the gradient of h arrives.
  struct Slopes {
    SigmoidPair<acc> r, z;
    TanhPair<acc> n;
    acc of_h, old_cell;
  };

  static TREADLE_HD Slopes slopes(const acc (&g)[kGates], acc old_cell) {
    const SigmoidPair<acc> r = sigmoid_pair(g[1]);
    return {r, sigmoid_pair(g[2]), tanh_pair(g[3] + r.value * g[0]), g[0], old_cell};
  }

  static constexpr bool kReadsNewCell = false;
  static TREADLE_HD Slopes slopes(const acc (&g)[kGates], acc old_cell, acc) {
    return slopes(g, old_cell);
  }

  static TREADLE_HD Gradients backward(const Slopes& s, acc grad_h, acc grad_cell) {
    const acc grad = grad_h + grad_cell;
    const acc grad_n = grad * s.z.complement * slope(s.n);
    const acc grad_z = grad * (s.old_cell - s.n.value) * slope(s.z);
    const acc grad_r = grad_n * s.of_h * slope(s.r);
    return {{grad_n * s.r.value, grad_r, grad_z, grad_n}, grad * s.z.value};
  }

  static TREADLE_HD Gradients backward(const acc (&g)[kGates], acc old_cell, acc grad_h,
                                       acc grad_cell) {
    return backward(slopes(g, old_cell), grad_h, grad_cell);
  }
};

// Forward for states that are rounded to a half type. The sigmoids are cheaper, but tanh is the
// accurate one, because the errors of a cheaper tanh would accumulate in h.
template <class acc>
struct GruRecurrenceOfHalves : GruRecurrence<acc> {
  static TREADLE_HD auto forward(const acc (&g)[4], acc old_cell) {
    const acc n = tanh(g[3] + sigmoid_of_halves(g[1]) * g[0]).value();
    const acc h = sigmoid_of_halves(g[2]) * old_cell + sigmoid_of_halves(-g[2]) * n;
    return typename GruRecurrence<acc>::State{h, h};
  }
};

// The `Kind` with which the launchers are instantiated (kernels/recurrent/cell_launchers.h).
struct Gru {
  template <class acc>
  using Cell = GruRecurrence<acc>;
  template <class acc>
  using HalfCell = GruRecurrenceOfHalves<acc>;
};

}  // namespace treadle::math
