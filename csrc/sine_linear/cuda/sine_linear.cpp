// sine_linear on CUDA. Kernels: kernels/sine_linear.cu, sine_linear_product.cu,
// sine_linear_slope.cu, sine_linear_sums.cu and sine_linear_gradients.cu.
#include "kernels/sine_linear.h"

#include <ATen/Functions.h>
#include <ATen/OpMathType.h>

#include <limits>

#include "check.h"
#include "cuda/launch.h"
#include "cuda/products.h"
#include "sine_linear.h"

namespace treadle {

static Tensor operand_cuda(const Tensor& t) { return t; }

// Of half types into float: what omega multiplies is not rounded before.
static void product_cuda(const Tensor& out, const Tensor& x, const Tensor& weight) {
  const int64_t largest = std::max({x.size(0), x.size(1), weight.size(0)});
  if (x.is_contiguous() && weight.is_contiguous() && largest < std::numeric_limits<int>::max()) {
    const c10::cuda::CUDAGuard guard(x.device());
    return StepProducts(to_dtype(x.scalar_type()))
        .run({x.size(0), weight.size(0), x.size(1), x.const_data_ptr(), weight.const_data_ptr(),
              /*b_transposed=*/false, out.mutable_data_ptr(), weight.size(0), 1, /*add=*/false});
  }
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

// Multiprocessors of a GPU that runs code for sm_90a, or 0.
static int processors_of_90(at::Device device) {
  const auto* gpu = at::cuda::getDeviceProperties(device.index());
  return gpu->major == 9 && gpu->minor == 0 ? gpu->multiProcessorCount : 0;
}

static bool whole_cuda(const SineLinearForward& args, at::Device device) {
  // Whose products of float are tf32's.
  if (args.dtype == Dtype::kFloat && !tf32_allowed()) return false;
  const int processors = processors_of_90(device);
  if (processors == 0 || !sine_linear_product_takes(args)) return false;
  const c10::cuda::CUDAGuard guard(device);
  const cudaError_t error =
      launch_sine_linear_product(args, processors, at::cuda::getCurrentCUDAStream());
  if (error == cudaErrorNotSupported) return false;
  check_launch("sine_linear", error);
  return true;
}

static void slope_cuda(const SineLinearSlope& args, at::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  check_launch("sine_linear_slope",
               launch_sine_linear_slope(args, at::cuda::getCurrentCUDAStream()));
}

static void slope_sums_cuda(const SineLinearSlope& slope, const Tensor& result,
                            const Tensor& sums) {
  const c10::cuda::CUDAGuard guard(result.device());
  SineLinearSlopeSums args{slope, result.size(0), result.size(1), nullptr, data_of(sums)};
  const auto acc = at::toOpMathType(result.scalar_type());
  const Tensor parts =
      at::empty({sine_linear_slope_sums_parts(args), args.columns}, result.options().dtype(acc));
  args.parts = data_of(parts);
  check_launch("sine_linear_backward",
               launch_sine_linear_slope_sums(args, at::cuda::getCurrentCUDAStream()));
}

static bool backward_cuda(const SineLinearGradients& args, at::Device device) {
  const int processors = processors_of_90(device);
  if (processors == 0 || !sine_linear_gradients_takes(args)) return false;
  const c10::cuda::CUDAGuard guard(device);
  const Tensor parts = at::empty({sine_linear_gradients_parts(args, processors)},
                                 at::TensorOptions(device).dtype(at::kFloat));
  const cudaError_t error = launch_sine_linear_gradients(args, data_of(parts), processors,
                                                         at::cuda::getCurrentCUDAStream());
  if (error == cudaErrorNotSupported) return false;
  check_launch("sine_linear_backward", error);
  return true;
}

static void slope_backward_cuda(const SineLinearSlopeBackward& args, at::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  check_launch("sine_linear_slope_backward",
               launch_sine_linear_slope_backward(args, at::cuda::getCurrentCUDAStream()));
}

// Only a bound on memory. Parts that stay in the L2 cache are slower: of 2^18 bfloat16 rows of 256
// (H200) all at once take 242 us, parts of 16 MiB 306 us and of 64 MiB 266 us, since each starts
// and ends with an idle chip.
static constexpr int64_t kProductBytes = int64_t{1} << 30;

static constexpr SineLinearBackend kCudaBackend{operand_cuda, product_cuda, forward_cuda,
                                                whole_cuda, kProductBytes};
static constexpr SineLinearSlopes kCudaSlopes{slope_cuda, slope_backward_cuda, slope_sums_cuda,
                                              backward_cuda};

TORCH_LIBRARY_IMPL(treadle, CUDA, m) {
  register_sine_linear<kCudaBackend>(m);
  register_sine_linear_slopes<kCudaSlopes>(m);
}

}  // namespace treadle
