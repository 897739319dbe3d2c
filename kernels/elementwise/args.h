// The host's description of an elementwise launch, without torch or CUDA.
#pragma once

#include <cstdint>

#include "kernels/common/dtype.h"

namespace treadle {

inline constexpr int kMaxDims = 25;
inline constexpr int kMaxOperands = 4;

struct ElementwiseArgs {
  int operands;  // operand 0 is the output
  int ndim;      // fastest dimension first
  int64_t numel;
  bool dense;  // every operand contiguous and stored as `compute`
  Dtype compute;
  Dtype dtypes[kMaxOperands];
  char* data[kMaxOperands];
  int64_t sizes[kMaxDims];
  int64_t strides[kMaxOperands][kMaxDims];  // bytes; numel < 2^31 unless dense
};

}  // namespace treadle
