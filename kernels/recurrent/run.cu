// Defines the functions of run.h.
#include <algorithm>

#include "kernels/recurrent/launchers.h"
#include "kernels/recurrent/run.h"

namespace treadle {
namespace {

// Calls launch(args, plan, stream) for all rows of the batch, with as many rows at a time as one
// launch can compute.
template <class Args, class Launch>
cudaError_t run_rows(Args args, const RecurrencePlan& plan, cudaStream_t stream,
                     const Launch& launch) {
  const int64_t batch = args.sizes.batch, each = plan.rows_at_once(batch);
  for (int64_t first = 0; first < batch; first += each) {
    args.sizes.first_row = first;
    args.sizes.row_count = std::min(each, batch - first);
    // If every byte of a grid's workspace is 0xff, no packet has arrived.
    const size_t bytes = plan.workspace(args.sizes.row_count, args.sizes.directions);
    cudaError_t error =
        bytes > 0 ? cudaMemsetAsync(args.exchange, 0xff, bytes, stream) : cudaSuccess;
    if (error == cudaSuccess) error = launch(args, plan, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

// The same for all directions.
template <class Args, class Launch>
cudaError_t run_directions(Args args, const RecurrencePlan& plan, void* workspace,
                           cudaStream_t stream, const Launch& launch) {
  const int all = args.sizes.directions, each = static_cast<int>(plan.directions_at_once(all));
  args.exchange = workspace;
  cudaError_t error = cudaSuccess;
  for (int first = 0; first < all && error == cudaSuccess; first += each) {
    args.sizes.first_direction = first;
    args.sizes.directions = std::min(each, all - first);
    error = run_rows(args, plan, stream, launch);
  }
  return error;
}

}  // namespace

PersistentSizes persistent_sizes(const RecurrenceSizes& sizes, bool half_c) {
  return {sizes.cell,  sizes.dtype,     static_cast<int>(sizes.directions),
          sizes.steps, sizes.batch,     sizes.hidden,
          nullptr,     /*first_row=*/0, sizes.batch,
          half_c,      sizes.groups};
}

PersistentForward forward_arguments(const PersistentSizes& sizes, int64_t rows, int64_t width,
                                    int gates) {
  PersistentForward args{};
  args.sizes = sizes;
  args.product_direction = rows * gates * width;
  args.product_row = gates * width;
  args.product_gate = width;
  args.output_row = sizes.directions * sizes.hidden;
  return args;
}

BackwardArguments backward_arguments(const PersistentSizes& sizes, int64_t rows, int64_t width) {
  const int64_t gates = cell_info(sizes.cell).gates;
  BackwardArguments args{};
  args.c_states.sizes = args.steps.sizes = sizes;
  args.c_states.c_row = args.steps.c_row = cell_info(sizes.cell).c_parts * width;
  args.c_states.c_direction = args.steps.c_direction = rows * args.steps.c_row;
  args.steps.gate_direction = rows * gates * width;
  args.steps.gate_row = gates * width;
  args.steps.gate_gate = width;
  args.steps.grad_direction = width;
  args.steps.grad_row = sizes.directions * width;
  return args;
}

cudaError_t plan_fits(const RecurrenceSizes& sizes, const RecurrencePlan& plan, bool backward,
                      bool* fits) {
  *fits = plan.kernel != KernelId::kTiles || tiles_supported();
  if (!plan.persistent()) return cudaSuccess;
  PersistentSizes first = persistent_sizes(sizes, /*half_c=*/false);
  first.row_count = plan.rows_at_once(sizes.batch);
  first.directions = static_cast<int>(plan.directions_at_once(sizes.directions));
  return persistent_fits(backward, first, plan, fits);
}

cudaError_t run_forward(PersistentForward args, const RecurrencePlan& plan, void* workspace,
                        cudaStream_t stream) {
  return run_directions(args, plan, workspace, stream, launch_persistent_forward);
}

cudaError_t run_backward(const BackwardArguments& args, const RecurrencePlan& plan, void* workspace,
                         cudaStream_t stream) {
  const cudaError_t error = launch_c_states(args.c_states, stream);
  if (error != cudaSuccess) return error;
  PersistentBackward steps = args.steps;
  steps.c_states = args.c_states.c_states;
  return run_directions(steps, plan, workspace, stream, launch_persistent_backward);
}

}  // namespace treadle
