// sine and cosine on the device, a vector at a time. Large arguments slow down only the warps that
// contain them. Forward: wave(x), where wave is sin or cos. Backward: grad * wave(x), or its
// negative.
#pragma once

#include "kernels/common/convert.cuh"
#include "kernels/math/sine_double.h"
#include "kernels/math/sine_float.h"

namespace treadle {
namespace detail {

template <class acc>
using Result = std::conditional_t<std::is_same_v<acc, double>, double, math::Flip>;

// The largest magnitude.
template <class scalar_t, int n>
__device__ __forceinline__ acc_t<scalar_t> largest(const Vector<scalar_t, n>& in) {
  acc_t<scalar_t> x[n], found = 0;
  widen(in, x);
#pragma unroll
  for (int i = 0; i < n; ++i) found = fmax(found, fabs(x[i]));
  return found;
}

// Whether a magnitude may be beyond kNear; NaN may give either answer.
template <class scalar_t, int n>
__device__ __forceinline__ bool any_far(const Vector<scalar_t, n>& in) {
#if __CUDA_ARCH__ >= 800  // older GPUs have no arithmetic of bfloat16
  if constexpr (std::is_same_v<scalar_t, BFloat16> && n % 2 == 0) {
    // Squares packed pairs instead of computing magnitudes: at 2 bytes per element, instructions
    // are the bottleneck.
    const auto& pairs = reinterpret_cast<const Vector<__nv_bfloat162, n / 2>&>(in).value;
    __nv_bfloat162 squares = __hmul2_rn(pairs[0], pairs[0]);
#pragma unroll
    for (int i = 1; i < n / 2; ++i) squares = __hfma2(pairs[i], pairs[i], squares);
    return !__hble2(squares, __float2bfloat162_rn(0x1p+44f));
  }
#endif
  return largest(in) > math::kNear<scalar_t>;
}

// Whether all numbers of a vector are in the domain of far_wave.
template <class scalar_t, int n>
__device__ __forceinline__ bool all_far(const Vector<scalar_t, n>& in) {
  if constexpr (std::is_same_v<scalar_t, BFloat16> && n % 2 == 0) {
    // |x| >= 2 if and only if the highest bit of the exponent is set.
    const auto& words = reinterpret_cast<const Vector<uint32_t, n / 2>&>(in).value;
    uint32_t bits = words[0];
#pragma unroll
    for (int i = 1; i < n / 2; ++i) bits &= words[i];
    return (bits & 0x40004000u) == 0x40004000u;
  } else {
    acc_t<scalar_t> x[n];
    widen(in, x);
    acc_t<scalar_t> smallest = fabs(x[0]);
#pragma unroll
    for (int i = 1; i < n; ++i) smallest = fmin(smallest, fabs(x[i]));
    return smallest > math::kNear<scalar_t>;
  }
}

template <math::Wave wave, class scalar_t, int n, class Result>
__device__ __forceinline__ void compute_far(const Vector<scalar_t, n>& in, Result (&y)[n]) {
  acc_t<scalar_t> x[n];
  if constexpr (std::is_same_v<scalar_t, BFloat16> && n % 2 == 0) {
    Vector<BFloat16, n> scaled;
    const auto& from = reinterpret_cast<const Vector<__nv_bfloat162, n / 2>&>(in).value;
    auto& to = reinterpret_cast<Vector<__nv_bfloat162, n / 2>&>(scaled).value;
#pragma unroll
    for (int i = 0; i < n / 2; ++i) {
      to[i] = __hmul2_rn(from[i], __float2bfloat162_rn(math::kBFloat16Scale));
    }
    widen(scaled, x);
#pragma unroll
    for (int i = 0; i < n; ++i) y[i] = math::far_scaled_wave<wave>(x[i]);
  } else {
    widen(in, x);
#pragma unroll
    for (int i = 0; i < n; ++i) y[i] = math::far_wave<wave, scalar_t>(x[i]);
  }
}

// A widen() that the compiler cannot move before a branch. Otherwise it would move the widen() of
// one side of the branch there, and threads that take the other side would execute it, too.
template <class scalar_t, int n>
__device__ __forceinline__ void widen_here(const Vector<scalar_t, n>& in, acc_t<scalar_t> (&x)[n]) {
  Vector<scalar_t, n> copy = in;
  if constexpr (std::is_same_v<scalar_t, BFloat16> && n % 2 == 0) {
    for (uint32_t& word : reinterpret_cast<Vector<uint32_t, n / 2>&>(copy).value) {
      asm volatile("" : "+r"(word));
    }
  }
  widen(copy, x);
}

// Two numbers rounded to scalar_t, packed in a word.
template <class scalar_t>
__device__ __forceinline__ uint32_t packed(float low, float high) {
  if constexpr (std::is_same_v<scalar_t, BFloat16>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  } else {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  }
}

// Flips the signs that must still be flipped. In half types it does so in pairs, after packing.
template <class scalar_t, int n>
__device__ __forceinline__ void narrow_resolved(const math::Flip (&y)[n],
                                                Vector<scalar_t, n>& out) {
  if constexpr (is_half_type<scalar_t> && n % 2 == 0) {
    auto& words = reinterpret_cast<Vector<uint32_t, n / 2>&>(out).value;
#pragma unroll
    for (int i = 0; i < n; i += 2) {
      const uint32_t odd = __byte_perm(y[i].odd, y[i + 1].odd, 0x5410);
      words[i / 2] = packed<scalar_t>(y[i].value, y[i + 1].value) ^ (odd << 15 & 0x80008000u);
    }
  } else {
#pragma unroll
    for (int i = 0; i < n; ++i) {
      out.value[i] = Narrow<scalar_t>::from(math::resolved(y[i]));
    }
  }
}

template <int n>
__device__ __forceinline__ void narrow_resolved(const double (&y)[n], Vector<double, n>& out) {
  narrow(y, out);
}

}  // namespace detail

// `rounded` means that the caller rounds y to scalar_t. Then far_wave gives the same bits as
// near_wave.
template <math::Wave wave, class scalar_t, bool rounded, int n, class Result>
__device__ __forceinline__ void compute_wave(const Vector<scalar_t, n>& in, Result (&y)[n]) {
  constexpr bool is_float = std::is_same_v<scalar_t, float>;
  acc_t<scalar_t> x[n];
  if constexpr (math::kHasFar<scalar_t>) {
    // The whole warp chooses one path, because a diverged warp would pay for every path.
    constexpr unsigned kWarp = 0xffffffff;
    if (__any_sync(kWarp, detail::any_far(in))) {
      if constexpr (is_float) {
        if (!__any_sync(kWarp, detail::largest(in) > math::kNoTable)) {
          widen(in, x);
#pragma unroll
          for (int i = 0; i < n; ++i) y[i] = math::any_wave<wave, scalar_t, false>(x[i]);
          return;
        }
      }
      if constexpr (rounded || is_float) {
        if (__all_sync(kWarp, detail::all_far(in))) return detail::compute_far<wave>(in, y);
      }
      detail::widen_here(in, x);
#pragma unroll
      for (int i = 0; i < n; ++i) y[i] = math::any_wave<wave, scalar_t>(x[i]);
      return;
    }
  }
  detail::widen_here(in, x);
#pragma unroll
  for (int i = 0; i < n; ++i) y[i] = math::near_wave<wave, scalar_t>(x[i]);
}

template <math::Wave wave, class scalar_t>
struct WaveOf {
  template <int n>
  __device__ __forceinline__ void operator()(Vector<scalar_t, n>& out,
                                             const Vector<scalar_t, n>& in) const {
    detail::Result<acc_t<scalar_t>> y[n];
    compute_wave<wave, scalar_t, true>(in, y);
    detail::narrow_resolved(y, out);
  }
};

template <math::Wave wave, bool negative, class scalar_t>
struct TimesWaveOf {
  template <int n>
  __device__ __forceinline__ void operator()(Vector<scalar_t, n>& out,
                                             const Vector<scalar_t, n>& grad,
                                             const Vector<scalar_t, n>& in) const {
    detail::Result<acc_t<scalar_t>> slope[n];
    compute_wave<wave, scalar_t, false>(in, slope);
    acc_t<scalar_t> g[n];
    widen(grad, g);
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if constexpr (std::is_same_v<scalar_t, double>) {
        slope[i] = math::mul_rn(negative ? -g[i] : g[i], slope[i]);
      } else {
        slope[i].value = math::mul_rn(negative ? -g[i] : g[i], slope[i].value);
      }
    }
    detail::narrow_resolved(slope, out);
  }
};

struct Sine {
  template <class scalar_t>
  using Forward = WaveOf<math::Wave::kSine, scalar_t>;
  template <class scalar_t>
  using Backward = TimesWaveOf<math::Wave::kCosine, false, scalar_t>;
};

struct Cosine {
  template <class scalar_t>
  using Forward = WaveOf<math::Wave::kCosine, scalar_t>;
  template <class scalar_t>
  using Backward = TimesWaveOf<math::Wave::kSine, true, scalar_t>;
};

}  // namespace treadle
