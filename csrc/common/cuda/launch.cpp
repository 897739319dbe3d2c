#include "common/cuda/launch.h"

namespace treadle {

void check_launch(const char* op, cudaError_t error) {
  if (error == cudaSuccess) return;
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
    const auto* device = at::cuda::getCurrentDeviceProperties();
    TORCH_CHECK(
        false, op, ": treadle must be built for this GPU's architecture, got ", device->name,
        " (sm_", device->major, device->minor,
        "), for which this build has no code; rebuild with TORCH_CUDA_ARCH_LIST=", device->major,
        ".", device->minor, " (python -m treadle lists the architectures of this build)");
  }
  TORCH_CHECK(false, op, ": kernel launch failed: ", cudaGetErrorName(error), ": ",
              cudaGetErrorString(error));
}

}  // namespace treadle
