// lltm_cell on CUDA. Kernels: kernels/recurrent/lltm_cell; matrix products:
// csrc/recurrent/lltm_cell/cell.cpp.
#include "recurrent/lltm_cell/cell.h"

#include <ATen/Functions.h>

#include "common/check.h"
#include "common/cuda/launch.h"
#include "kernels/recurrent/lltm_cell/launchers.h"

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

static void few_forward_cuda(const LltmFewForward& args, at::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  check_launch("lltm_cell", launch_lltm_few_forward(args, at::cuda::getCurrentCUDAStream()));
}

static void few_gradients_cuda(const LltmGradients& args, at::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  check_launch("lltm_cell_backward",
               launch_lltm_few_gradients(args, at::cuda::getCurrentCUDAStream()));
}

static Tensor pack_cuda(const Tensor& old_h, const Tensor& input) {
  const bool many = input.dim() == 3;
  auto shape = input.sizes().vec();
  shape.back() += old_h.size(-1);
  const Tensor x = at::empty(shape, input.options());
  if (x.numel() == 0) return x;
  const c10::cuda::CUDAGuard guard(x.device());
  check_launch("lltm_cell",
               launch_lltm_pack(
                   {static_cast<int>(x.element_size()), many ? x.size(0) : 1, x.size(-2),
                    old_h.size(-1), input.size(-1), view(old_h), view(input), x.mutable_data_ptr()},
                   at::cuda::getCurrentCUDAStream()));
  return x;
}

// Above this number of rows, torch's reduction is faster, because it distributes rows over blocks.
static constexpr int64_t kBiasRowsOfOneBlock = 1024;

static Tensor bias_grad_cuda(const Tensor& grad_gates) {
  const bool many = grad_gates.dim() == 3;
  const int64_t rows = grad_gates.size(-2), columns = grad_gates.size(-1);
  if (grad_gates.numel() == 0 || rows > kBiasRowsOfOneBlock) return grad_gates.sum(-2);
  auto shape = grad_gates.sizes().vec();
  shape.erase(shape.end() - 2);
  const Tensor grad_bias = at::empty(shape, grad_gates.options());
  const c10::cuda::CUDAGuard guard(grad_gates.device());
  check_launch("lltm_cell_backward",
               launch_lltm_bias_grad(
                   {to_dtype(grad_gates.scalar_type()), many ? grad_gates.size(0) : 1, rows,
                    columns, grad_gates.const_data_ptr(), grad_bias.mutable_data_ptr()},
                   at::cuda::getCurrentCUDAStream()));
  return grad_bias;
}

static constexpr LltmBackend kLltmCuda{lltm_forward_cuda, lltm_backward_cuda, pack_cuda,
                                       bias_grad_cuda,    few_forward_cuda,   few_gradients_cuda};

TORCH_LIBRARY_IMPL(treadle, CUDA, m) { register_lltm_cell<kLltmCuda>(m); }

}  // namespace treadle
