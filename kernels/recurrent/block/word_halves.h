// The positions of half-type numbers in words of 4 bytes that were copied `ahead` steps before they
// are read (block/block.cuh): cp.async copies at least 4 aligned bytes, so each number comes with
// its predecessor or its successor in memory. Which half it is depends on the address, and
// alternates from gate to gate and from step to step if their distance is an odd number of
// elements.
#pragma once

#include <cstdint>

#include "kernels/common/dtype.h"

namespace treadle {

// The address of the word that contains the number at this address.
TREADLE_HD uintptr_t word_of(uintptr_t at) { return at & ~uintptr_t{3}; }

template <int ahead>
struct WordHalves {
  uint32_t odd = 0;  // one bit per step, the highest for the last step

  // Notes the address of the next step's first gate.
  TREADLE_HD void note(uintptr_t at) { odd = odd >> 1 | static_cast<uint32_t>(at >> 1) << 31; }

  // Which half of its word holds gate m of the oldest of `ahead` steps, if gates are `apart`
  // elements apart.
  TREADLE_HD uint32_t of_oldest(int m, int64_t apart) const {
    return (odd >> (32 - ahead) ^ (static_cast<uint32_t>(m) & static_cast<uint32_t>(apart))) & 1;
  }
};

}  // namespace treadle
