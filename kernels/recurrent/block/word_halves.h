// Where numbers of a half type lie in words of 4 bytes that were copied `ahead` steps before they
// are read (block/block.cuh): the least that cp.async copies are 4 aligned bytes, and so each
// number comes with the one before it or the one behind it in memory. Which of them it is
// alternates with the address, from gate to gate and from step to step, where there are odd numbers
// of elements between.
#pragma once

#include <cstdint>

#include "kernels/common/dtype.h"

namespace treadle {

// Where the word begins that a number at this address is part of.
TREADLE_HD uintptr_t word_of(uintptr_t at) { return at & ~uintptr_t{3}; }

template <int ahead>
struct WordHalves {
  uint32_t odd = 0;  // a bit a step, in the highest that of the last one

  // The address of the next step's first gate.
  TREADLE_HD void note(uintptr_t at) { odd = odd >> 1 | static_cast<uint32_t>(at >> 1) << 31; }

  // Which half of its word gate m is, of the oldest of `ahead` steps, where gates are so many
  // elements apart.
  TREADLE_HD uint32_t of_oldest(int m, int64_t apart) const {
    return (odd >> (32 - ahead) ^ (static_cast<uint32_t>(m) & static_cast<uint32_t>(apart))) & 1;
  }
};

}  // namespace treadle
