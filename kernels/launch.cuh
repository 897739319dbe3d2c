// Every kernel of the library is launched here: on the caller's stream, checked, recorded if asked.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/launch.h"

namespace treadle {

inline constexpr int kBlockSize = 256;

template <class T>
__host__ __device__ constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

// The returned error is this launch's own: cudaGetLastError would also hand out older ones.
template <class... P, class... A>
cudaError_t launch(void (*kernel)(P...), const LaunchShape& shape, cudaStream_t stream, A... args) {
  if (recording_launches()) record_launch(reinterpret_cast<const void*>(kernel), shape);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(shape.grid_x, shape.grid_y, shape.grid_z);
  config.blockDim = dim3(shape.block);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...);
}

}  // namespace treadle
