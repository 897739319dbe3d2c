// Every kernel of the library is launched here, on the caller's stream. The functions call the
// observer before a launch, and return CUDA's error.
#pragma once

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>

#include <atomic>
#endif
#include <cstdint>

#include "kernels/common/launch.h"

namespace treadle {

inline constexpr int kBlockSize = 256;

template <class T>
__host__ __device__ constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

#ifndef __CUDACC_RTC__
// Whether the build has code for exactly this architecture (900 for sm_90).
constexpr bool compiled_for(int gpu) {
#if defined(__CUDA_ARCH_LIST__)
  for (const int arch : {__CUDA_ARCH_LIST__}) {
    if (arch == gpu) return true;
  }
#endif
  return false;
}

// Whether the kernel that the driver loaded has a body, where compiled(architecture) says for which
// architectures (90 for sm_90) it has one. If the driver has compiled PTX for an older
// GPU, the kernel may be empty: it would run without an error and compute nothing.
template <class Compiled, class... P>
cudaError_t has_code(void (*kernel)(P...), const Compiled& compiled, bool* found) {
#if defined(__CUDA_ARCH_LIST__)
  // If the kernel has a body for every architecture of this build, no check is needed.
  *found = true;
  for (const int architecture : {__CUDA_ARCH_LIST__}) *found &= compiled(architecture / 10);
  if (*found) return cudaSuccess;
#endif
  cudaFuncAttributes attributes = {};
  const cudaError_t error =
      cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
  *found = error == cudaSuccess && compiled(attributes.ptxVersion);
  return error;
}

// Whether this error means that the device cannot run a kernel: the kernel needs more resources
// than the device has, or was not compiled for the device. If so, the error is cleared.
inline bool cannot_run(cudaError_t error) {
  const bool found = error == cudaErrorInvalidValue || error == cudaErrorNoKernelImageForDevice ||
                     error == cudaErrorInvalidDeviceFunction;
  return found && cudaGetLastError() == error;
}

// The architecture of the current GPU (900 for sm_90); 0 if CUDA reports an error.
inline int current_gpu() {
  constexpr int kMost = 64;
  static std::atomic<int> known[kMost] = {};
  int device = 0, major = 0, minor = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device >= kMost) return 0;
  int gpu = known[device].load(std::memory_order_relaxed);
  if (gpu != 0) return gpu;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess) {
    return 0;
  }
  gpu = major * 100 + minor * 10;
  known[device].store(gpu, std::memory_order_relaxed);
  return gpu;
}

// Whether a kernel may start while the previous one in the stream is still finishing (programmatic
// dependent launch), which hides a microsecond of launch latency. The kernel waits for the previous
// one with an instruction of sm_90 and later. Code for an older architecture lacks it, even if the
// driver compiles that code's PTX for a newer GPU. A GPU runs the newest code that fits it, so only
// builds with both kinds of code need to check the GPU.
inline bool overlaps_launches() {
#if defined(__CUDA_ARCH_LIST__)
  constexpr int kArchs[] = {__CUDA_ARCH_LIST__};
  bool all = true, any = false;
  for (const int arch : kArchs) {
    all = all && arch >= 900;
    any = any || arch >= 900;
  }
  if (all || !any) return all;
  const int gpu = current_gpu();
  for (const int arch : kArchs) {
    if (arch >= 900 && arch <= gpu) return true;
  }
#endif
  return false;
}

#endif

// The first statement of every kernel. Before it, a kernel must not write to global memory, nor
// read results of earlier kernels in the stream. After it, the next kernel may start.
__device__ __forceinline__ void begin_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#ifndef __CUDACC_RTC__
// Attributes of launches: in clusters, cooperative (blocks wait for each other), and overlapping.
inline cudaLaunchAttribute cluster_launch(int blocks) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(blocks);
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  return attribute;
}

inline cudaLaunchAttribute cooperative_launch() {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  return attribute;
}

inline cudaLaunchAttribute overlapping_launch() {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = overlaps_launches() ? 1 : 0;
  return attribute;
}

// Up to two attributes.
struct LaunchAttributes {
  cudaLaunchAttribute list[2] = {};
  unsigned count = 0;

  LaunchAttributes() = default;
  LaunchAttributes(const cudaLaunchAttribute& one) : list{one}, count(1) {}
  LaunchAttributes(const cudaLaunchAttribute& one, const cudaLaunchAttribute& other)
      : list{one, other}, count(2) {}
};

inline cudaLaunchConfig_t launch_config(const LaunchShape& shape, LaunchAttributes& attributes) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(shape.grid_x, shape.grid_y, shape.grid_z);
  config.blockDim = dim3(shape.block);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.attrs = attributes.list;
  config.numAttrs = attributes.count;
  return config;
}

// Returns the error of this launch only; cudaGetLastError would also return older ones.
template <class... P, class... A>
cudaError_t launch_with(void (*kernel)(P...), const LaunchShape& shape, cudaStream_t stream,
                        LaunchAttributes attributes, A... args) {
  if (observe_launch != nullptr) observe_launch(reinterpret_cast<const void*>(kernel), shape);
  cudaLaunchConfig_t config = launch_config(shape, attributes);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...);
}

template <class... P, class... A>
cudaError_t launch(void (*kernel)(P...), const LaunchShape& shape, cudaStream_t stream, A... args) {
  return launch_with(kernel, shape, stream, overlapping_launch(), args...);
}
#endif

}  // namespace treadle
