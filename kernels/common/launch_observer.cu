// Records the launches that a thread makes while recording is on for that thread, with the
// resources that their kernels use.
#include <cuda_runtime_api.h>
#include <cxxabi.h>

#include <cstdlib>

#include "kernels/common/launches.h"

namespace treadle {
namespace {

std::string kernel_name(const void* kernel) {
  const char* mangled = nullptr;
  if (cudaFuncGetName(&mangled, kernel) != cudaSuccess || mangled == nullptr) return "unknown";
  int status = 0;
  char* name = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  std::string result = status == 0 ? name : mangled;
  std::free(name);
  return result;
}

// A kernel whose attributes cannot be read is not recorded. Its launch fails and reports the
// reason.
void record_launch(const void* kernel, const LaunchShape& shape) {
  if (!recording_launches()) return;
  cudaFuncAttributes attributes = {};
  int blocks = 0, device = 0, threads = 1;
  if (cudaFuncGetAttributes(&attributes, kernel) != cudaSuccess ||
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, static_cast<int>(shape.block),
                                                    shape.shared_bytes) != cudaSuccess ||
      cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&threads, cudaDevAttrMaxThreadsPerMultiProcessor, device) !=
          cudaSuccess) {
    return;
  }
  add_launch({kernel_name(kernel), shape, attributes.numRegs,
              attributes.sharedSizeBytes + shape.shared_bytes, attributes.localSizeBytes, blocks,
              static_cast<double>(blocks) * shape.block / threads});
}

// Set while the library is loaded, before anything can launch.
[[maybe_unused]] const bool observed = [] {
  observe_launch = record_launch;
  return true;
}();

}  // namespace
}  // namespace treadle
