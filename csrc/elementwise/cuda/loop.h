// Launches kernels for an elementwise loop: sets the device, uses the current stream, and splits
// loops that are too large for 32-bit offsets.
#pragma once

#include <ATen/TensorIterator.h>

#include <tuple>

#include "common/check.h"
#include "common/cuda/launch.h"
#include "elementwise/loop.h"
#include "kernels/elementwise/args.h"

namespace treadle {

ElementwiseArgs elementwise_args(const ElementwiseLoop& loop);
ElementwiseArgs elementwise_args(const char* op, const at::TensorIteratorBase& iter, Dtype compute);

// f(args, stream) launches a kernel and returns a cudaError_t.
template <class F>
void run_cuda(ElementwiseLoop& loop, const F& f) {
  if (loop.numel() == 0) return;
  const c10::cuda::CUDAGuard guard(loop.output.device());
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  if (!loop.iterator) return check_launch(loop.op, f(elementwise_args(loop), stream));
  const Dtype compute = to_dtype(loop.compute);
  const ElementwiseArgs args = elementwise_args(loop.op, *loop.iterator, compute);
  if (args.dense || loop.iterator->can_use_32bit_indexing()) {
    return check_launch(loop.op, f(args, stream));
  }
  for (auto& part : loop.iterator->with_32bit_indexing()) {
    check_launch(loop.op, f(elementwise_args(loop.op, part, compute), stream));
  }
}

// The twin of OnCpu in elementwise/op.h. `launch` receives the ElementwiseArgs, the parameters and
// the stream.
struct OnCuda {
  template <auto launch, class Parameters>
  static void run(ElementwiseLoop& loop, const Parameters& parameters) {
    run_cuda(loop, [&](const ElementwiseArgs& args, cudaStream_t stream) {
      return std::apply([&](const auto&... p) { return launch(args, p..., stream); }, parameters);
    });
  }
};

}  // namespace treadle
