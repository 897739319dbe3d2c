// lltm_layer on CUDA: in the regime "step" a product and a kernel a step, else one launch. Kernels:
// kernels/lltm_layer.cu, kernels/lltm_persistent.h. Twin: lltm_layer_cpu.cpp.
#include "kernels/lltm_layer.h"

#include <ATen/Functions.h>
#include <ATen/OpMathType.h>

#include <algorithm>
#include <vector>

#include "cuda/launch.h"
#include "cuda/products.h"
#include "kernels/lltm_persistent.h"
#include "launches.h"
#include "lltm_layer_run.h"

namespace treadle {
namespace {

constexpr int64_t kGates = Layer::kGates;

// Whether the device, or the part of it that this process may use, has room for the launch.
bool fits(const RecurrenceSizes& sizes, const RecurrencePlan& plan, bool backward) {
  if (plan.is("cluster")) {
    int clusters = 0;
    check_launch("lltm_layer",
                 lltm_clusters_at_once(backward, sizes.dtype, plan.clusters, &clusters));
    return clusters > 0;
  }
  const PersistentSizes own{
      sizes.dtype,         static_cast<int>(sizes.directions),
      sizes.steps,         sizes.batch,
      sizes.hidden,        /*starts=*/nullptr,
      /*first_row=*/0,     std::min<int64_t>(sizes.batch, plan.grid_groups * plan.grid_rows),
      /*half_cells=*/false};
  bool found = false;
  check_launch("lltm_layer", lltm_grid_fits(backward, own, plan.grid_rows, &found));
  return found;
}

RecurrencePlan plan_cuda(const RecurrenceSizes& sizes, at::Device device, std::string_view regime,
                         bool backward) {
  constexpr const char* op = "lltm_layer";
  const c10::cuda::CUDAGuard guard(device);
  const auto* properties = at::cuda::getDeviceProperties(device.index());
  RecurrenceDevice found;
  found.cuda = true;
  found.architecture = properties->major * 10 + properties->minor;
  found.multiprocessors = properties->multiProcessorCount;
  found.l2_bytes = properties->l2CacheSize;
  found.tf32 = tf32_allowed();
  const RecurrencePlan plan = plan_recurrence(op, sizes, found, regime, backward);
  if (!plan.persistent() || fits(sizes, plan, backward)) return plan;
  TORCH_CHECK(regime == "auto", op, ": regime ", regime, " must fit on the device, got ",
              properties->name, ", which has no room for it");
  RecurrencePlan other = plan_recurrence(op, sizes, found, "step", backward);
  other.reason = plan.is("cluster") ? "the clusters do not fit on this device"
                                    : "the grid does not fit on this device";
  return other;
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

// Where the rows of each step begin, and null if that is at t * batch.
Tensor device_starts(const Sequence& sequence, int64_t batch, at::Device device,
                     cudaStream_t stream) {
  const auto count = static_cast<int64_t>(sequence.steps.size());
  if (sequence.rows == count * batch) return Tensor();
  std::vector<int64_t> host;
  host.reserve(count + 1);
  for (const auto& step : sequence.steps) host.push_back(step.start);
  host.push_back(sequence.rows);
  const Tensor starts = at::empty({count + 1}, at::TensorOptions(device).dtype(at::kLong));
  check_launch("lltm_layer", launch_write_table(host.data(), count + 1,
                                                starts.mutable_data_ptr<int64_t>(), stream));
  return starts;
}

const int64_t* data_of(const Tensor& starts) {
  return starts.defined() ? starts.const_data_ptr<int64_t>() : nullptr;
}

// Calls launch(args) for as many rows of the batch at a time as the grid takes, with a workspace
// for what its blocks hand to each other: nothing yet.
template <class Args, class Launch>
void run_grid(const char* op, Args args, const RecurrencePlan& plan, bool backward,
              at::Device device, cudaStream_t stream, const Launch& launch) {
  const int64_t batch = args.sizes.batch, each = plan.grid_groups * plan.grid_rows;
  for (int64_t first = 0; first < batch; first += each) {
    args.sizes.first_row = first;
    args.sizes.row_count = std::min(each, batch - first);
    const size_t bytes = lltm_grid_exchange_bytes(args.sizes, plan.grid_rows, backward);
    const Tensor exchange =
        at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions(device).dtype(at::kByte));
    args.exchange = exchange.mutable_data_ptr();
    C10_CUDA_CHECK(cudaMemsetAsync(args.exchange, 0xff, bytes, stream));
    check_launch(op, launch(args, plan.grid_rows, stream));
  }
}

void cells_cuda(const RecurrenceCells& args, int64_t d, const Sequence& sequence, at::Device device,
                const RecurrencePlan& plan) {
  constexpr const char* op = "lltm_layer_backward";
  check_units(op, args.batch, args.hidden);
  const c10::cuda::CUDAGuard guard(device);
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  const LaunchNote note(plan.regime, plan.reason);
  const Tensor starts = device_starts(sequence, args.batch, device, stream);
  PersistentCells one{};
  one.sizes = {args.dtype,      1,           args.step_count,
               args.batch,      args.hidden, data_of(starts),
               /*first_row=*/0, args.batch,  /*half_cells=*/false};
  one.direction = static_cast<int>(d);
  one.gates = args.gates;
  one.c0 = args.c;
  one.cells = args.cells;
  one.cell_row = args.hidden;
  check_launch(op, launch_lltm_cells(one, stream));
}

void persistent_forward_cuda(PersistentForward args, const Sequence& sequence, at::Device device,
                             const RecurrencePlan& plan) {
  constexpr const char* op = "lltm_layer";
  check_units(op, args.sizes.batch, args.sizes.hidden);
  const c10::cuda::CUDAGuard guard(device);
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  const LaunchNote note(plan.regime, plan.reason);
  const Tensor starts = device_starts(sequence, args.sizes.batch, device, stream);
  args.sizes.starts = data_of(starts);
  if (plan.is("cluster")) {
    return check_launch(op, launch_lltm_cluster_forward(args, plan.clusters, stream));
  }
  run_grid(op, args, plan, /*backward=*/false, device, stream, launch_lltm_grid_forward);
}

void persistent_backward_cuda(PersistentCells cells, PersistentBackward args,
                              const Sequence& sequence, at::Device device,
                              const RecurrencePlan& plan) {
  constexpr const char* op = "lltm_layer_backward";
  check_units(op, args.sizes.batch, args.sizes.hidden);
  const c10::cuda::CUDAGuard guard(device);
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  const LaunchNote note(plan.regime, plan.reason);
  const Tensor starts = device_starts(sequence, args.sizes.batch, device, stream);
  cells.sizes.starts = args.sizes.starts = data_of(starts);
  check_launch(op, launch_lltm_cells(cells, stream));
  if (plan.is("cluster")) {
    return check_launch(op, launch_lltm_cluster_backward(args, plan.clusters, stream));
  }
  run_grid(op, args, plan, /*backward=*/true, device, stream, launch_lltm_grid_backward);
}

constexpr RecurrenceBackend kCudaBackend{
    plan_cuda,     work_dtype_cuda, input_product_cuda,      forward_cuda,
    backward_cuda, cells_cuda,      persistent_forward_cuda, persistent_backward_cuda};

}  // namespace

TORCH_LIBRARY_IMPL(treadle, CUDA, m) { register_lltm_layer<kCudaBackend>(m); }

}  // namespace treadle
