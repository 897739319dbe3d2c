// affine_scan: result[t] = keep[t] * result[t - 1] + add[t], over the steps of independent units.
// This header has the arguments of the CPU and CUDA kernels (csrc/recurrent/run/affine_scan.h).
#pragma once

#include <cstdint>

#include "kernels/common/dtype.h"

namespace treadle {

// All arrays are contiguous.
struct AffineScan {
  Dtype dtype;                   // float or double
  int64_t steps, rows, columns;  // a unit is one element of [rows, columns]
  bool reverse;                  // whether to run from the last step to the first
  const void* keep;              // [steps, rows, columns]
  const void* add;               // as keep
  const void* start;             // [rows, columns]
  const bool* reset;             // [steps, rows] or null: if reset[t], result[t] is add[t]
  void* result;                  // [steps, rows, columns]
};

}  // namespace treadle
