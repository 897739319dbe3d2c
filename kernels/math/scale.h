// scale: out = x * factor. The op is linear, so its backward pass is the same op.
#pragma once

#include "kernels/common/dtype.h"

namespace treadle {

template <class acc_t>
struct Scale {
  acc_t factor;

  TREADLE_HD acc_t operator()(acc_t x) const { return x * factor; }
};

}  // namespace treadle
