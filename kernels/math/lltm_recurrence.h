// The LLTM cell as the engine of recurrent layers takes its cells: gates in an array.
#pragma once

#include "kernels/math/lltm_cell.h"

namespace treadle::math {

template <class acc>
struct LltmRecurrence {
  static constexpr int kGates = 3;

  struct Gradients {
    acc gates[kGates], old_cell;
  };

  static TREADLE_HD auto forward(const acc (&g)[kGates], acc old_cell) {
    return LltmCell<acc>::forward(g[0], g[1], g[2], old_cell);
  }

  // A step as a map of the cell, new_cell = keep * old_cell + add: such maps can be put together
  // before old_cell is known.
  struct Link {
    acc keep, add;
  };

  static TREADLE_HD Link link(const acc (&g)[kGates]) {
    return {acc(1), LltmCell<acc>::added(g[0], g[2])};
  }

  using Slopes = typename LltmCell<acc>::Slopes;
  // Whether `slopes` looks at old_cell.
  static constexpr bool kReadsOldCell = false;

  static TREADLE_HD Slopes slopes(const acc (&g)[kGates], acc, acc new_cell) {
    return LltmCell<acc>::slopes(g[0], g[1], g[2], new_cell);
  }

  static TREADLE_HD Gradients backward(const Slopes& slopes, acc grad_h, acc grad_cell) {
    const auto grad = LltmCell<acc>::template backward<true>(slopes, grad_h, grad_cell);
    return {{grad.g0, grad.g1, grad.g2}, grad.old_cell};
  }

  static TREADLE_HD Gradients backward(const acc (&g)[kGates], acc new_cell, acc grad_h,
                                       acc grad_cell) {
    return backward(slopes(g, new_cell, new_cell), grad_h, grad_cell);
  }
};

// For states that are rounded to a half type, forward: the device's tanh errs by about 1e-5 of
// its value, of which float16 keeps 5e-4, and takes a third of the time between two steps.
template <class acc>
struct LltmRecurrenceOfHalves : LltmRecurrence<acc> {
  static TREADLE_HD auto forward(const acc (&g)[3], acc old_cell) {
    return LltmCell<acc>::forward_of_halves(g[0], g[1], g[2], old_cell);
  }
};

}  // namespace treadle::math
