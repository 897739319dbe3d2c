// The state c of one hidden unit. It is one number, or several numbers in cells with more than one
// state besides h. A cell's functor declares how many numbers (kCParts).
#pragma once

#include "kernels/common/dtype.h"

namespace treadle::math {

template <class acc, int count>
struct CParts {
  acc value[count];
};

template <class acc, int count>
struct CTypeOf {
  using type = CParts<acc, count>;
};
template <class acc>
struct CTypeOf<acc, 1> {
  using type = acc;
};

template <class acc, int count>
using CType = typename CTypeOf<acc, count>::type;

template <class C>
inline constexpr int kPartCount = 1;
template <class acc, int count>
inline constexpr int kPartCount<CParts<acc, count>> = count;

// Part k of c.
template <class acc>
TREADLE_HD acc& part(acc& c, int) {
  return c;
}
template <class acc, int count>
TREADLE_HD acc& part(CParts<acc, count>& c, int k) {
  return c.value[k];
}
template <class acc>
TREADLE_HD const acc& part(const acc& c, int) {
  return c;
}
template <class acc, int count>
TREADLE_HD const acc& part(const CParts<acc, count>& c, int k) {
  return c.value[k];
}

}  // namespace treadle::math
