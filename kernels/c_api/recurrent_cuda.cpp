// Recurrent layers of kernels.h on CUDA: the persistent kernels. Twin, with ATen around it:
// csrc/recurrent/run/persistent.cpp and cuda/layer.cpp there.
#include <algorithm>

#include "kernels/c_api/cuda.h"
#include "kernels/c_api/recurrent.h"
#ifdef TREADLE_CUDA_VERSION
#include "kernels/common/launches.h"
#include "kernels/recurrent/launchers.h"
#endif

namespace treadle {

#ifndef TREADLE_CUDA_VERSION

RecurrencePlan plan_on_cuda(const CLayer&, bool) { return {}; }
size_t workspace_on_cuda(const CLayer&, bool) { return 0; }
void forward_on_cuda(const CLayer&, const CForward&) {}
void backward_on_cuda(const CLayer&, const CBackward&) {}

#else

namespace {

constexpr int64_t kChunk = 8;  // elements of the kernels' widest load

size_t rounded(size_t bytes) { return (bytes + 255) / 256 * 256; }

PersistentSizes sizes_of(const CLayer& layer) {
  const auto& s = layer.sizes;
  return {s.cell,
          s.dtype,
          static_cast<int>(s.directions),
          s.steps,
          s.batch,
          s.hidden,
          /*starts=*/nullptr,
          /*first_row=*/0,
          s.batch,
          /*half_c=*/layer.c_dtype == s.dtype,
          /*tf32=*/false,
          /*setmaxnreg=*/false};
}

RecurrenceDevice device_of(int index) {
  RecurrenceDevice found;
  cuda::check(describe_device(index, &found));
  return found;
}

// Sizes of the largest launch: a grid takes a limited number of rows, so a batch may need several.
PersistentSizes grid_sizes(const CLayer& layer, const RecurrencePlan& plan) {
  PersistentSizes sizes = sizes_of(layer);
  sizes.row_count = std::min<int64_t>(sizes.batch, plan.grid_groups * plan.grid_rows);
  set_grid(sizes, plan);
  return sizes;
}

bool fits(const CLayer& layer, const RecurrencePlan& plan, bool backward) {
  if (plan.is("cluster")) {
    int clusters = 0;
    cuda::check(
        clusters_at_once(layer.sizes.cell, layer.sizes.dtype, backward, plan.clusters, &clusters));
    return clusters > 0;
  }
  bool found = false;
  cuda::check(grid_fits(backward, grid_sizes(layer, plan), plan.grid_rows, &found));
  return found;
}

size_t exchange_bytes(const CLayer& layer, const RecurrencePlan& plan, bool backward) {
  if (!plan.is("grid")) return 0;
  return grid_exchange_bytes(grid_sizes(layer, plan), plan.grid_rows, backward);
}

size_t c_states_bytes(const CLayer& layer) {
  const int64_t elements = layer.sizes.directions * layer.rows() * layer.sizes.hidden;
  return rounded(static_cast<size_t>(elements * acc_bytes(layer.sizes.dtype)));
}

// launch(args) for as many rows of the batch at a time as the grid takes; the exchange of its
// blocks is first cleared to "nothing has arrived".
template <class Args, class Launch>
void run_grid(Args args, const RecurrencePlan& plan, bool backward, void* exchange,
              cudaStream_t stream, const Launch& launch) {
  const int64_t batch = args.sizes.batch, each = plan.grid_groups * plan.grid_rows;
  set_grid(args.sizes, plan);
  for (int64_t first = 0; first < batch; first += each) {
    args.sizes.first_row = first;
    args.sizes.row_count = std::min(each, batch - first);
    args.exchange = exchange;
    const size_t bytes = grid_exchange_bytes(args.sizes, plan.grid_rows, backward);
    cuda::check(cudaMemsetAsync(exchange, 0xff, bytes, stream));
    cuda::check(launch(args, plan.grid_rows, stream));
  }
}

}  // namespace

RecurrencePlan plan_on_cuda(const CLayer& layer, bool backward) {
  const auto unsupported = [&](const char* reason) {
    raise(TREADLE_UNSUPPORTED, "layer must run in one launch, got one that does not: ", reason);
  };
  if (layer.sizes.hidden % kChunk != 0) unsupported("hidden is not a multiple of 8");
  RecurrencePlan plan;
  const auto device = device_of(layer.device.index);
  const char* const refusal = plan_recurrence(layer.sizes, device, "auto", backward, &plan);
  if (refusal != nullptr) unsupported(refusal);
  // A launch per step may be faster, but is not offered here.
  for (const char* const other : {"cluster", "grid"}) {
    if (plan.persistent()) break;
    plan_recurrence(layer.sizes, device, other, backward, &plan);
  }
  if (!plan.persistent()) unsupported(plan.reason);
  if (!fits(layer, plan, backward)) unsupported("its blocks do not fit on this GPU");
  return plan;
}

size_t workspace_on_cuda(const CLayer& layer, bool backward) {
  const cuda::Guard guard(layer.device);
  const RecurrencePlan plan = plan_on_cuda(layer, backward);
  return exchange_bytes(layer, plan, backward) + (backward ? c_states_bytes(layer) : 0);
}

void forward_on_cuda(const CLayer& layer, const CForward& call) {
  const cuda::Guard guard(layer.device);
  const RecurrencePlan plan = plan_on_cuda(layer, /*backward=*/false);
  const LaunchScope scope(plan.algorithm, plan.reason);
  const cudaStream_t stream = cuda::stream_of(layer.device);
  const auto& [in, out, workspace] = call;
  const int64_t hidden = layer.sizes.hidden, row = layer.cell.input_gates * hidden;
  PersistentForward args{};
  args.sizes = sizes_of(layer);
  // Points before the array, where the gates without an input product would be: they are not read.
  args.products = static_cast<const char*>(in.products) -
                  layer.cell.input_first * hidden * size_of(layer.sizes.dtype);
  args.product_direction = layer.rows() * row;
  args.product_row = row;
  args.product_gate = hidden;
  args.weight_hh = in.weight_hh;
  args.bias_ih = in.bias_ih;
  args.bias_hh = in.bias_hh;
  args.h0 = in.h0;
  args.h = out.h_n;
  args.c0 = in.c0;
  args.c = out.c_n;
  args.output = out.output;
  args.output_row = layer.sizes.directions * hidden;
  args.gates = out.gates;
  if (plan.is("cluster")) {
    return cuda::check(launch_cluster_forward(args, plan.clusters, stream));
  }
  run_grid(args, plan, /*backward=*/false, workspace, stream, launch_grid_forward);
}

void backward_on_cuda(const CLayer& layer, const CBackward& call) {
  const cuda::Guard guard(layer.device);
  const RecurrencePlan plan = plan_on_cuda(layer, /*backward=*/true);
  const LaunchScope scope(plan.algorithm, plan.reason);
  const cudaStream_t stream = cuda::stream_of(layer.device);
  const auto& [in, out, workspace] = call;
  const int64_t hidden = layer.sizes.hidden;
  PersistentCStates c_states{};
  c_states.sizes = sizes_of(layer);
  c_states.gates = in.gates;
  c_states.c0 = in.c0;
  c_states.c_states = workspace;
  c_states.c_direction = layer.rows() * hidden;
  c_states.c_row = hidden;
  cuda::check(launch_c_states(c_states, stream));
  PersistentBackward args{};
  args.sizes = c_states.sizes;
  args.gates = in.gates;
  args.gate_direction = layer.rows() * layer.width();
  args.gate_row = layer.width();
  args.gate_gate = hidden;
  args.c_states = c_states.c_states;
  args.c_direction = c_states.c_direction;
  args.c_row = c_states.c_row;
  args.grad_output = in.grad_output;
  args.grad_direction = hidden;
  args.grad_row = layer.sizes.directions * hidden;
  args.weight_hh = in.weight_hh;
  args.grad_h_n = in.grad_h_n;
  args.grad_c_n = in.grad_c_n;
  args.grad_h0 = out.h0;
  args.grad_c0 = out.c0;
  args.grad_gates = out.gates;
  if (plan.is("cluster")) {
    return cuda::check(launch_cluster_backward(args, plan.clusters, stream));
  }
  run_grid(args, plan, /*backward=*/true, static_cast<char*>(workspace) + c_states_bytes(layer),
           stream, launch_grid_backward);
}

#endif

}  // namespace treadle
