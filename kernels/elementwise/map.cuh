// The map under every elementwise op: out[i] = f(in[i]...), any strides, any mixture of dtypes.
// f is a functor of kernels/math. Four kernels:
//   dense_map    one thread per vector of 16 bytes, or if misaligned per 4 elements
//   rows_map     one thread per as many neighbours of a row, any dtypes; operands may repeat one
//   tiles_map    one thread per 4 elements of a tile that an input enters the other way round
//   strided_map  one thread per kStridedPerThread elements, any strides and dtypes
#pragma once

#include "kernels/dense_map.cuh"
#include "kernels/rows_map.cuh"
#include "kernels/strided_map.cuh"
#include "kernels/tiles_map.cuh"

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
    // One access a thread and operand hides memory's latency best, if it is a wide one.
    return aligned ? launch_dense<common_t, 16 / sizeof(common_t), true, kInputs>(args, f, stream)
                   : launch_dense<common_t, 4, false, kInputs>(args, f, stream);
  }
  bool cast = false;
  for (int i = 0; i <= kInputs; ++i) cast = cast || args.dtypes[i] != args.compute;
  return cast ? launch_anywhere<common_t, true, kInputs>(args, f, stream)
              : launch_anywhere<common_t, false, kInputs>(args, f, stream);
}

}  // namespace treadle
