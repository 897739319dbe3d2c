// sine_linear on CUDA. Kernels: kernels/sine_linear.cu; matrix products: ATen's.
#include "sine_linear.h"

#include <ATen/Functions.h>

#include "cuda/launch.h"
#include "kernels/sine_linear.h"

namespace treadle {

static Tensor operand_cuda(const Tensor& t) { return t; }

// Of half types into float: what omega multiplies is not rounded before.
static void product_cuda(const Tensor& out, const Tensor& x, const Tensor& weight) {
  Tensor z = out;
  if (z.scalar_type() == x.scalar_type()) {
    at::mm_out(z, x, weight.t());
  } else {
    at::mm_out(z, x, weight.t(), z.scalar_type());
  }
}

static void forward_cuda(const SineLinearForward& args, at::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  check_launch("sine_linear", launch_sine_linear_forward(args, at::cuda::getCurrentCUDAStream()));
}

static void slope_cuda(const SineLinearSlope& args, at::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  check_launch("sine_linear_slope",
               launch_sine_linear_slope(args, at::cuda::getCurrentCUDAStream()));
}

static constexpr SineLinearBackend kCudaBackend{operand_cuda, product_cuda, forward_cuda,
                                                slope_cuda, /*product_bytes=*/int64_t{1} << 40};

TORCH_LIBRARY_IMPL(treadle, CUDA, m) { register_sine_linear<kCudaBackend>(m); }

}  // namespace treadle
