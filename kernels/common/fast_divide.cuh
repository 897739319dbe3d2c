// Division by a divisor known on the host, as a multiplication and a shift (ATen's IntDivider).
#pragma once

#include <cstdint>

namespace treadle {

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
