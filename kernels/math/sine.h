// sine and cosine on the device, a vector at once: where no number is large, none pays for it.
// out = sin(x) or cos(x); backward: grad times a wave of x, or times minus it.
#pragma once

#include "kernels/convert.cuh"
#include "kernels/math/sine_double.h"
#include "kernels/math/sine_float.h"

namespace treadle {
namespace detail {

inline constexpr unsigned kWarp = 0xffffffff;

// Whether the vector may have magnitudes beyond kNear, and whether far_wave may have all of it. NaN
// is for either.
template <class scalar_t, int n>
struct Magnitudes {
  using acc = acc_t<scalar_t>;

  static __device__ __forceinline__ bool any_far(const Vector<scalar_t, n>&, const acc (&x)[n]) {
    acc largest = 0;
#pragma unroll
    for (int i = 0; i < n; ++i) largest = fmax(largest, fabs(x[i]));
    return largest > math::kNear<scalar_t>;
  }

  static __device__ __forceinline__ bool all_far(const Vector<scalar_t, n>&, const acc (&x)[n]) {
    acc smallest = fabs(x[0]);
#pragma unroll
    for (int i = 1; i < n; ++i) smallest = fmin(smallest, fabs(x[i]));
    return smallest > math::kNear<scalar_t>;
  }
};

// By two: instructions are what bfloat16 has too few of.
template <int n>
struct Magnitudes<BFloat16, n> {
  static __device__ __forceinline__ bool any_far(const Vector<BFloat16, n>& vector,
                                                 const float (&x)[n]) {
    if constexpr (n % 2 == 0) {
      const auto& words = reinterpret_cast<const Vector<__nv_bfloat162, n / 2>&>(vector).value;
      __nv_bfloat162 squares = __hmul2_rn(words[0], words[0]);
#pragma unroll
      for (int i = 1; i < n / 2; ++i) squares = __hfma2(words[i], words[i], squares);
      return !__hble2(squares, __float2bfloat162_rn(0x1p+44f));
    } else {
      return !(fabsf(x[0]) <= math::kNear<BFloat16>);
    }
  }

  // From 2 on the highest bit of the exponent is set.
  static __device__ __forceinline__ bool all_far(const Vector<BFloat16, n>& vector,
                                                 const float (&x)[n]) {
    uint32_t bits = 0xffffffff;
#pragma unroll
    for (int i = 0; i < n; ++i) bits &= __float_as_uint(x[i]);
    return (bits & 0x40000000u) != 0;
  }
};

}  // namespace detail

template <math::Wave wave, class scalar_t>
struct WaveOf {
  using acc = acc_t<scalar_t>;

  template <int n>
  __device__ __forceinline__ void operator()(Vector<scalar_t, n>& out,
                                             const Vector<scalar_t, n>& in) const {
    using Magnitudes = detail::Magnitudes<scalar_t, n>;
    acc x[n], y[n];
    widen(in, x);
    // One way for the whole warp: it would pay for every way that one of its threads takes.
    if (!math::kHasFar<scalar_t> || !__any_sync(detail::kWarp, Magnitudes::any_far(in, x))) {
#pragma unroll
      for (int i = 0; i < n; ++i) y[i] = math::near_wave<wave, scalar_t>(x[i]);
    } else if (__all_sync(detail::kWarp, Magnitudes::all_far(in, x))) {
#pragma unroll
      for (int i = 0; i < n; ++i) y[i] = math::far_wave<wave, scalar_t>(x[i]);
    } else {
#pragma unroll
      for (int i = 0; i < n; ++i) y[i] = math::any_wave<wave, scalar_t>(x[i]);
    }
    narrow(y, out);
  }
};

template <math::Wave wave, bool negative, class scalar_t>
struct TimesWaveOf {
  using acc = acc_t<scalar_t>;

  template <int n>
  __device__ __forceinline__ void operator()(Vector<scalar_t, n>& out,
                                             const Vector<scalar_t, n>& grad,
                                             const Vector<scalar_t, n>& in) const {
    acc x[n], slope[n], g[n], y[n];
    widen(in, x);
    const bool any_far = detail::Magnitudes<scalar_t, n>::any_far(in, x);
    if (!math::kHasFar<scalar_t> || !__any_sync(detail::kWarp, any_far)) {
#pragma unroll
      for (int i = 0; i < n; ++i) slope[i] = math::near_wave<wave, scalar_t>(x[i]);
    } else {
#pragma unroll
      for (int i = 0; i < n; ++i) slope[i] = math::any_wave<wave, scalar_t>(x[i]);
    }
    widen(grad, g);
#pragma unroll
    for (int i = 0; i < n; ++i) y[i] = math::mul_rn(negative ? -g[i] : g[i], slope[i]);
    narrow(y, out);
  }
};

}  // namespace treadle
