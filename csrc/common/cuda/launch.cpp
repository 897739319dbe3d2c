#include "common/cuda/launch.h"

#include <cxxabi.h>

#include <cstdlib>

#include "common/launches.h"
#include "kernels/common/launch.h"

namespace treadle {

void check_launch(const char* op, cudaError_t error) {
  if (error == cudaSuccess) return;
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
    const auto* device = at::cuda::getCurrentDeviceProperties();
    TORCH_CHECK(false, op, ": treadle must be built for this GPU's architecture, got ",
                device->name, " (sm_", device->major, device->minor,
                "), which this build has no code for; rebuild with TORCH_CUDA_ARCH_LIST=",
                device->major, ".", device->minor, " (python -m treadle shows what it has)");
  }
  TORCH_CHECK(false, op, ": the kernel must launch, got ", cudaGetErrorName(error), ": ",
              cudaGetErrorString(error));
}

std::string cuda_version() {
  return std::to_string(CUDART_VERSION / 1000) + "." + std::to_string(CUDART_VERSION % 1000 / 10);
}

static std::string kernel_name(const void* kernel) {
  const char* mangled = nullptr;
  if (cudaFuncGetName(&mangled, kernel) != cudaSuccess || mangled == nullptr) return "unknown";
  int status = 0;
  char* name = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  std::string result = status == 0 ? name : mangled;
  std::free(name);
  return result;
}

static void record_launch(const void* kernel, const LaunchShape& shape) {
  if (!recording_launches()) return;
  cudaFuncAttributes attributes = {};
  int blocks = 0;
  C10_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
  C10_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &blocks, kernel, static_cast<int>(shape.block), shape.shared_bytes));
  const auto* device = at::cuda::getCurrentDeviceProperties();
  const double occupancy =
      static_cast<double>(blocks) * shape.block / device->maxThreadsPerMultiProcessor;
  add_launch({kernel_name(kernel),
              {shape.grid_x, shape.grid_y, shape.grid_z},
              {shape.block, 1, 1},
              shape.vector_width,
              shape.elements_per_thread,
              attributes.numRegs,
              attributes.sharedSizeBytes + shape.shared_bytes,
              attributes.localSizeBytes,
              blocks,
              occupancy,
              {},
              {}});
}

// Set while the library is loaded, before anything can launch.
[[maybe_unused]] static const bool observed = [] {
  observe_launch = record_launch;
  return true;
}();

}  // namespace treadle
