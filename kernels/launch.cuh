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

// Whether a kernel may be placed on the GPU while the one before it in the stream still ends, which
// hides a microsecond of launch latency. Every kernel waits in device code, but only code for sm_90
// and later can, so code for an older GPU, which a newer one might translate, rules it out.
constexpr bool overlaps_launches() {
#if defined(__CUDA_ARCH_LIST__)
  for (const int arch : {__CUDA_ARCH_LIST__}) {
    if (arch < 900) return false;
  }
  return true;
#else
  return false;
#endif
}

// The first statement of every kernel: until here nothing that the kernels before it in the stream
// write may be read, nor anything written. Then lets the next kernel come in.
__device__ __forceinline__ void begin_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
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
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &overlap;
  config.numAttrs = overlaps_launches() ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...);
}

}  // namespace treadle
