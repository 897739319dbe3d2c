// sine: its names, its torch twins and its second derivative, from which unary.h and
// unary_autograd.h make the op.
#pragma once

#include "dispatch.h"

namespace treadle {

struct SineOp {
  static constexpr const char* kName = "sine";
  static constexpr const char* kInplaceName = "sine_";
  static constexpr const char* kBackwardName = "sine_backward";
  static constexpr const char* kNode = "SineBackward";
  static constexpr const char* kBackwardNode = "SineBackwardBackward";

  static Tensor torch_twin(const Tensor& x);
  static void torch_twin_out(const Tensor& x, Tensor& out);
  static void torch_twin_inplace(Tensor& x);

  // t times the second derivative at x: -t * sin(x).
  static Tensor times_second(const Tensor& t, const Tensor& x);
};

}  // namespace treadle
