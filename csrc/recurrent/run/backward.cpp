// recurrent_layer_backward on all devices. The steps compute the gradients of all gates. Matrix
// products and sums over all steps then give the gradients of the input, the weights and the
// biases. layer/layer.h explains the sizes, such as S. Forward pass: forward.cpp.
#include <ATen/Functions.h>

#include "common/flush.h"
#include "common/gemm.h"
#include "recurrent/layer/groups.h"
#include "recurrent/run/run.h"

namespace treadle {
namespace {

// The gradient of h_n or c_n of direction d, [B, width] in dtype acc, from which the backward pass
// starts.
Tensor grad_of_state(const LayerRun& run, const Tensor& grad, int64_t d, int64_t width,
                     bool transposed) {
  const auto options = run.arguments.input.options().dtype(run.acc);
  const Tensor t = transposed ? at::empty({width, run.sizes.batch}, options).t()
                              : at::empty({run.sizes.batch, width}, options);
  return grad.defined() ? t.copy_(grad[d]) : t.zero_();
}

// Returns the gradients of the gates [S, GH] of direction d. Overwrites grad_h and grad_c with the
// gradients of h0 and c0.
Tensor grad_gates(const BackwardPass& pass, int64_t d, const Tensor& previous_h,
                  const Tensor& grad_h, const Tensor& grad_c, const StateGradients& states,
                  const BackwardSteps& f) {
  const LayerRun& run = pass.run;
  const LayerArguments& a = run.arguments;
  const auto& sizes = run.sizes;
  const auto options = a.input.options().dtype(run.work);
  const int64_t rows = run.sequence.rows, width = run.width();
  if (run.idle()) return at::empty({rows, width}, options);
  const Tensor g = aligned(pass.recompute ? pass.recompute_gates(d, previous_h) : pass.gates[d]);
  // The c before every step is recomputed from the gates, which is cheaper than storing it in
  // forward.
  const Tensor c_states = at::empty({rows, run.c_width()}, a.input.options().dtype(run.acc));
  const Tensor c =
      a.c0[d].to(run.acc, /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::Contiguous);
  // Each recomputed gate is overwritten with its gradient.
  const bool in_place = pass.recompute && run.work == g.scalar_type();
  const Tensor result = in_place ? g : at::empty({rows, width}, options);
  // grad_rows may be a copy, which must exist until the steps have read it.
  const Tensor grad_rows = pass.grads.output.defined() ? run.rows(pass.grads.output) : Tensor();
  MatrixView grad;
  if (grad_rows.defined()) {
    grad = matrix_view(grad_rows.narrow(1, d * sizes.hidden, sizes.hidden));
  }
  const auto forward_steps = run.sequence.in_order(a.time_direction(d));
  const auto steps = run.sequence.in_order(a.time_direction(d), /*reversed=*/true);
  f({d,
     steps,
     parameter_of(a, a.weight_hh, d),
     grad_h,
     grad_c,
     {sizes.cell, sizes.dtype, sizes.batch, sizes.hidden, forward_steps.data(), sizes.steps,
      g.const_data_ptr(), c.mutable_data_ptr(), c_states.mutable_data_ptr(), run.resets.from(d)},
     {sizes.cell, sizes.dtype, sizes.batch, sizes.hidden, steps.data(), sizes.steps,
      g.const_data_ptr(), c_states.const_data_ptr(), grad, matrix_view(grad_h),
      grad_c.mutable_data_ptr(), result.mutable_data_ptr(),
      run.resets.from(d, states.reset_h, states.reset_c)}});
  return result;
}

StateGradients new_state_gradients(const LayerRun& run, const LayerMask& mask) {
  const LayerArguments& a = run.arguments;
  StateGradients states;
  if (mask[1]) states.h0 = at::empty(a.h0.sizes(), a.h0.options());
  if (mask[2]) states.c0 = at::empty(a.c0.sizes(), a.c0.options());
  const auto each_step = [&](int64_t width) {
    return at::zeros({run.sizes.directions, run.sequence.rows, width},
                     a.input.options().dtype(run.acc));
  };
  // Arguments that were not given have no gradients.
  if (mask[7] && a.reset_h.defined()) states.reset_h = each_step(run.sizes.hidden);
  if (mask[8] && a.reset_c.defined()) states.reset_c = each_step(run.c_width());
  return states;
}

// Computes the gradient of reset_h or reset_c from its gradients for each step and row [D, S, ...].
Tensor of_replaced(const LayerRun& run, const Tensor& grad, const Tensor& model) {
  if (!grad.defined()) return grad;
  const Tensor found = run.resets.per_step ? grad.view(model.sizes())
                                           : run.sequence.sum_of_steps(grad, run.sizes.batch);
  return cast(found, model.scalar_type());
}

}  // namespace

// The h of all steps are known, so one matrix product computes the gates of all steps.
Tensor BackwardPass::recompute_gates(int64_t d, const Tensor& previous_h) const {
  const LayerArguments& a = run.arguments;
  const auto work = [&](const Tensor& t) { return cast(parameter_of(a, t, d), run.work); };
  const auto product = [&](const Tensor& x, const Tensor& w, const Tensor& bias) {
    if (run.tf32) return plus(run.backend.product(run, x, w.t()), bias);
    return bias.defined() ? at::addmm(bias, x, w.t()) : x.mm(w.t());
  };
  if (run.cell.same_gates()) {
    std::vector<Tensor> x{previous_h, run.rows(a.input)};
    std::vector<Tensor> w{work(a.weight_hh), work(a.weight_ih)};
    Tensor bias = plus(work(a.bias_ih), work(a.bias_hh));
    if (bias.defined() && at::isReducedFloatingType(run.work)) {
      // If the sum of the biases were rounded, its error would be the same at every step. So the
      // product adds the biases. With eight more columns, rows are still aligned to 16 bytes.
      constexpr int64_t kColumns = 8;
      std::vector<Tensor> biases;
      for (const Tensor& each : {a.bias_ih, a.bias_hh}) {
        if (each.defined()) biases.push_back(work(each));
      }
      const auto count = static_cast<int64_t>(biases.size());
      w.push_back(at::constant_pad_nd(at::stack(biases, 1), {0, kColumns - count}));
      x.push_back(at::ones_symint({x[0].sym_size(0), kColumns}, x[0].options()));
      bias = Tensor();
    }
    return product(at::cat(x, 1).to(run.work), at::cat(w, 1), bias).to(a.input.scalar_type());
  }
  const auto ordered = [&](const Tensor& t) {
    return in_gate_order(work(t), a.cell, a.h0.sym_size(-1), /*dim=*/0);
  };
  const Tensor of_h = product(previous_h.to(run.work), ordered(a.weight_hh), ordered(a.bias_hh));
  const Tensor gates = at::zeros({of_h.size(0), run.width()}, of_h.options());
  run.state_window(gates).copy_(of_h);
  run.input_window(gates).add_(
      product(run.rows(a.input).to(run.work), work(a.weight_ih), work(a.bias_ih)));
  return gates.to(a.input.scalar_type());
}

Tensor BackwardPass::previous_h(int64_t d) const {
  const int64_t hidden = run.sizes.hidden, in_time = run.arguments.time_direction(d);
  const Tensor own = part(run.rows(output), 1, d * hidden, hidden);
  const Tensor found = run.sequence.previous_h(run.arguments.h0[d], own, in_time);
  const LayerResets& resets = run.resets;
  if (!resets.marks.defined()) return found;
  const Tensor mark = run.sequence.marks_before(run.rows(resets.marks), in_time);
  if (!resets.h.defined()) return found.masked_fill_(mark, 0);
  Tensor by = run.rows_or_batch(resets.h[d]);
  if (!resets.per_step) by = run.sequence.each_step(by);
  return at::where(mark, by, found);
}

void backward_by_steps(const BackwardPass& pass, const StateGradients& states,
                       const BackwardSteps& steps, const ParameterSums& parameters) {
  const LayerRun& run = pass.run;
  for (int64_t d = 0; d < run.sizes.directions; ++d) {
    const Tensor previous = pass.recompute ? pass.previous_h(d) : Tensor();
    const Tensor grad_h =
        grad_of_state(run, pass.grads.h_n, d, run.sizes.hidden, run.plan.transposed);
    const Tensor grad_c =
        grad_of_state(run, pass.grads.c_n, d, run.c_width(), /*transposed=*/false);
    const Tensor of_gates = grad_gates(pass, d, previous, grad_h, grad_c, states, steps);
    if (states.h0.defined()) states.h0[d].copy_(grad_h);
    if (states.c0.defined()) states.c0[d].copy_(grad_c);
    parameters(d, of_gates, previous);
  }
}

static LayerGrads backward(const RecurrenceBackend& backend, const LayerBackwardCall& call) {
  const auto& [grads, arguments, output, gates, recompute, algorithm, mask] = call;
  const LayerRun run(backend, arguments, algorithm, /*backward=*/true);
  const FlushInProducts flush(arguments.input, run.multiplications());
  const Tensor whole_gates = gates.contiguous();
  const StateGradients states = new_state_gradients(run, mask);
  const LayerGradients found =
      backend.backward({run, grads, output, whole_gates, recompute, mask}, states);
  return {found.input,
          states.h0,
          states.c0,
          found.weight_ih,
          found.weight_hh,
          found.bias_ih,
          found.bias_hh,
          of_replaced(run, states.reset_h, arguments.reset_h),
          of_replaced(run, states.reset_c, arguments.reset_c)};
}

// The backward pass of a layer whose W_hh is block-diagonal.
static LayerGrads backward_in_groups(const RecurrenceBackend& backend,
                                     const LayerBackwardCall& call, int64_t groups) {
  const LayerArguments& a = call.arguments;
  const CellInfo& cell = cell_info(a.cell);
  LayerOutputs grads = call.grads;
  grads.h_n = in_groups(grads.h_n, groups, 1, -1);
  grads.c_n = in_groups(grads.c_n, groups, cell.c_parts, -1);
  const LayerArguments given = in_groups(a, groups);
  LayerArguments found;
  std::tie(found.input, found.h0, found.c0, found.weight_ih, found.weight_hh, found.bias_ih,
           found.bias_hh, found.reset_h, found.reset_c) =
      backward(backend,
               {grads, given, call.output, call.gates, call.recompute, call.algorithm, call.mask});
  found = map_units(found, cell, [&](const Tensor& t, int64_t blocks, int64_t dim) {
    return contiguous(from_groups(t, groups, blocks, dim));
  });
  if (a.one_direction()) each_parameter(found, [](const Tensor& t) { return t.squeeze(0); });
  return {found.input,   found.h0,      found.c0,      found.weight_ih, found.weight_hh,
          found.bias_ih, found.bias_hh, found.reset_h, found.reset_c};
}

LayerGrads recurrent_layer_backward_kernel(const RecurrenceBackend& backend,
                                           const LayerBackwardCall& call) {
  const auto& [grads, arguments, output, gates, recompute, algorithm, mask] = call;
  check_layer_backward(grads, arguments, output, gates, recompute);
  check_layer_backward_data(grads, arguments, output, gates);
  // Autocast must not change the dtype of the products, which is the same as in the forward pass.
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
  const int64_t groups = groups_of(arguments);
  return groups == 1 ? backward(backend, call) : backward_in_groups(backend, call, groups);
}

}  // namespace treadle
