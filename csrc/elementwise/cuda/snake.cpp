// snake on CUDA. Kernels: kernels/elementwise/{snake,snake_backward}.cu.
#include "elementwise/snake.h"

#include "elementwise/cuda/loop.h"
#include "kernels/elementwise/launchers.h"

namespace treadle {

static void snake_cuda(ElementwiseLoop& loop, const SnakeForm& form) {
  run_cuda(loop, [&form](const ElementwiseArgs& args, cudaStream_t stream) {
    return launch_snake(args, form, stream);
  });
}

static void backward_cuda(const SnakeBackwardArgs& args, at::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  check_launch("snake_backward", launch_snake_backward(args, at::cuda::getCurrentCUDAStream()));
}

static constexpr SnakeBackend kCudaBackend{snake_cuda, snake_backward_chunks, backward_cuda,
                                           /*short_rows=*/true};

TORCH_LIBRARY_IMPL(treadle, CUDA, m) { register_snake<kCudaBackend>(m); }

}  // namespace treadle
