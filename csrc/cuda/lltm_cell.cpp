// lltm_cell on CUDA. Kernels: kernels/lltm_cell.cu; matrix products: csrc/lltm_cell.cpp.
#include "lltm_cell.h"

#include "cuda/launch.h"
#include "kernels/lltm_cell.h"

namespace treadle {

static void lltm_forward_cuda(const LltmForward& args, at::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  check_launch("lltm_cell", launch_lltm_cell_forward(args, at::cuda::getCurrentCUDAStream()));
}

static void lltm_backward_cuda(const LltmBackward& args, at::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  check_launch("lltm_cell_backward",
               launch_lltm_cell_backward(args, at::cuda::getCurrentCUDAStream()));
}

TORCH_LIBRARY_IMPL(treadle, CUDA, m) {
  register_lltm_cell<lltm_forward_cuda, lltm_backward_cuda>(m);
}

}  // namespace treadle
