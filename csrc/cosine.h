// cosine: its names, its torch twins and its second derivative, from which unary.h and
// unary_autograd.h make the op.
#pragma once

#include "dispatch.h"

namespace treadle {

struct CosineOp {
  static constexpr const char* kName = "cosine";
  static constexpr const char* kInplaceName = "cosine_";
  static constexpr const char* kBackwardName = "cosine_backward";
  static constexpr const char* kNode = "CosineBackward";
  static constexpr const char* kBackwardNode = "CosineBackwardBackward";

  static Tensor torch_twin(const Tensor& x);
  static void torch_twin_out(const Tensor& x, Tensor& out);
  static void torch_twin_inplace(Tensor& x);

  // t times the second derivative at x: -t * cos(x).
  static Tensor times_second(const Tensor& t, const Tensor& x);
};

}  // namespace treadle
