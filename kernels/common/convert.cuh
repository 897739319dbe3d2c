// Conversions between stored and computed types, on the device.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "kernels/common/dtype.h"
#include "kernels/common/vector.cuh"

namespace treadle {

// A half type as float; any other type unchanged.
template <class T>
__device__ __forceinline__ T plain(T x) {
  return x;
}
__device__ __forceinline__ float plain(Half x) { return __half2float(__ushort_as_half(x.bits)); }
__device__ __forceinline__ float plain(BFloat16 x) {
  return __uint_as_float(static_cast<uint32_t>(x.bits) << 16);
}

template <class T>
__device__ __forceinline__ acc_t<T> widen(T x) {
  return static_cast<acc_t<T>>(plain(x));
}

// Converts a number to the stored type: rounds to nearest even, wraps integers.
template <class T>
struct Narrow {
  template <class From>
  static __device__ __forceinline__ T from(From x) {
    return static_cast<T>(x);
  }
};
template <>
struct Narrow<bool> {
  template <class From>
  static __device__ __forceinline__ bool from(From x) {
    return x != From(0);
  }
};
template <>
struct Narrow<Half> {
  template <class From>
  static __device__ __forceinline__ Half from(From x) {
    return {__half_as_ushort(__float2half_rn(static_cast<float>(x)))};
  }
};
template <>
struct Narrow<BFloat16> {
  template <class From>
  static __device__ __forceinline__ BFloat16 from(From x) {
    return {__bfloat16_as_ushort(__float2bfloat16_rn(static_cast<float>(x)))};
  }
};

// A word of 32 bits contains two bfloat16. The word with its lower 16 bits cleared is the second
// one as a float; shifted up by 16 bits, the word is the first one.
template <class T, int n>
__device__ __forceinline__ void widen(const Vector<T, n>& vector, acc_t<T> (&out)[n]) {
  if constexpr (std::is_same_v<T, BFloat16> && n % 2 == 0) {
    const auto& words = reinterpret_cast<const Vector<uint32_t, n / 2>&>(vector).value;
#pragma unroll
    for (int i = 0; i < n; i += 2) {
      out[i] = __uint_as_float(words[i / 2] << 16);
      out[i + 1] = __uint_as_float(words[i / 2] & 0xffff0000u);
    }
  } else {
#pragma unroll
    for (int i = 0; i < n; ++i) out[i] = widen(vector.value[i]);
  }
}

// One instruction rounds a pair of floats to a half type, packed in a word of 32 bits.
template <class T, int n>
__device__ __forceinline__ void narrow(const acc_t<T> (&values)[n], Vector<T, n>& out) {
  if constexpr ((std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) && n % 2 == 0) {
    auto& words = reinterpret_cast<Vector<uint32_t, n / 2>&>(out).value;
#pragma unroll
    for (int i = 0; i < n; i += 2) {
      if constexpr (std::is_same_v<T, BFloat16>) {
        const __nv_bfloat162 two = __floats2bfloat162_rn(values[i], values[i + 1]);
        words[i / 2] = reinterpret_cast<const uint32_t&>(two);
      } else {
        const __half2 two = __floats2half2_rn(values[i], values[i + 1]);
        words[i / 2] = reinterpret_cast<const uint32_t&>(two);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < n; ++i) out.value[i] = Narrow<T>::from(values[i]);
  }
}

// Loads n consecutive elements, aligned for a vector load, and converts them to acc.
template <class T, int n, class acc = acc_t<T>>
__device__ __forceinline__ void load_vector(const void* data, int64_t at, acc (&to)[n]) {
  widen(*reinterpret_cast<const Vector<T, n>*>(static_cast<const T*>(data) + at), to);
}

template <class T, int n, class acc = acc_t<T>>
__device__ __forceinline__ void store_vector(void* data, int64_t at, const acc (&from)[n]) {
  narrow(from, *reinterpret_cast<Vector<T, n>*>(static_cast<T*>(data) + at));
}

// An element stored as `dtype`, rounded to common_t.
template <class common_t>
__device__ __forceinline__ common_t load_cast(const char* at, Dtype dtype) {
  return visit(dtype, [&](auto type) {
    using stored_t = typename decltype(type)::type;
    return Narrow<common_t>::from(plain(*reinterpret_cast<const stored_t*>(at)));
  });
}

template <class common_t>
__device__ __forceinline__ void store_cast(char* at, Dtype dtype, common_t value) {
  visit(dtype, [&](auto type) {
    using stored_t = typename decltype(type)::type;
    *reinterpret_cast<stored_t*>(at) = Narrow<stored_t>::from(plain(value));
  });
}

}  // namespace treadle
