// lltm_layer on CUDA, in the regime "step": a product and a kernel a step. Kernels:
// kernels/lltm_layer.cu. Twin: lltm_layer_cpu.cpp.
#include "kernels/lltm_layer.h"

#include <ATen/Functions.h>
#include <ATen/OpMathType.h>

#include "cuda/launch.h"
#include "cuda/products.h"
#include "launches.h"
#include "lltm_layer_run.h"

namespace treadle {
namespace {

constexpr int64_t kGates = Layer::kGates;

RecurrenceDevice device_cuda(at::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  const auto* properties = at::cuda::getDeviceProperties(device.index());
  RecurrenceDevice found;
  found.cuda = true;
  found.multiprocessors = properties->multiProcessorCount;
  found.l2_bytes = properties->l2CacheSize;
  found.tf32 = tf32_allowed();
  return found;
}

ScalarType work_dtype_cuda(ScalarType dtype) { return dtype; }

// Of half types into float: what is added to it is not rounded on the way.
Tensor product_in_acc(const Tensor& a, const Tensor& b) {
  const auto acc = at::toOpMathType(a.scalar_type());
  return acc == a.scalar_type() ? at::mm(a, b) : at::mm(a, b, acc);
}

Tensor input_product_cuda(const Tensor& x, const Tensor& weight_ih, bool transposed) {
  return transposed ? product_in_acc(weight_ih, x.t()) : product_in_acc(x, weight_ih.t());
}

void* at_row(const MatrixView& view, int64_t row, int64_t element_size) {
  return static_cast<char*>(const_cast<void*>(view.data)) + row * view.row_stride * element_size;
}

int64_t acc_size(Dtype dtype) { return dtype == Dtype::kDouble ? 8 : 4; }

int64_t stored_size(Dtype dtype) {
  return dtype == Dtype::kDouble ? 8 : dtype == Dtype::kFloat ? 4 : 2;
}

void check_units(const char* op, int64_t batch, int64_t hidden) {
  TORCH_CHECK(batch * hidden < int64_t{1} << 31, op, ": B * H must be less than 2^31 on CUDA, got ",
              batch, " * ", hidden);
}

void forward_cuda(const RecurrenceForward& args, const Tensor& weight_hh,
                  const RecurrencePlan& plan) {
  constexpr const char* op = "lltm_layer";
  check_units(op, args.batch, args.hidden);
  const c10::cuda::CUDAGuard guard(weight_hh.device());
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  const LaunchNote note(plan.regime, plan.reason);
  const Tensor weight = weight_hh.contiguous();
  const StepProducts products(args.dtype);
  RecurrenceForward one = args;
  one.step_count = 1;
  for (int64_t s = 0; s < args.step_count; ++s) {
    one.steps = args.steps + s;
    const auto [start, rows] = *one.steps;
    if (rows == 0) continue;
    products.run({rows, kGates * args.hidden, args.hidden, args.h, weight.const_data_ptr(),
                  /*b_transposed=*/false, at_row(args.products, start, acc_size(args.dtype)),
                  args.products.row_stride, args.products.column_stride, /*add=*/true});
    check_launch(op, launch_lltm_step_forward(one, stream));
  }
}

void backward_cuda(const RecurrenceBackward& args, const Tensor& weight_hh,
                   const RecurrencePlan& plan) {
  constexpr const char* op = "lltm_layer_backward";
  check_units(op, args.batch, args.hidden);
  const c10::cuda::CUDAGuard guard(weight_hh.device());
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  const LaunchNote note(plan.regime, plan.reason);
  const Tensor weight = weight_hh.contiguous();
  const int64_t width = kGates * args.hidden;
  const StepProducts products(args.dtype);
  RecurrenceBackward one = args;
  one.step_count = 1;
  for (int64_t s = 0; s < args.step_count; ++s) {
    one.steps = args.steps + s;
    const auto [start, rows] = *one.steps;
    if (rows == 0) continue;
    check_launch(op, launch_lltm_step_backward(one, stream));
    const char* grad_gates = static_cast<const char*>(args.grad_gates);
    products.run({rows, args.hidden, width, grad_gates + start * width * stored_size(args.dtype),
                  weight.const_data_ptr(),
                  /*b_transposed=*/true, const_cast<void*>(args.grad_h.data),
                  args.grad_h.row_stride, args.grad_h.column_stride, /*add=*/false});
  }
}

void cells_cuda(const RecurrenceCells& args, at::Device device, const RecurrencePlan& plan) {
  check_units("lltm_layer_backward", args.batch, args.hidden);
  const c10::cuda::CUDAGuard guard(device);
  const LaunchNote note(plan.regime, plan.reason);
  check_launch("lltm_layer_backward", launch_lltm_cells(args, at::cuda::getCurrentCUDAStream()));
}

constexpr RecurrenceBackend kCudaBackend{device_cuda,  work_dtype_cuda, input_product_cuda,
                                         forward_cuda, backward_cuda,   cells_cuda};

}  // namespace

TORCH_LIBRARY_IMPL(treadle, CUDA, m) { register_lltm_layer<kCudaBackend>(m); }

}  // namespace treadle
