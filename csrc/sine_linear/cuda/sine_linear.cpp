// sine_linear on CUDA: the device guard, the stream, and the choice of a kernel of
// kernels/sine_linear/launchers.h. Twin: cpu.cpp.
#include <ATen/Functions.h>
#include <ATen/OpMathType.h>

#include "common/check.h"
#include "common/cuda/gemm.h"
#include "common/cuda/launch.h"
#include "common/tf32.h"
#include "kernels/common/architecture.h"
#include "kernels/sine_linear/launchers.h"
#include "sine_linear/jet.h"

namespace treadle {

static Tensor gemm_operand_cuda(const Tensor& t) { return t; }

// The product of half types is a float: it is not rounded before it is multiplied by omega.
static void gemm_cuda(const Tensor& out, const Tensor& x, const Tensor& weight) {
  const c10::cuda::CUDAGuard guard(x.device());
  const Tensor of_x = with_matrix(x), of_weight = with_matrix(weight);
  Gemm(to_dtype(x.scalar_type()))
      .multiply(matrix_of(out), matrix_of(of_x), matrix_of(of_weight).t(), /*add=*/false,
                /*wide=*/true);
}

static void forward_cuda(const SineLinearForward& args, at::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  check_launch("sine_linear", launch_sine_linear_forward(args, at::cuda::getCurrentCUDAStream()));
}

// Launches a fused kernel. Returns false if it was not launched: if the current GPU has no code for
// it, or if the driver cannot encode tensor maps.
template <class Launch>
static bool launched(const char* op, at::Device device, const Launch& launch) {
  const c10::cuda::CUDAGuard guard(device);
  const cudaError_t error = launch(at::cuda::getCurrentCUDAStream());
  if (error == cudaErrorNotSupported) return false;
  check_launch(op, error);
  return true;
}

// The same for a kernel of sm_90a, which gets the number of SMs. `fit` says whether it supports the
// arguments.
template <class Launch>
static bool launch_for_90(const char* op, at::Device device, bool fit, const Launch& launch) {
  const auto* gpu = at::cuda::getDeviceProperties(device.index());
  if (!fit || architecture_of(gpu->major, gpu->minor) != 90) return false;
  return launched(op, device,
                  [&](cudaStream_t stream) { return launch(gpu->multiProcessorCount, stream); });
}

// The GEMMs of fused kernels use TF32 for float32, so torch must allow it.
static bool fused_product(Dtype dtype) { return dtype != Dtype::kFloat || tf32_allowed(); }

static bool fused_forward_cuda(const SineLinearForward& args, at::Device device) {
  const bool fit = fused_product(args.dtype) && sine_linear_fused_forward_supports(args);
  return launch_for_90("sine_linear", device, fit,
                       [&](int processors, cudaStream_t stream) {
                         return launch_sine_linear_fused_forward(args, processors, stream);
                       }) ||
         (sine_linear_mma_forward_supports(args) &&
          launched("sine_linear", device, [&](cudaStream_t stream) {
            return launch_sine_linear_mma_forward(args, stream);
          }));
}

static void slope_cuda(const SineLinearSlope& args, at::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  check_launch("sine_linear_slope",
               launch_sine_linear_slope(args, at::cuda::getCurrentCUDAStream()));
}

static void backward_bias_cuda(const SineLinearSlope& slope, const Tensor& grad_z,
                               const Tensor& grad_bias) {
  const c10::cuda::CUDAGuard guard(grad_z.device());
  SineLinearBackwardBias args{slope, grad_z.size(0), grad_z.size(1), nullptr, data_of(grad_bias)};
  const auto acc = at::toOpMathType(grad_z.scalar_type());
  const Tensor parts =
      at::empty({sine_linear_backward_bias_parts(args), args.columns}, grad_z.options().dtype(acc));
  args.parts = data_of(parts);
  check_launch("sine_linear_backward",
               launch_sine_linear_backward_bias(args, at::cuda::getCurrentCUDAStream()));
}

static bool fused_backward_cuda(const SineLinearFusedBackward& args, at::Device device) {
  const bool fit = sine_linear_fused_backward_supports(args);
  return launch_for_90(
      "sine_linear_backward", device, fit, [&](int processors, cudaStream_t stream) {
        const Tensor parts = at::empty({sine_linear_fused_backward_parts(args, processors)},
                                       at::TensorOptions(device).dtype(at::kFloat));
        return launch_sine_linear_fused_backward(args, data_of(parts), processors, stream);
      });
}

static void slope_backward_cuda(const SineLinearSlopeBackward& args, at::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  check_launch("sine_linear_slope_backward",
               launch_sine_linear_slope_backward(args, at::cuda::getCurrentCUDAStream()));
}

// This limit only saves memory. Chunks that stay in the L2 cache are slower, because the GPU is
// partly idle at the start and end of each: 2^18 bfloat16 rows of 256 elements on an H200 take 242
// us in one chunk, 306 us in chunks of 16 MiB and 266 us in chunks of 64 MiB.
static constexpr int64_t kGemmBytes = int64_t{1} << 30;

static constexpr SineLinearBackend kCudaBackend{
    gemm_operand_cuda,   gemm_cuda,          kGemmBytes,
    forward_cuda,        fused_forward_cuda, slope_cuda,
    slope_backward_cuda, backward_bias_cuda, fused_backward_cuda};

// ---- jets

static void jet_forward_cuda(const SineJetForward& args, at::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  check_launch("sine_linear_jet", launch_sine_jet_forward(args, at::cuda::getCurrentCUDAStream()));
}

static bool jet_fused_forward_cuda(const SineJetForward& args, at::Device device) {
  const bool fit = fused_product(args.dtype) && sine_jet_fused_forward_supports(args);
  return launch_for_90("sine_linear_jet", device, fit, [&](int processors, cudaStream_t stream) {
    return launch_sine_jet_fused_forward(args, processors, stream);
  });
}

static void jet_backward_cuda(SineJetBackward args, const Tensor& grad_z, const Tensor& grad_bias) {
  const c10::cuda::CUDAGuard guard(grad_z.device());
  Tensor sums;
  if (grad_bias.defined()) {
    const auto acc = at::toOpMathType(grad_z.scalar_type());
    sums = at::empty({sine_jet_backward_parts(args), args.columns}, grad_z.options().dtype(acc));
    args.sums = data_of(sums);
  }
  check_launch("sine_linear_jet_backward",
               launch_sine_jet_backward(args, at::cuda::getCurrentCUDAStream()));
}

static constexpr SineJetBackend kCudaJetBackend{kCudaBackend,           /*multiplies=*/true,
                                                /*rounds_rest=*/true,   jet_forward_cuda,
                                                jet_fused_forward_cuda, jet_backward_cuda};

TORCH_LIBRARY_IMPL(treadle, CUDA, m) {
  register_sine_linear<kCudaBackend>(m);
  register_sine_jet<kCudaJetBackend>(m);
}

}  // namespace treadle
