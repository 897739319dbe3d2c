// sine on the device: the toolkit's accuracy. out = sin(x); backward: grad * cos(x).
#pragma once

#include <cmath>

#include "kernels/dtype.h"

namespace treadle {

struct Sine {
  static constexpr bool kHeavy = true;
  TREADLE_HD float operator()(float x) const { return sinf(x); }
  TREADLE_HD double operator()(double x) const { return sin(x); }
};

struct SineBackward {
  static constexpr bool kHeavy = true;
  TREADLE_HD float operator()(float grad, float x) const { return grad * cosf(x); }
  TREADLE_HD double operator()(double grad, double x) const { return grad * cos(x); }
};

}  // namespace treadle
