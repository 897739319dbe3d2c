// What a cell's functor says of |h| after a step.
#pragma once

namespace treadle::math {

enum class HBound {
  kOne,    // at most 1, whatever the states before it
  kFirst,  // at most the larger of 1 and |h0|
  kNone,   // it can grow at every step
};

}  // namespace treadle::math
