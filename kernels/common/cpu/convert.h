// load converts n stored elements of type T, stride_bytes apart, to buf[0..n) of the computed type.
// store does the reverse, and rounds once to nearest even (to half types via float, like torch).
// Half and bfloat16 NaNs stay NaNs; bool is stored as value != 0; integers wrap. Sources may be
// unaligned. This file is compiled without torch, once per instruction set.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__AVX2__)
// GCC 12 warns about uninitialised values in some AVX-512 intrinsics of this header.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

#include "kernels/common/dtype.h"

namespace treadle::cpu::TREADLE_ISA {

#define TREADLE_INLINE inline __attribute__((always_inline))
#define TREADLE_NOINLINE __attribute__((noinline))

template <class To, class From>
TREADLE_INLINE To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

TREADLE_INLINE float to_float(BFloat16 x) { return bit_cast<float>(uint32_t{x.bits} << 16); }

// No float here is subnormal, so the caller's flush-to-zero mode does not change subnormal halves.
TREADLE_INLINE float to_float(Half x) {
  const uint32_t magnitude = x.bits & 0x7fffu;
  const uint32_t sign = uint32_t{x.bits & 0x8000u} << 16;
  const uint32_t rebias = 112u << 23;
  const uint32_t normal = (magnitude << 13) + (magnitude < 0x7c00u ? rebias : 2 * rebias);
  const float subnormal = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f;
  const uint32_t bits = magnitude < 0x400u ? bit_cast<uint32_t>(subnormal) : normal;
  return bit_cast<float>(bits | sign);
}

TREADLE_INLINE BFloat16 to_bfloat16(float x) {
  const uint32_t bits = bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;
  return {static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded)};
}

TREADLE_INLINE Half to_half(float x) {
  const uint32_t bits = bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t rebiased = magnitude - (112u << 23);
  const uint32_t normal = (rebiased + 0xfffu + ((rebiased >> 13) & 1u)) >> 13;
  // Floats from 0.5 to 1 have the spacing of subnormal halves, so adding 0.5 rounds to it.
  const uint32_t subnormal =
      bit_cast<uint32_t>(bit_cast<float>(magnitude) + 0.5f) - bit_cast<uint32_t>(0.5f);
  const uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
  half = magnitude >= 0x47800000u ? 0x7c00u : half;
  half = magnitude > 0x7f800000u ? nan : half;
  return {static_cast<uint16_t>(half | ((bits >> 16) & 0x8000u))};
}

template <class T, class acc_t>
TREADLE_INLINE acc_t from_stored(T x) {
  if constexpr (is_half_type<T>) {
    return static_cast<acc_t>(to_float(x));
  } else {
    return static_cast<acc_t>(x);
  }
}

template <class T, class acc_t>
TREADLE_INLINE T to_stored(acc_t x) {
  if constexpr (std::is_same_v<T, Half>) {
    return to_half(static_cast<float>(x));
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return to_bfloat16(static_cast<float>(x));
  } else if constexpr (std::is_same_v<T, bool>) {
    return x != acc_t(0);
  } else {
    return static_cast<T>(x);
  }
}

// Reads and writes at any byte offset. A bool's byte may have a value other than 0 and 1.
template <class T>
TREADLE_INLINE T read(const char* at) {
  if constexpr (std::is_same_v<T, bool>) {
    return *reinterpret_cast<const unsigned char*>(at) != 0;
  } else {
    T x;
    std::memcpy(&x, at, sizeof(T));
    return x;
  }
}

template <class T>
TREADLE_INLINE void write(char* at, T x) {
  std::memcpy(at, &x, sizeof(T));
}

// Load and store whole vectors of half types. Both return the number of converted elements.
#if defined(__AVX512BW__)
TREADLE_INLINE int64_t load_vectors(const Half*, const char* src, float* buf, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + 2 * i));
    _mm512_storeu_ps(buf + i, _mm512_cvtph_ps(halves));
  }
  return i;
}

TREADLE_INLINE int64_t store_vectors(const Half*, char* dst, const float* buf, int64_t n) {
  constexpr int kNearestEven = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m512 x = _mm512_loadu_ps(buf + i);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst + 2 * i), _mm512_cvtps_ph(x, kNearestEven));
  }
  return i;
}

TREADLE_INLINE int64_t load_vectors(const BFloat16*, const char* src, float* buf, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + 2 * i));
    _mm512_storeu_si512(buf + i, _mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
  return i;
}

TREADLE_INLINE int64_t store_vectors(const BFloat16*, char* dst, const float* buf, int64_t n) {
  const __m512i half_unit = _mm512_set1_epi32(0x7fff), one = _mm512_set1_epi32(1);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m512 x = _mm512_loadu_ps(buf + i);
    const __m512i bits = _mm512_castps_si512(x), top = _mm512_srli_epi32(bits, 16);
    const __m512i round = _mm512_add_epi32(half_unit, _mm512_and_si512(top, one));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, round), 16);
    const __m512i result = _mm512_mask_or_epi32(rounded, is_nan, top, _mm512_set1_epi32(0x40));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst + 2 * i), _mm512_cvtepi32_epi16(result));
  }
  return i;
}
#elif defined(__AVX2__) && defined(__F16C__)
TREADLE_INLINE int64_t load_vectors(const Half*, const char* src, float* buf, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + 2 * i));
    _mm256_storeu_ps(buf + i, _mm256_cvtph_ps(halves));
  }
  return i;
}

TREADLE_INLINE int64_t store_vectors(const Half*, char* dst, const float* buf, int64_t n) {
  constexpr int kNearestEven = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(buf + i), kNearestEven);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + 2 * i), halves);
  }
  return i;
}

TREADLE_INLINE int64_t load_vectors(const BFloat16*, const char* src, float* buf, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + 2 * i));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(buf + i),
                        _mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
  return i;
}

TREADLE_INLINE int64_t store_vectors(const BFloat16*, char* dst, const float* buf, int64_t n) {
  const __m256i half_unit = _mm256_set1_epi32(0x7fff), one = _mm256_set1_epi32(1);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 x = _mm256_loadu_ps(buf + i);
    const __m256i bits = _mm256_castps_si256(x), top = _mm256_srli_epi32(bits, 16);
    const __m256i round = _mm256_add_epi32(half_unit, _mm256_and_si256(top, one));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, round), 16);
    const __m256i nan = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
    const __m256i result = _mm256_blendv_epi8(rounded, nan, is_nan);
    // Packs within each 128-bit lane; the permutation brings both results together.
    const __m256i packed = _mm256_packus_epi32(result, result);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + 2 * i),
                     _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
  }
  return i;
}
#else
template <class T>
TREADLE_INLINE int64_t load_vectors(const T*, const char*, float*, int64_t) {
  return 0;
}

template <class T>
TREADLE_INLINE int64_t store_vectors(const T*, char*, const float*, int64_t) {
  return 0;
}
#endif

template <class T, class acc_t>
inline void load_contiguous(const char* __restrict src, acc_t* __restrict buf, int64_t n) {
  int64_t i = 0;
  if constexpr (is_half_type<T> && std::is_same_v<acc_t, float>) {
    i = load_vectors(static_cast<const T*>(nullptr), src, buf, n);
  }
  for (; i < n; ++i) {
    buf[i] = from_stored<T, acc_t>(read<T>(src + i * int64_t{sizeof(T)}));
  }
}

template <class T, class acc_t>
inline void load(const char* src, int64_t stride_bytes, acc_t* __restrict buf, int64_t n) {
  if (stride_bytes == int64_t{sizeof(T)}) return load_contiguous<T, acc_t>(src, buf, n);
  if (stride_bytes == 0) {
    if (n == 0) return;
    const acc_t value = from_stored<T, acc_t>(read<T>(src));
    for (int64_t i = 0; i < n; ++i) buf[i] = value;
    return;
  }
  // The stride of every second element. It is a constant, so that the compiler vectorises the loop.
  constexpr int64_t second = 2 * int64_t{sizeof(T)};
  if (stride_bytes == second) {
    for (int64_t i = 0; i < n; ++i) buf[i] = from_stored<T, acc_t>(read<T>(src + i * second));
    return;
  }
  for (int64_t i = 0; i < n; ++i) buf[i] = from_stored<T, acc_t>(read<T>(src + i * stride_bytes));
}

template <class T, class acc_t>
inline void store_contiguous(char* __restrict dst, const acc_t* __restrict buf, int64_t n) {
  int64_t i = 0;
  if constexpr (is_half_type<T> && std::is_same_v<acc_t, float>) {
    i = store_vectors(static_cast<const T*>(nullptr), dst, buf, n);
  }
  for (; i < n; ++i) write<T>(dst + i * int64_t{sizeof(T)}, to_stored<T, acc_t>(buf[i]));
}

template <class T, class acc_t>
inline void store(char* dst, int64_t stride_bytes, const acc_t* __restrict buf, int64_t n) {
  if (stride_bytes == int64_t{sizeof(T)}) return store_contiguous<T, acc_t>(dst, buf, n);
  for (int64_t i = 0; i < n; ++i) write<T>(dst + i * stride_bytes, to_stored<T, acc_t>(buf[i]));
}

// Loads n elements stored as `dtype`. They are rounded to common_t if that type is narrower.
template <class common_t>
void load_as(Dtype dtype, const char* src, int64_t stride, acc_t<common_t>* buf, int64_t n) {
  using acc = acc_t<common_t>;
  visit(dtype, [&](auto type) {
    using stored_t = typename decltype(type)::type;
    load<stored_t, acc>(src, stride, buf, n);
    if constexpr (is_half_type<common_t> && !std::is_same_v<stored_t, common_t>) {
      for (int64_t i = 0; i < n; ++i) {
        buf[i] = from_stored<common_t, acc>(to_stored<common_t, acc>(buf[i]));
      }
    }
  });
}

// Stores n results. Each is first rounded to common_t, like a temporary of that dtype, then cast.
template <class common_t>
void store_as(Dtype dtype, char* dst, int64_t stride, const acc_t<common_t>* buf, int64_t n) {
  visit(dtype, [&](auto type) {
    using stored_t = typename decltype(type)::type;
    if constexpr (std::is_same_v<stored_t, common_t>) {
      store<stored_t, acc_t<common_t>>(dst, stride, buf, n);
    } else {
      for (int64_t i = 0; i < n; ++i) {
        const common_t rounded = to_stored<common_t, acc_t<common_t>>(buf[i]);
        if constexpr (is_half_type<common_t>) {
          write(dst + i * stride, to_stored<stored_t, float>(to_float(rounded)));
        } else {
          write(dst + i * stride, to_stored<stored_t, common_t>(rounded));
        }
      }
    }
  });
}

}  // namespace treadle::cpu::TREADLE_ISA
