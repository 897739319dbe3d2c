// cosine on the device: the toolkit's accuracy. out = cos(x); backward: -grad * sin(x).
#pragma once

#include <cmath>

#include "kernels/dtype.h"

namespace treadle {

struct Cosine {
  static constexpr bool kHeavy = true;
  TREADLE_HD float operator()(float x) const { return cosf(x); }
  TREADLE_HD double operator()(double x) const { return cos(x); }
};

struct CosineBackward {
  static constexpr bool kHeavy = true;
  TREADLE_HD float operator()(float grad, float x) const { return -grad * sinf(x); }
  TREADLE_HD double operator()(double grad, double x) const { return -grad * sin(x); }
};

}  // namespace treadle
