// Matrix products of a recurrent layer's steps: cuBLAS by ATen's handle, which brings the stream,
// the workspace and what torch was told of tf32. ATen's own functions take as long to call as a
// step.
#pragma once

#include <cstdint>

#include "kernels/recurrence_args.h"

namespace treadle {

// c [m, n] = a [m, k] b [n, k]^T + c if `add`, for `b_transposed` b [k, n]. a and b are contiguous,
// c is acc_t, dense along one of its dimensions.
struct StepProduct {
  int64_t m, n, k;
  const void *a, *b;
  bool b_transposed;
  void* c;
  int64_t c_row_stride, c_column_stride;
  bool add;
};

// Products of one call, on the current device and stream: asking ATen for the handle takes longer
// than one of them.
class StepProducts {
 public:
  explicit StepProducts(Dtype dtype);
  void run(const StepProduct& product) const;

 private:
  Dtype dtype_;
  void* handle_;
};

// Whether torch lets cuBLAS compute float32 in tf32 now.
bool tf32_allowed();

}  // namespace treadle
