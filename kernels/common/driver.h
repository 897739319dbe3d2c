// Looks up functions of the CUDA driver, against which the library is not linked.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace treadle {

// Null if the driver lacks the function. F is decltype(&name).
template <class F>
F find_driver_function(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult state{};
#if CUDART_VERSION >= 12050
  const auto error =
      cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &state);
#else
  const auto error = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &state);
#endif
  const bool ok = error == cudaSuccess && state == cudaDriverEntryPointSuccess;
  return ok ? reinterpret_cast<F>(found) : nullptr;
}

// This thread's current context, which may be limited to a part of the GPU; null if unknown.
inline CUcontext current_context() {
  static const auto get = find_driver_function<decltype(&cuCtxGetCurrent)>("cuCtxGetCurrent");
  CUcontext found = nullptr;
  return get != nullptr && get(&found) == CUDA_SUCCESS ? found : nullptr;
}

}  // namespace treadle
