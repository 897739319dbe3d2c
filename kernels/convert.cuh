// Between what is stored and what is computed, on the device.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/dtype.h"

namespace treadle {

// A half type as float, anything else as it is.
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

// Rounded to nearest even; integers wrap.
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

// An element stored as `dtype`, rounded to common_t, ready to compute with.
template <class common_t>
__device__ __forceinline__ acc_t<common_t> load_cast(const char* at, Dtype dtype) {
  return visit(dtype, [&](auto type) {
    using stored_t = typename decltype(type)::type;
    return widen(Narrow<common_t>::from(plain(*reinterpret_cast<const stored_t*>(at))));
  });
}

// Rounded to common_t first, as a temporary of that dtype would be.
template <class common_t>
__device__ __forceinline__ void store_cast(char* at, Dtype dtype, acc_t<common_t> value) {
  const common_t rounded = Narrow<common_t>::from(value);
  visit(dtype, [&](auto type) {
    using stored_t = typename decltype(type)::type;
    *reinterpret_cast<stored_t*>(at) = Narrow<stored_t>::from(plain(rounded));
  });
}

}  // namespace treadle
