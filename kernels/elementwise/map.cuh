// The CUDA loop of every elementwise op: out[i] = f(in[i]...), any strides, any mixture of dtypes.
// f is a functor of kernels/math. There are four kernels:
//   dense_map    one thread per vector of 16 bytes, or per 4 elements if misaligned
//   rows_map     one thread per vector of 16 bytes of a row that is dense or repeats one element;
//                any dtypes
//   tiles_map    one thread per 4 elements of a tile, transposed through shared memory
//   strided_map  one thread per kStridedPerThread elements, any strides and dtypes
#pragma once

#include "kernels/elementwise/dense_map.cuh"
#include "kernels/elementwise/rows_map.cuh"
#include "kernels/elementwise/strided_map.cuh"
#include "kernels/elementwise/tiles_map.cuh"

namespace treadle {

template <class common_t, bool kCast, int kInputs, class F>
cudaError_t launch_anywhere(const ElementwiseArgs& args, const F& f, cudaStream_t stream) {
  if (Rows<kInputs + 1>::fits(args, 16 / sizeof(common_t))) {
    return launch_rows<common_t, kCast, kInputs>(args, f, stream);
  }
  if (Tiles<kInputs + 1>::fits(args)) {
    return launch_tiles<common_t, kCast, kInputs>(args, f, stream);
  }
  return launch_strided<common_t, kCast, kInputs>(args, f, stream);
}

template <class common_t, int kInputs, class F>
cudaError_t launch_map(const ElementwiseArgs& args, const F& f, cudaStream_t stream) {
  if (args.dense) {
    bool aligned = true;
    for (int i = 0; i <= kInputs; ++i) {
      aligned = aligned && reinterpret_cast<uintptr_t>(args.data[i]) % 16 == 0;
    }
    // One wide access per thread and operand hides memory latency best.
    return aligned ? launch_dense<common_t, 16 / sizeof(common_t), true, kInputs>(args, f, stream)
                   : launch_dense<common_t, 4, false, kInputs>(args, f, stream);
  }
  bool cast = false;
  for (int i = 0; i <= kInputs; ++i) cast = cast || args.dtypes[i] != args.compute;
  return cast ? launch_anywhere<common_t, true, kInputs>(args, f, stream)
              : launch_anywhere<common_t, false, kInputs>(args, f, stream);
}

}  // namespace treadle
