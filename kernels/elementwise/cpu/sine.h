// Sine and cosine of blocks of numbers on the CPU.
#pragma once

#include <cstring>

#include "kernels/elementwise/cpu/loop.h"
#include "kernels/math/sine_double.h"
#include "kernels/math/sine_float.h"

namespace treadle::cpu::TREADLE_ISA {

using math::Wave;

template <class T>
bool any_beyond(const T* x, int64_t n, T range) {
  int any = 0;
  for (int64_t i = 0; i < n; ++i) any |= math::magnitude(x[i]) > range;
  return any != 0;
}

// Computes n <= kBlock sines or cosines. `out` may be x.
template <Wave wave, class scalar_t>
void compute_wave(float* out, int64_t n, const float* x) {
  if (!any_beyond(x, n, math::kNear<scalar_t>)) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) out[i] = math::resolved(math::near_wave<wave, scalar_t>(x[i]));
  } else if (std::is_same_v<scalar_t, float> && !any_beyond(x, n, math::kNoTable)) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      out[i] = math::resolved(math::any_wave<wave, scalar_t, false>(x[i]));
    }
  } else {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) out[i] = math::resolved(math::any_wave<wave, scalar_t>(x[i]));
  }
}

template <Wave wave, class scalar_t>
void compute_wave(double* out, int64_t n, const double* x) {
  if (any_beyond(x, n, math::kNear<double>)) {
    // Large arguments are reduced by integer code, one by one; the polynomial is vectorised.
    math::detail::DoubleAngle angles[kBlock];
    for (int64_t i = 0; i < n; ++i) angles[i] = math::any_angle<wave>(x[i]);
    for (int64_t i = 0; i < n; ++i) out[i] = math::detail::sine_of(angles[i]);
  } else {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) out[i] = math::near_wave<wave, double>(x[i]);
  }
}

template <Wave wave, class scalar_t>
struct WaveLoop {
  using T = acc_t<scalar_t>;

  void operator()(T* out, int64_t n, const T* x) const {
    for (int64_t begin = 0; begin < n; begin += kBlock) {
      const int64_t size = n - begin < kBlock ? n - begin : kBlock;
      compute_wave<wave, scalar_t>(out + begin, size, x + begin);
    }
  }
};

// grad * wave(x), or -grad * wave(x) if `negative`, where wave is sine or cosine.
template <Wave wave, bool negative, class scalar_t>
struct SlopeLoop {
  using T = acc_t<scalar_t>;

  void operator()(T* out, int64_t n, const T* grad, const T* x) const {
    T slope[kBlock];
    for (int64_t begin = 0; begin < n; begin += kBlock) {
      const int64_t size = n - begin < kBlock ? n - begin : kBlock;
      compute_wave<wave, scalar_t>(slope, size, x + begin);
#pragma GCC ivdep
      for (int64_t i = 0; i < size; ++i) {
        out[begin + i] = negative ? -grad[begin + i] * slope[i] : grad[begin + i] * slope[i];
      }
    }
  }
};

struct Sine {
  template <class scalar_t>
  using Forward = WaveLoop<Wave::kSine, scalar_t>;
  template <class scalar_t>
  using Backward = SlopeLoop<Wave::kCosine, false, scalar_t>;
};

struct Cosine {
  template <class scalar_t>
  using Forward = WaveLoop<Wave::kCosine, scalar_t>;
  template <class scalar_t>
  using Backward = SlopeLoop<Wave::kSine, true, scalar_t>;
};

}  // namespace treadle::cpu::TREADLE_ISA
