// Finds half-type numbers in 4-byte words that were copied `ahead` steps before they are read
// (block/block.cuh). cp.async copies at least 4 aligned bytes, so each number arrives together with
// its predecessor or its successor in memory. The number's address determines which half of the
// word contains it. The half alternates from gate to gate if gates are an odd number of elements
// apart, and from step to step if steps are an odd number of elements apart.
#pragma once

#include <cstdint>

#include "kernels/common/dtype.h"

namespace treadle {

// The address of the word that contains the number at this address.
TREADLE_HD uintptr_t word_of(uintptr_t at) { return at & ~uintptr_t{3}; }

template <int ahead>
struct WordHalves {
  uint32_t odd = 0;  // one bit per step; the highest is for the latest step

  // Records the address of the next step's first gate.
  TREADLE_HD void note(uintptr_t at) { odd = odd >> 1 | static_cast<uint32_t>(at >> 1) << 31; }

  // Which half of its word contains gate m of the oldest of the last `ahead` steps. Gates are
  // `apart` elements apart.
  TREADLE_HD uint32_t of_oldest(int m, int64_t apart) const {
    return (odd >> (32 - ahead) ^ (static_cast<uint32_t>(m) & static_cast<uint32_t>(apart))) & 1;
  }
};

}  // namespace treadle
