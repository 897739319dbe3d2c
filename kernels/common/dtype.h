// The element types of kernels, for host and device, without torch.
// A value is stored as scalar_t and computed as acc_t<scalar_t>.
#pragma once

#include <cstdint>
#include <type_traits>

// NVRTC defines the second macro as 0 or 1. nvcc defines neither; fast_math_check.cu tests nvcc's
// flags.
#if defined(__FAST_MATH__) || (defined(__USE_FAST_MATH__) && __USE_FAST_MATH__)
#error \
    "treadle must not be built with -ffast-math or --use_fast_math: NaN and inf are part of its contract"
#endif

#ifdef __CUDACC__
#define TREADLE_HD __host__ __device__ __forceinline__
#else
#define TREADLE_HD inline __attribute__((always_inline))
#endif

namespace treadle {

enum class Dtype : int8_t {
  kBool,
  kUInt8,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kHalf,
  kBFloat16,
  kFloat,
  kDouble
};

// Half types only store bits. Conversions: kernels/common/cpu/convert.h and convert.cuh.
struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

template <class T>
inline constexpr bool is_half_type = false;
template <>
inline constexpr bool is_half_type<Half> = true;
template <>
inline constexpr bool is_half_type<BFloat16> = true;

// Integers are computed in an unsigned type of at least 32 bits, in which overflow always wraps.
namespace detail {
template <class T>
struct Acc {
  using type = T;
};
template <>
struct Acc<Half> {
  using type = float;
};
template <>
struct Acc<BFloat16> {
  using type = float;
};
template <>
struct Acc<bool> {
  using type = uint32_t;
};
template <>
struct Acc<uint8_t> {
  using type = uint32_t;
};
template <>
struct Acc<int8_t> {
  using type = uint32_t;
};
template <>
struct Acc<int16_t> {
  using type = uint32_t;
};
template <>
struct Acc<int32_t> {
  using type = uint32_t;
};
template <>
struct Acc<int64_t> {
  using type = uint64_t;
};
}  // namespace detail

template <class scalar_t>
using acc_t = typename detail::Acc<scalar_t>::type;

// A computed value in a type that can be compared: integers, which are computed as unsigned, become
// signed again.
template <class acc>
TREADLE_HD auto as_signed(acc x) {
  if constexpr (std::is_integral_v<acc>) {
    return static_cast<std::make_signed_t<acc>>(x);
  } else {
    return x;
  }
}

template <class T>
struct Type {
  using type = T;
};

// The functions below are for host and device. Without this pragma, nvcc warns if f is for only one
// of them.
#ifdef __CUDACC__
#define TREADLE_NO_EXEC_CHECK _Pragma("nv_exec_check_disable")
#else
#define TREADLE_NO_EXEC_CHECK
#endif

// Calls f(Type<scalar_t>{}) for the C++ type of `dtype`.
TREADLE_NO_EXEC_CHECK
template <class F>
TREADLE_HD auto visit_floating(Dtype dtype, F&& f) {
  switch (dtype) {
    case Dtype::kHalf:
      return f(Type<Half>{});
    case Dtype::kBFloat16:
      return f(Type<BFloat16>{});
    case Dtype::kFloat:
      return f(Type<float>{});
    default:
      return f(Type<double>{});
  }
}

TREADLE_NO_EXEC_CHECK
template <class F>
TREADLE_HD auto visit_number(Dtype dtype, F&& f) {
  switch (dtype) {
    case Dtype::kUInt8:
      return f(Type<uint8_t>{});
    case Dtype::kInt8:
      return f(Type<int8_t>{});
    case Dtype::kInt16:
      return f(Type<int16_t>{});
    case Dtype::kInt32:
      return f(Type<int32_t>{});
    case Dtype::kInt64:
      return f(Type<int64_t>{});
    default:
      return visit_floating(dtype, f);
  }
}

TREADLE_NO_EXEC_CHECK
template <class F>
TREADLE_HD auto visit(Dtype dtype, F&& f) {
  return dtype == Dtype::kBool ? f(Type<bool>{}) : visit_number(dtype, f);
}

// Visits the dtypes of an op that has integer results (kIntegers) or only floating-point ones.
TREADLE_NO_EXEC_CHECK
template <bool kIntegers, class F>
TREADLE_HD auto visit_computed(Dtype dtype, F&& f) {
  if constexpr (kIntegers) {
    return visit_number(dtype, f);
  } else {
    return visit_floating(dtype, f);
  }
}

constexpr bool is_half(Dtype dtype) { return dtype == Dtype::kHalf || dtype == Dtype::kBFloat16; }

// The name in Python.
constexpr const char* dtype_name(Dtype dtype) {
  constexpr const char* kNames[] = {"bool",  "uint8",   "int8",     "int16",   "int32",
                                    "int64", "float16", "bfloat16", "float32", "float64"};
  return kNames[static_cast<int>(dtype)];
}

// The number of bytes of an element.
TREADLE_HD int size_of(Dtype dtype) {
  return visit(dtype, [](auto type) { return int{sizeof(typename decltype(type)::type)}; });
}

// A Python number as an argument of a kernel. Integers keep all their bits.
struct ScalarArg {
  double real;
  int64_t integer;
  bool is_integer;
  bool is_unsigned = false;  // `integer` has the bits of an unsigned number that is at least 2^63

  template <class T>
  TREADLE_HD T to() const {
    if (is_unsigned) return static_cast<T>(static_cast<uint64_t>(integer));
    return is_integer ? static_cast<T>(integer) : static_cast<T>(real);
  }
};

}  // namespace treadle
