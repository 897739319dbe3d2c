// snake on CUDA. Kernels: kernels/elementwise/{snake,snake_backward}.cu.
#include "elementwise/snake.h"

#include "elementwise/cuda/loop.h"
#include "kernels/elementwise/launchers.h"

namespace treadle {

static void backward_cuda(const SnakeBackwardArgs& args, at::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  check_launch("snake_backward", launch_snake_backward(args, at::cuda::getCurrentCUDAStream()));
}

static constexpr SnakeBackend kCudaBackend{snake_backward_chunks, backward_cuda,
                                           /*short_rows=*/true};

TORCH_LIBRARY_IMPL(treadle, CUDA, m) {
  SnakeOp::register_forms<SnakeOp::Kernels<OnCuda, launch_snake>>(m);
  m.impl("snake_backward", bind<kCudaBackend, run_snake_backward>);
}

}  // namespace treadle
