// An elementwise launch as the host describes it: no torch, no CUDA.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"

namespace treadle {

inline constexpr int kMaxDims = 25;
inline constexpr int kMaxElementwiseOperands = 3;

struct ElementwiseArgs {
  int operands;  // operand 0 is the output
  int ndim;      // fastest dimension first
  int64_t numel;
  bool dense;  // every operand contiguous and stored as `compute`
  Dtype compute;
  Dtype dtypes[kMaxElementwiseOperands];
  char* data[kMaxElementwiseOperands];
  int64_t sizes[kMaxDims];
  int64_t strides[kMaxElementwiseOperands][kMaxDims];  // bytes; numel < 2^31 unless dense
};

}  // namespace treadle
