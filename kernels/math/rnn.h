// The pointwise part of torch.nn.RNN's cell for one hidden unit, and its backward pass. The cell
// has one gate g, and new_h = activation(g). As in a GRU, the cell state is h before rounding to
// its dtype, but no step reads the cell state. Twin in plain PyTorch: treadle.reference.rnn_cell.
#pragma once

#include "kernels/math/activations.h"
#include "kernels/math/h_bound.h"

namespace treadle::math {

struct TanhActivation {
  static constexpr HBound kHBound = HBound::kOne;

  template <class acc>
  static TREADLE_HD acc value(acc g) {
    return tanh(g).value();
  }
  // For results that are rounded to a half type.
  template <class acc>
  static TREADLE_HD acc value_of_halves(acc g) {
    return tanh_of_halves(g);
  }
  template <class acc>
  static TREADLE_HD acc slope(acc g) {
    return math::slope(tanh_pair(g));
  }
  template <class acc>
  static TREADLE_HD acc backward(acc slope, acc grad) {
    return grad * slope;
  }
};

// NaN stays NaN. Where the result is 0, the gradient is 0 even if the incoming one is infinite.
struct ReluActivation {
  static constexpr HBound kHBound = HBound::kNone;

  template <class acc>
  static TREADLE_HD acc value(acc g) {
    return select(g <= acc(0), acc(0), g);
  }
  template <class acc>
  static TREADLE_HD acc value_of_halves(acc g) {
    return value(g);
  }
  template <class acc>
  static TREADLE_HD acc slope(acc g) {
    return select(g <= acc(0), acc(0), acc(1));
  }
  template <class acc>
  static TREADLE_HD acc backward(acc slope, acc grad) {
    return select(slope > acc(0), grad, acc(0));
  }
};

// The interface for the kernels of recurrent layers (cells/lltm.h).
template <class acc, class Activation>
struct RnnRecurrence {
  static constexpr int kGates = 1, kInputGates = 1, kStateGates = 1;
  static constexpr int kCParts = 1;
  static constexpr HBound kHBound = Activation::kHBound;
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

  static TREADLE_HD acc next(const acc (&g)[kGates], acc) { return Activation::value(g[0]); }

  static TREADLE_HD Link link(const acc (&g)[kGates]) { return {acc(0), next(g, acc(0))}; }

  static TREADLE_HD acc output(const acc (&)[kGates], acc new_cell) { return new_cell; }

  static TREADLE_HD State forward(const acc (&g)[kGates], acc old_cell) {
    const acc h = next(g, old_cell);
    return {h, h};
  }

  using Slopes = acc;

  static TREADLE_HD Slopes slopes(const acc (&g)[kGates], acc) { return Activation::slope(g[0]); }

  static constexpr bool kReadsNewCell = false;
  static TREADLE_HD Slopes slopes(const acc (&g)[kGates], acc old_cell, acc) {
    return slopes(g, old_cell);
  }

  static TREADLE_HD Gradients backward(const Slopes& slopes, acc grad_h, acc grad_cell) {
    return {{Activation::backward(slopes, grad_h + grad_cell)}, acc(0)};
  }

  static TREADLE_HD Gradients backward(const acc (&g)[kGates], acc old_cell, acc grad_h,
                                       acc grad_cell) {
    return backward(slopes(g, old_cell), grad_h, grad_cell);
  }
};

// Forward for states that are rounded to a half type.
template <class acc, class Activation>
struct RnnRecurrenceOfHalves : RnnRecurrence<acc, Activation> {
  static TREADLE_HD auto forward(const acc (&g)[1], acc) {
    const acc h = Activation::value_of_halves(g[0]);
    return typename RnnRecurrence<acc, Activation>::State{h, h};
  }
};

}  // namespace treadle::math
