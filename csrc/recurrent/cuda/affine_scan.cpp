// affine_scan on CUDA. Kernel: kernels/recurrent/scan/affine_scan.cu.
#include "recurrent/run/affine_scan.h"

#include "common/cuda/launch.h"
#include "kernels/recurrent/launchers.h"

namespace treadle {

static void affine_scan_cuda(const AffineScan& args, at::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  check_launch("affine_scan", launch_affine_scan(args, at::cuda::getCurrentCUDAStream()));
}

static constexpr AffineScanBackend kAffineScanCuda{affine_scan_cuda};

TORCH_LIBRARY_IMPL(treadle, CUDA, m) {
  m.impl("affine_scan", bind<kAffineScanCuda, affine_scan_kernel>);
}

}  // namespace treadle
