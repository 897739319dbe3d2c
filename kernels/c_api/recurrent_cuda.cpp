// Recurrent layers of kernels.h on CUDA. csrc/recurrent/cuda uses kernels/recurrent/run.h, too.
#include "kernels/c_api/cuda.h"
#include "kernels/c_api/recurrent.h"
#ifdef TREADLE_CUDA_VERSION
#include "kernels/recurrent/launchers.h"
#include "kernels/recurrent/plan/scope.h"
#include "kernels/recurrent/run.h"
#endif

namespace treadle {

#ifndef TREADLE_CUDA_VERSION

size_t workspace_on_cuda(const CLayer&, bool) { return 0; }
void forward_on_cuda(const CLayer&, const CForward&) {}
void backward_on_cuda(const CLayer&, const CBackward&) {}

#else

namespace {

// Returns a plan that runs the layer in one persistent launch. Raises if no such kernel can run the
// layer on this GPU.
RecurrencePlan plan_on_cuda(const CLayer& layer, bool backward) {
  RecurrenceDevice device;
  cuda::check(describe_device(layer.device.index, &device));
  RecurrencePlan plan;
  plan.reason = "hidden is not a multiple of 8";
  // Kernels load 8 elements at a time. "auto" may prefer one launch per step, which this library
  // does not offer.
  for (const char* const algorithm : {"auto", "cluster", "grid"}) {
    if (layer.sizes.hidden % 8 != 0 || plan.persistent()) break;
    plan_recurrence(layer.sizes, device, algorithm, backward, &plan);
  }
  bool fits = false;
  cuda::check(plan_fits(layer.sizes, plan, backward, &fits));
  if (plan.persistent() && fits) return plan;
  raise(TREADLE_UNSUPPORTED, "layer must run in one launch, got one that does not: ",
        plan.persistent() ? "its blocks do not fit on this GPU" : plan.reason);
}

PersistentSizes sizes_of(const CLayer& layer) {
  return persistent_sizes(layer.sizes, /*half_c=*/layer.c_dtype == layer.sizes.dtype);
}

}  // namespace

size_t workspace_on_cuda(const CLayer& layer, bool backward) {
  const cuda::Guard guard(layer.device);
  return workspace_bytes(layer.sizes, plan_on_cuda(layer, backward)) +
         (backward ? c_states_bytes(layer.sizes, layer.rows()) : 0);
}

void forward_on_cuda(const CLayer& layer, const CForward& call) {
  const cuda::Guard guard(layer.device);
  const RecurrencePlan plan = plan_on_cuda(layer, /*backward=*/false);
  const PlanScope scope(layer.sizes, /*backward=*/false, plan);
  const auto& [in, out, workspace] = call;
  const int64_t hidden = layer.sizes.hidden;
  PersistentForward args =
      forward_arguments(sizes_of(layer), layer.rows(), hidden, layer.cell.input_gates);
  // Points to where gates without an input product would be, before the array. They are not read.
  args.products = static_cast<const char*>(in.products) -
                  layer.cell.input_first * hidden * size_of(layer.sizes.dtype);
  args.weight_hh = in.weight_hh;
  args.bias_ih = in.bias_ih;
  args.bias_hh = in.bias_hh;
  args.h0 = in.h0;
  args.h = out.h_n;
  args.c0 = in.c0;
  args.c = out.c_n;
  args.output = out.output;
  args.gates = out.gates;
  cuda::check(run_forward(args, plan, workspace, cuda::stream_of(layer.device)));
}

void backward_on_cuda(const CLayer& layer, const CBackward& call) {
  const cuda::Guard guard(layer.device);
  const RecurrencePlan plan = plan_on_cuda(layer, /*backward=*/true);
  const PlanScope scope(layer.sizes, /*backward=*/true, plan);
  const auto& [in, out, workspace] = call;
  BackwardArguments args = backward_arguments(sizes_of(layer), layer.rows(), layer.sizes.hidden);
  args.c_states.gates = args.steps.gates = in.gates;
  args.c_states.c0 = in.c0;
  args.c_states.c_states = workspace;
  args.steps.grad_output = in.grad_output;
  args.steps.weight_hh = in.weight_hh;
  args.steps.grad_h_n = in.grad_h_n;
  args.steps.grad_c_n = in.grad_c_n;
  args.steps.grad_h0 = out.h0;
  args.steps.grad_c0 = out.c0;
  args.steps.grad_gates = out.gates;
  void* const exchange = static_cast<char*>(workspace) + c_states_bytes(layer.sizes, layer.rows());
  cuda::check(run_backward(args, plan, exchange, cuda::stream_of(layer.device)));
}

#endif

}  // namespace treadle
