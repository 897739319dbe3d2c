// Propagates a jet (a value with its first and second derivatives) through y = sin(omega z), on
// host and device. With s = sin(omega z) and c = cos(omega z):
//   value    y = s
//   first    y_i = omega c z_i
//   second   y_ii = omega c z_ii - omega^2 s z_i^2; for a Laplacian, both terms are sums over i
// The backward pass recovers z_i = y_i / (omega c) from y_i. So both passes decode c from the saved
// phase (math/sine_linear.h). Where |c| is less than kLeastCosine (half a unit of the phase), both
// use kLeastCosine instead. Then z_i is as accurate as y_i even where c is small. z_ii cannot be
// recovered as accurately, so another matrix product recomputes it.
#pragma once

#include "kernels/math/sine_linear.h"

namespace treadle::math {

namespace detail {

// Half a unit of a 16-bit phase, in radians; for float, half a unit of the fixed-point cosine.
template <class T>
inline constexpr float kLeastCosine = 0x1.921fb6p-15f;
template <>
inline constexpr float kLeastCosine<float> = kUnit / 2;

}  // namespace detail

// The cosine of a phase in turns. CUDA uses the special function unit, with errors below 5e-7.
template <class T>
TREADLE_HD float cosine_of_turns(typename SineLinear<T>::Phase phase) {
#if defined(__CUDA_ARCH__)
  const float c = __cosf(static_cast<float>(phase) * 0x1.921fb6p-14f);
  return select(phase == SineLinear<T>::kNaN, from_bits(0x7fc00000u), c);
#else
  return SineLinear<T>::template wave<true, false>(0, phase);
#endif
}

// The cosine that both passes use.
template <class T, bool kFar>
TREADLE_HD acc_t<T> jet_cosine(acc_t<T> y, typename SineLinear<T>::Phase phase) {
  if constexpr (std::is_same_v<T, double>) {
    return SineLinear<T>::template wave<true, kFar>(y, phase);
  } else {
    float c = 0;
    if constexpr (is_half_type<T>) {
      c = cosine_of_turns<T>(phase);
    } else {
      c = SineLinear<T>::template wave<true, false>(y, phase);
    }
    return select(magnitude(c) < detail::kLeastCosine<T>, detail::kLeastCosine<T>, c);
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
