// sine and cosine: names and second derivatives. unary.h and unary_autograd.h make the ops of them.
#pragma once

#include "common/dispatch.h"

namespace treadle {

struct SineOp {
  static constexpr const char* kName = "sine";
  static constexpr const char* kInplaceName = "sine_";
  static constexpr const char* kBackwardName = "sine_backward";
  static constexpr const char* kNode = "SineBackward";
  static constexpr const char* kBackwardNode = "SineBackwardBackward";
  static constexpr bool kIntegers = false;

  static Tensor times_second(const Tensor& t, const Tensor& x);  // -t * sin(x)
};

struct CosineOp {
  static constexpr const char* kName = "cosine";
  static constexpr const char* kInplaceName = "cosine_";
  static constexpr const char* kBackwardName = "cosine_backward";
  static constexpr const char* kNode = "CosineBackward";
  static constexpr const char* kBackwardNode = "CosineBackwardBackward";
  static constexpr bool kIntegers = false;

  static Tensor times_second(const Tensor& t, const Tensor& x);  // -t * cos(x)
};

}  // namespace treadle
