// Small device helpers that every kernel file uses.
#pragma once

#include <cstdint>

namespace treadle {

// n elements, read and written in accesses of up to 16 bytes.
template <class T, int n>
struct alignas(sizeof(T) * n < 16 ? sizeof(T) * n : 16) Vector {
  T value[n];
};

template <class T, T v>
struct Constant {
  static constexpr T value = v;
};

// Division by a number that the host knows: multiply by a magic number and shift.
// Exact for 0 <= x < 2^31.
struct FastDivide {
  uint32_t divisor, magic, shift;

  FastDivide() = default;
  explicit FastDivide(uint32_t d) : divisor(d), shift(0) {
    while ((uint64_t{1} << shift) < d) ++shift;
    magic = static_cast<uint32_t>(((uint64_t{1} << 32) * ((uint64_t{1} << shift) - d)) / d + 1);
  }
  __device__ uint32_t operator()(uint32_t x) const { return (__umulhi(x, magic) + x) >> shift; }
};

}  // namespace treadle
