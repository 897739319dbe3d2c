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

  static TREADLE_HD Gradients backward(const acc (&g)[kGates], acc new_cell, acc grad_h,
                                       acc grad_cell) {
    const auto grad =
        LltmCell<acc>::template backward<true>(g[0], g[1], g[2], new_cell, grad_h, grad_cell);
    return {{grad.g0, grad.g1, grad.g2}, grad.old_cell};
  }
};

}  // namespace treadle::math
