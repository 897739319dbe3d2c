// A cell's bound on |h| after a step, as its functor declares it.
#pragma once

namespace treadle::math {

enum class HBound {
  kOne,    // at most 1, whatever the previous state
  kFirst,  // at most the larger of 1 and |h0|
  kNone,   // it can grow at every step
};

}  // namespace treadle::math
