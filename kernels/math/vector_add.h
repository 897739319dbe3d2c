// vector_add: out = a + alpha * b, with one fma where the hardware has it (CUDA, AVX2 and later).
// The portable CPU code rounds the product, like torch's portable code.
#pragma once

#include <cmath>

#include "kernels/common/dtype.h"

namespace treadle {

template <class acc_t>
TREADLE_HD acc_t multiply_add(acc_t x, acc_t y, acc_t z) {
  return x * y + z;
}
#if defined(__CUDACC__) || defined(__FMA__) || defined(__ARM_FEATURE_FMA)
TREADLE_HD float multiply_add(float x, float y, float z) { return fmaf(x, y, z); }
TREADLE_HD double multiply_add(double x, double y, double z) { return fma(x, y, z); }
#endif

template <class acc_t>
struct VectorAdd {
  acc_t alpha;

  TREADLE_HD acc_t operator()(acc_t a, acc_t b) const { return multiply_add(alpha, b, a); }
};

// One of the two arguments is a number, the other an element.
template <class acc_t>
struct VectorAddScalar {
  acc_t alpha, scalar;
  bool scalar_is_b;

  TREADLE_HD acc_t operator()(acc_t x) const {
    return scalar_is_b ? multiply_add(alpha, scalar, x) : multiply_add(alpha, x, scalar);
  }
};

}  // namespace treadle
