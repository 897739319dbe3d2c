// What the CPU loops of sine and cosine share: one of the two functions, of a block of numbers.
// A block without large arguments is one branch-free loop; in the others the C library computes
// the elements that the polynomials do not reach.
#pragma once

#include <cmath>
#include <cstring>

#include "cpu/elementwise.h"
#include "kernels/math/sine_in_range.h"

namespace treadle::cpu::TREADLE_ISA {

// One element, up to kSineRange and beyond it.
struct Sin {
  template <class T>
  static TREADLE_INLINE T in_range(T x) {
    return math::sine_in_range(x);
  }
  template <class T>
  static TREADLE_INLINE T anywhere(T x) {
    return std::sin(x);
  }
};

struct Cos {
  template <class T>
  static TREADLE_INLINE T in_range(T x) {
    return math::cosine_in_range(x);
  }
  template <class T>
  static TREADLE_INLINE T anywhere(T x) {
    return std::cos(x);
  }
};

// How far double's formula is good enough for a float: its products with k stay exact.
#if defined(TREADLE_FAST_FMA)
inline constexpr float kFloatRange = 1e9f;
#else
inline constexpr float kFloatRange = math::kSineRange<double>;
#endif

template <class T>
bool any_beyond(const T* x, int64_t n, T range) {
  int any = 0;
  for (int64_t i = 0; i < n; ++i) any |= math::magnitude(x[i]) > range;
  return any != 0;
}

template <class F, class T>
void compute_large(T* out, int64_t n, const T* x) {
  T copy[kBlock];
  std::memcpy(copy, x, n * sizeof(T));
  const T range = std::is_same_v<T, float> ? T(kFloatRange) : math::kSineRange<T>;
  for (int64_t i = 0; i < n; ++i)
    out[i] = static_cast<T>(F::in_range(static_cast<double>(copy[i])));
  for (int64_t i = 0; i < n; ++i) {
    if (math::magnitude(copy[i]) > range) out[i] = F::anywhere(copy[i]);
  }
}

// n <= kBlock; out may be x.
template <class F, class T>
void compute(T* out, int64_t n, const T* x) {
  if (any_beyond(x, n, math::kSineRange<T>)) return compute_large<F>(out, n, x);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) out[i] = F::in_range(x[i]);
}

}  // namespace treadle::cpu::TREADLE_ISA
