// recurrent_layer on CUDA: in the algorithm "step" a matrix product and a kernel a step, in "tiles"
// and "warp" one kernel a step, else one launch. Kernels: kernels/recurrent/launchers.h. Twin:
// cpu.cpp.
#include <ATen/Functions.h>

#include <algorithm>
#include <vector>

#include "common/cuda/gemm.h"
#include "common/cuda/launch.h"
#include "kernels/common/architecture.h"
#include "kernels/common/launches.h"
#include "kernels/recurrent/launchers.h"
#include "recurrent/cuda/parameters.h"
#include "recurrent/run.h"

namespace treadle {
namespace {

// Whether the device, or the part of it that this process may use, has room for the launch.
bool fits(const RecurrenceSizes& sizes, const RecurrencePlan& plan, bool backward) {
  const char* const op = layer_op_name();
  if (plan.is("tiles")) return tiles_supported();
  if (plan.is("cluster")) {
    int clusters = 0;
    check_launch(op, clusters_at_once(sizes.cell, sizes.dtype, backward, plan.clusters, &clusters));
    return clusters > 0;
  }
  PersistentSizes own = persistent_sizes(sizes, /*half_c=*/false);
  own.row_count = std::min<int64_t>(sizes.batch, plan.grid_groups * plan.grid_rows);
  bool found = false;
  check_launch(op, grid_fits(backward, own, plan.grid_rows, &found));
  return found;
}

// LSTM and GRU follow the switch that torch's layers follow, LLTM that of matrix products.
std::optional<bool> tf32_cuda(CellKind cell, Dtype dtype) {
  if (cell == CellKind::kLltm || dtype != Dtype::kFloat) return {};
  const bool wanted = tf32_allowed_in_rnn();
  return wanted == tf32_allowed() ? std::optional<bool>() : wanted;
}

void multiply_cuda(const Matrix& out, const Matrix& a, const Matrix& b, bool add, Dtype dtype,
                   at::Device device, std::optional<bool> tf32) {
  const c10::cuda::CUDAGuard guard(device);
  Gemm(dtype, tf32).multiply(out, a, b, add);
}

RecurrencePlan plan_cuda(const RecurrenceSizes& sizes, at::Device device,
                         std::string_view algorithm, bool backward) {
  const char* const op = layer_op_name();
  const c10::cuda::CUDAGuard guard(device);
  const auto* properties = at::cuda::getDeviceProperties(device.index());
  RecurrenceDevice found;
  found.cuda = true;
  found.architecture = architecture_of(properties->major, properties->minor);
  found.multiprocessors = properties->multiProcessorCount;
  found.l2_bytes = properties->l2CacheSize;
  found.tf32 = tf32_cuda(sizes.cell, sizes.dtype).value_or(tf32_allowed());
  const RecurrencePlan plan = make_plan(op, sizes, found, algorithm, backward);
  if (plan.is("step") || plan.is("warp") || fits(sizes, plan, backward)) return plan;
  TORCH_CHECK(algorithm == "auto", op, ": algorithm ", algorithm, " must fit on the device, got ",
              properties->name, ", which has no room for it");
  RecurrencePlan other = make_plan(op, sizes, found, "step", backward);
  other.reason = plan.is("tiles")     ? "the library has no tiles for this device"
                 : plan.is("cluster") ? "the clusters do not fit on this device"
                                      : "the grid does not fit on this device";
  return other;
}

// Half types are multiplied into float, so that the sum with h W_hh^T is rounded once.
Tensor product_in_acc(const Tensor& a, const Tensor& b) {
  const auto acc = at::toOpMathType(a.scalar_type());
  return acc == a.scalar_type() ? at::mm(a, b) : at::mm(a, b, acc);
}

Tensor input_product_cuda(const Tensor& x, const Tensor& weight_ih, bool transposed,
                          std::optional<bool> tf32) {
  const Tensor a = transposed ? weight_ih : x, b = transposed ? x.t() : weight_ih.t();
  if (!tf32) return product_in_acc(a, b);
  const Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
  const Tensor of_a = with_matrix(a), of_b = with_matrix(b);
  multiply_cuda(matrix_of(out), matrix_of(of_a), matrix_of(of_b), /*add=*/false, Dtype::kFloat,
                a.device(), tf32);
  return out;
}

void* at_row(const MatrixView& view, int64_t row, int64_t element_size) {
  return static_cast<char*>(const_cast<void*>(view.data)) + row * view.row_stride * element_size;
}

void check_units(const char* op, int64_t batch, int64_t hidden) {
  TORCH_CHECK(batch * hidden < int64_t{1} << 31, op, ": B * H must be less than 2^31 on CUDA, got ",
              batch, " * ", hidden);
}

// f(stream) on the device; its launches are recorded as the plan's.
template <class F>
void with_stream(at::Device device, const RecurrencePlan& plan, const F& f) {
  const c10::cuda::CUDAGuard guard(device);
  const LaunchScope scope(plan.algorithm, plan.reason);
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream().stream();
  f(stream);
}

// f(args of one step, where its rows begin, how many they are), for each step that has rows.
template <class Args, class F>
void each_step(const Args& args, const F& f) {
  Args one = args;
  one.step_count = 1;
  for (int64_t s = 0; s < args.step_count; ++s) {
    one.steps = args.steps + s;
    if constexpr (std::is_same_v<Args, RecurrenceBackward>) {
      if (s > 0) one.last = args.steps[s - 1];
    }
    if (one.steps->rows > 0) f(one, one.steps->start, one.steps->rows);
  }
}

void fused_forward_cuda(const FusedForward& args, at::Device device, const RecurrencePlan& plan) {
  const char* const op = layer_op_name();
  check_units(op, args.layer.batch, args.layer.hidden);
  with_stream(device, plan, [&](cudaStream_t stream) {
    if (plan.is("warp")) return check_launch(op, launch_warp_forward(args, stream));
    const int processors = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
    check_launch(op, launch_tiles_forward(args, processors, stream));
  });
}

void forward_cuda(const RecurrenceForward& args, const Tensor& weight_hh,
                  const RecurrencePlan& plan, const void* first_h) {
  const char* const op = layer_op_name();
  check_units(op, args.batch, args.hidden);
  with_stream(weight_hh.device(), plan, [&](cudaStream_t stream) {
    const Tensor weight = weight_hh.contiguous();
    const Gemm gemm(args.dtype, tf32_cuda(args.cell, args.dtype));
    const bool add = cell_info(args.cell).same_gates();
    // Of cells whose gates do not all have both products: h W_hh^T, stored as the input's products.
    const bool transposed = args.products.column_stride != 1;
    const auto options = weight.options().dtype(at::toOpMathType(weight.scalar_type()));
    const Tensor apart = add          ? Tensor()
                         : transposed ? at::empty({weight.size(0), args.batch}, options).t()
                                      : at::empty({args.batch, weight.size(0)}, options);
    each_step(args, [&](RecurrenceForward one, int64_t start, int64_t rows) {
      MatrixView to = args.products;
      if (add) {
        to.data = at_row(to, start, acc_bytes(args.dtype));
      } else {
        to = one.state_products = matrix_view(apart);
      }
      const void* h = first_h != nullptr && one.steps == args.steps ? first_h : args.h;
      gemm.run({rows, weight.size(0), args.hidden, h, args.hidden, weight.const_data_ptr(),
                /*b_transposed=*/false, const_cast<void*>(to.data), to.row_stride, to.column_stride,
                add});
      check_launch(op, launch_step_forward(one, stream));
    });
  });
}

void backward_cuda(const RecurrenceBackward& args, const Tensor& weight_hh,
                   const RecurrencePlan& plan) {
  constexpr const char* op = "recurrent_layer_backward";
  check_units(op, args.batch, args.hidden);
  with_stream(weight_hh.device(), plan, [&](cudaStream_t stream) {
    const Tensor weight = in_gate_order(weight_hh, args.cell, args.hidden, 0).contiguous();
    const Gemm gemm(args.dtype, tf32_cuda(args.cell, args.dtype));
    const int64_t width = cell_info(args.cell).gates * args.hidden;
    const auto* grad_gates = static_cast<const char*>(args.grad_gates);
    each_step(args, [&](const RecurrenceBackward& one, int64_t start, int64_t rows) {
      check_launch(op, launch_step_backward(one, stream));
      gemm.run({rows, args.hidden, weight.size(0), grad_gates + start * width * size_of(args.dtype),
                width, weight.const_data_ptr(), /*b_transposed=*/true,
                const_cast<void*>(args.grad_h.data), args.grad_h.row_stride,
                args.grad_h.column_stride, /*add=*/false});
    });
  });
}

// Where the rows of each step begin; undefined if that is at t * batch.
Tensor device_starts(const Sequence& sequence, int64_t batch, at::Device device,
                     cudaStream_t stream) {
  const auto count = static_cast<int64_t>(sequence.steps.size());
  if (sequence.rows == count * batch) return Tensor();
  std::vector<int64_t> host;
  host.reserve(count + 1);
  for (const auto& step : sequence.steps) host.push_back(step.start);
  host.push_back(sequence.rows);
  const Tensor starts = at::empty({count + 1}, at::TensorOptions(device).dtype(at::kLong));
  check_launch(layer_op_name(), launch_upload_table(host.data(), count + 1,
                                                    starts.mutable_data_ptr<int64_t>(), stream));
  return starts;
}

const int64_t* starts_of(const Tensor& starts) {
  return static_cast<const int64_t*>(const_data_of(starts));
}

// Calls launch(args) for as many rows of the batch at a time as the grid takes. The workspace, in
// which its blocks exchange values, starts as "nothing has arrived": every byte 0xff.
template <class Args, class Launch>
void run_grid(const char* op, Args args, const RecurrencePlan& plan, bool backward,
              at::Device device, cudaStream_t stream, const Launch& launch) {
  const int64_t batch = args.sizes.batch, each = plan.grid_groups * plan.grid_rows;
  for (int64_t first = 0; first < batch; first += each) {
    args.sizes.first_row = first;
    args.sizes.row_count = std::min(each, batch - first);
    const size_t bytes = grid_exchange_bytes(args.sizes, plan.grid_rows, backward);
    const Tensor exchange =
        at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions(device).dtype(at::kByte));
    args.exchange = exchange.mutable_data_ptr();
    C10_CUDA_CHECK(cudaMemsetAsync(args.exchange, 0xff, bytes, stream));
    check_launch(op, launch(args, plan.grid_rows, stream));
  }
}

void c_states_cuda(const RecurrenceCStates& args, int64_t d, const Sequence& sequence,
                   at::Device device, const RecurrencePlan& plan) {
  constexpr const char* op = "recurrent_layer_backward";
  check_units(op, args.batch, args.hidden);
  with_stream(device, plan, [&](cudaStream_t stream) {
    const Tensor starts = device_starts(sequence, args.batch, device, stream);
    PersistentCStates one{};
    one.sizes = persistent_sizes(
        {args.cell, args.step_count, args.batch, args.hidden, /*directions=*/1, args.dtype},
        /*half_c=*/false);
    one.sizes.starts = starts_of(starts);
    one.direction = static_cast<int>(d);
    one.gates = args.gates;
    one.c0 = args.c;
    one.c_states = args.c_states;
    one.c_row = args.hidden;
    one.resets = args.resets;
    check_launch(op, launch_c_states(one, stream));
  });
}

void persistent_forward_cuda(PersistentForward args, const Sequence& sequence, at::Device device,
                             const RecurrencePlan& plan) {
  const char* const op = layer_op_name();
  check_units(op, args.sizes.batch, args.sizes.hidden);
  with_stream(device, plan, [&](cudaStream_t stream) {
    const Tensor starts = device_starts(sequence, args.sizes.batch, device, stream);
    args.sizes.starts = starts_of(starts);
    if (plan.is("cluster")) {
      return check_launch(op, launch_cluster_forward(args, plan.clusters, stream));
    }
    run_grid(op, args, plan, /*backward=*/false, device, stream, launch_grid_forward);
  });
}

void persistent_backward_cuda(PersistentCStates c_states, PersistentBackward args,
                              const Sequence& sequence, at::Device device,
                              const RecurrencePlan& plan) {
  constexpr const char* op = "recurrent_layer_backward";
  check_units(op, args.sizes.batch, args.sizes.hidden);
  with_stream(device, plan, [&](cudaStream_t stream) {
    const Tensor starts = device_starts(sequence, args.sizes.batch, device, stream);
    c_states.sizes.starts = args.sizes.starts = starts_of(starts);
    check_launch(op, launch_c_states(c_states, stream));
    if (plan.is("cluster")) {
      return check_launch(op, launch_cluster_backward(args, plan.clusters, stream));
    }
    run_grid(op, args, plan, /*backward=*/true, device, stream, launch_grid_backward);
  });
}

constexpr RecurrenceBackend kCudaBackend{/*widens_half=*/false,
                                         plan_cuda,
                                         tf32_cuda,
                                         multiply_cuda,
                                         input_product_cuda,
                                         forward_cuda,
                                         backward_cuda,
                                         c_states_cuda,
                                         parameters_cuda,
                                         fused_forward_cuda,
                                         persistent_forward_cuda,
                                         persistent_backward_cuda};

}  // namespace

TORCH_LIBRARY_IMPL(treadle, CUDA, m) { register_recurrent_layer<kCudaBackend>(m); }

}  // namespace treadle
