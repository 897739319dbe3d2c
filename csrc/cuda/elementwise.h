// From a TensorIterator to launches: guards the device, takes the current stream, splits what is
// too large for 32-bit offsets.
#pragma once

#include <ATen/TensorIterator.h>

#include "check.h"
#include "cuda/launch.h"
#include "kernels/elementwise.h"

namespace treadle {

ElementwiseArgs elementwise_args(const char* op, const at::TensorIteratorBase& iter, Dtype compute);

// f(args, stream) launches and returns its error.
template <class F>
void run_cuda(const char* op, at::TensorIteratorBase& iter, ScalarType compute, const F& f) {
  if (iter.numel() == 0) return;
  const c10::cuda::CUDAGuard guard(iter.device(0));
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  const ElementwiseArgs args = elementwise_args(op, iter, to_dtype(compute));
  if (args.dense || iter.can_use_32bit_indexing()) {
    check_launch(op, f(args, stream));
    return;
  }
  for (auto& part : iter.with_32bit_indexing()) {
    check_launch(op, f(elementwise_args(op, part, to_dtype(compute)), stream));
  }
}

}  // namespace treadle
