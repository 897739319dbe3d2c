// The cell of torch.nn.RNN with nonlinearity="tanh".
#pragma once

#include "kernels/math/rnn.h"

namespace treadle::math {

// The `Kind` with which the launchers are instantiated (kernels/recurrent/cell_launchers.h).
struct RnnTanh {
  template <class acc>
  using Cell = RnnRecurrence<acc, TanhActivation>;
  // The cell of the forward pass if h is stored in a half type.
  template <class acc>
  using HalfCell = RnnRecurrenceOfHalves<acc, TanhActivation>;
};

}  // namespace treadle::math
