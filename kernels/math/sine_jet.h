// A jet through y = sin(omega z), host and device. With s = sin(omega z) and c = cos(omega z):
//   value    y = s
//   first    y_i = omega c z_i
//   second   y_ii = omega c z_ii - omega^2 s z_i^2; of a Laplacian both terms are sums over i
// The backward pass has y_i and gets z_i = y_i / (omega c), so both passes take c from what is kept
// of the phase (math/sine_linear.h), and where that says 0, half of its unit instead. Then z_i is
// as accurate as y_i, wherever c is small. z_ii is not: it is multiplied anew.
#pragma once

#include "kernels/math/sine_linear.h"

namespace treadle::math {

namespace detail {

// Half the unit of a phase of 16 bits in turns; of a cosine in fixed point.
template <class T>
inline constexpr float kLeastCosine = 0x1.921fb6p-15f;
template <>
inline constexpr float kLeastCosine<float> = kUnit / 2;

}  // namespace detail

// The cosine that both passes take, never 0.
template <class T, bool kFar>
TREADLE_HD acc_t<T> jet_cosine(acc_t<T> y, typename SineLinear<T>::Phase phase) {
  const acc_t<T> c = SineLinear<T>::template wave<true, kFar>(y, phase);
  if constexpr (std::is_same_v<T, double>) {
    return c;
  } else {
    return select(c == 0, detail::kLeastCosine<T>, c);
  }
}

// d^k sin(omega z) / dz^k for k = 1, 2, 3.
template <class acc>
struct SineSlopes {
  acc first, second, third;

  TREADLE_HD SineSlopes(acc omega, acc sine, acc cosine)
      : first(omega * cosine), second(-(omega * omega) * sine), third(-(omega * omega) * first) {}
};

}  // namespace treadle::math
