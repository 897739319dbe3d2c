// scale: out = x * factor. Linear, so its derivative is itself.
#pragma once

#include "kernels/common/dtype.h"

namespace treadle {

template <class acc_t>
struct Scale {
  acc_t factor;

  TREADLE_HD acc_t operator()(acc_t x) const { return x * factor; }
};

}  // namespace treadle
