// The launches of recurrent_layer on CUDA that run all steps: c states, and algorithms "cluster"
// and "grid". csrc/recurrent/run/persistent.cpp calls them.
#include <ATen/Functions.h>

#include <algorithm>
#include <vector>

#include "kernels/recurrent/launchers.h"
#include "recurrent/cuda/layer.h"

namespace treadle {
namespace {

// The first row of each step; undefined if that is t * batch.
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

// Calls launch(args) for as many rows of the batch at a time as the grid takes. Every byte of the
// workspace, through which its blocks exchange values, is first set to 0xff: nothing has arrived.
template <class Args, class Launch>
void run_grid(const char* op, Args args, const RecurrencePlan& plan, bool backward,
              at::Device device, cudaStream_t stream, const Launch& launch) {
  const int64_t batch = args.sizes.batch, each = plan.grid_groups * plan.grid_rows;
  set_grid(args.sizes, plan);
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

}  // namespace

void c_states_cuda(const RecurrenceCStates& args, int64_t d, const Sequence& sequence,
                   at::Device device) {
  constexpr const char* op = "recurrent_layer_backward";
  check_units(op, args.batch, args.hidden);
  with_stream(device, [&](cudaStream_t stream) {
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
  with_stream(device, [&](cudaStream_t stream) {
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
  with_stream(device, [&](cudaStream_t stream) {
    const Tensor starts = device_starts(sequence, args.sizes.batch, device, stream);
    c_states.sizes.starts = args.sizes.starts = starts_of(starts);
    check_launch(op, launch_c_states(c_states, stream));
    if (plan.is("cluster")) {
      return check_launch(op, launch_cluster_backward(args, plan.clusters, stream));
    }
    run_grid(op, args, plan, /*backward=*/true, device, stream, launch_grid_backward);
  });
}

}  // namespace treadle
