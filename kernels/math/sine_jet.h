// A jet through y = sin(omega z), host and device. With s = sin(omega z) and c = cos(omega z):
//   value    y = s
//   first    y_i = omega c z_i
//   second   y_ii = omega c z_ii - omega^2 s z_i^2; of a Laplacian both terms are sums over i
// The backward pass has y_i and gets z_i = y_i / (omega c), so both passes take c from the saved
// phase (math/sine_linear.h), and never less than half of its unit. Then z_i is as accurate as y_i
// even where c is small. z_ii is not: it takes another multiplication.
#pragma once

#include "kernels/math/sine_linear.h"

namespace treadle::math {

namespace detail {

// Half the unit of a 16-bit phase in turns or, for float, of a cosine in fixed point.
template <class T>
inline constexpr float kLeastCosine = 0x1.921fb6p-15f;
template <>
inline constexpr float kLeastCosine<float> = kUnit / 2;

}  // namespace detail

// The cosine of a phase in turns. On CUDA by the special function unit, within 5e-7.
template <class T>
TREADLE_HD float cosine_of_turns(typename SineLinear<T>::Phase phase) {
#if defined(__CUDA_ARCH__)
  const float c = __cosf(static_cast<float>(phase) * 0x1.921fb6p-14f);
  return select(phase == SineLinear<T>::kNaN, from_bits(0x7fc00000u), c);
#else
  return SineLinear<T>::template wave<true, false>(0, phase);
#endif
}

// The cosine that both passes take.
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
