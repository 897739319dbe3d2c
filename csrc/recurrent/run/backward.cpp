// recurrent_layer_backward on all devices: the steps compute the gradients of all gates; products
// and sums over all steps then give those of input, weights and bias. Twin: forward.cpp.
#include <ATen/Functions.h>

#include "common/flush.h"
#include "common/gemm.h"
#include "recurrent/run/run.h"

namespace treadle {
namespace {

// Gates [S, GH] of direction d, from h before each step. All h are known, so one product computes
// the gates of all steps.
Tensor recompute_gates(const LayerRun& run, int64_t d, const Tensor& previous_h) {
  const LayerArguments& a = run.arguments;
  const auto work = [&](const Tensor& t) { return cast(parameter_of(a, t, d), run.work); };
  const auto product = [&](const Tensor& x, const Tensor& w, const Tensor& bias) {
    if (run.tf32) return plus(run.mm(x, w.t()), bias);
    return bias.defined() ? at::addmm(bias, x, w.t()) : x.mm(w.t());
  };
  if (run.cell.same_gates()) {
    const Tensor x = at::cat({previous_h, run.rows(a.input)}, 1).to(run.work);
    const Tensor w = at::cat({work(a.weight_hh), work(a.weight_ih)}, 1);
    const Tensor bias = plus(work(a.bias_ih), work(a.bias_hh));
    return product(x, w, bias).to(a.input.scalar_type());
  }
  const Tensor of_h = product(previous_h.to(run.work), work(in_gate_order(a.weight_hh, a)),
                              work(in_gate_order(a.bias_hh, a)));
  const Tensor gates = at::zeros({of_h.size(0), run.width()}, of_h.options());
  run.state_window(gates).copy_(of_h);
  run.input_window(gates).add_(
      product(run.rows(a.input).to(run.work), work(a.weight_ih), work(a.bias_ih)));
  return gates.to(a.input.scalar_type());
}

// c before every step [S, H] of direction d, recomputed from its gates: cheaper than storing it.
Tensor recompute_c(const LayerRun& run, int64_t d, const Tensor& gates) {
  const auto& sizes = run.sizes;
  const Tensor &input = run.arguments.input, &batch_sizes = run.arguments.batch_sizes;
  // A single step begins with c0.
  if (sizes.steps == 1 && !batch_sizes.defined() && !run.resets.marks.defined()) {
    return run.arguments.c0[d].to(run.acc).contiguous();
  }
  const Tensor c_states =
      at::empty({run.sequence.rows, sizes.hidden}, input.options().dtype(run.acc));
  const Tensor c = run.arguments.c0[d].to(run.acc, /*non_blocking=*/false, /*copy=*/true,
                                          at::MemoryFormat::Contiguous);
  const auto steps = run.sequence.in_order(d);
  run.backend.c_states({sizes.cell, sizes.dtype, sizes.batch, sizes.hidden, steps.data(),
                        sizes.steps, gates.const_data_ptr(), c.mutable_data_ptr(),
                        c_states.mutable_data_ptr(), run.resets.from(d)},
                       d, run.sequence, input.device());
  return c_states;
}

struct Gradients {
  LayerGradients whole;  // for backends that write in place; others use `input` and these
  StateGradients states;
  Tensor bias_sums;  // [D, parts, GH], sums of grad_gates, if the grid computes them
  std::vector<Tensor> weight_ih, weight_hh, bias_ih, bias_hh;  // one a direction
};

struct Backward {
  const LayerRun& run;
  const LayerOutputs& grads;
  const Tensor &output, &gates;
  bool recompute;
  LayerMask mask;

  // The initial gradient of a state, [B, H] in acc.
  Tensor state(const Tensor& grad, int64_t d, bool transposed) const {
    const auto options = run.arguments.input.options().dtype(run.acc);
    const auto& sizes = run.sizes;
    const Tensor t = transposed ? at::empty({sizes.hidden, sizes.batch}, options).t()
                                : at::empty({sizes.batch, sizes.hidden}, options);
    return grad.defined() ? t.copy_(grad[d]) : t.zero_();
  }

  // [S, GH] of direction d; grad_h and grad_c become the gradients of h0 and c0.
  Tensor grad_gates(int64_t d, const Tensor& previous_h, const Tensor& grad_h, const Tensor& grad_c,
                    const StateGradients& states) const {
    const auto& sizes = run.sizes;
    const auto options = run.arguments.input.options().dtype(run.work);
    const int64_t rows = run.sequence.rows, width = run.width();
    if (run.idle()) return at::empty({rows, width}, options);
    const Tensor g = aligned(recompute ? recompute_gates(run, d, previous_h) : gates[d]);
    const Tensor c = recompute_c(run, d, g);
    // Each recomputed gate is overwritten by its gradient.
    const bool in_place = recompute && run.work == g.scalar_type();
    const Tensor result = in_place ? g : at::empty({rows, width}, options);
    // Possibly a copy, which must outlive its readers.
    const Tensor grad_rows = grads.output.defined() ? run.rows(grads.output) : Tensor();
    MatrixView grad;
    if (grad_rows.defined()) {
      grad = matrix_view(grad_rows.narrow(1, d * sizes.hidden, sizes.hidden));
    }
    const auto steps = run.sequence.in_order(d, /*reversed=*/true);
    const RecurrenceBackward pass{sizes.cell,
                                  sizes.dtype,
                                  sizes.batch,
                                  sizes.hidden,
                                  steps.data(),
                                  sizes.steps,
                                  g.const_data_ptr(),
                                  c.const_data_ptr(),
                                  grad,
                                  matrix_view(grad_h),
                                  grad_c.mutable_data_ptr(),
                                  result.mutable_data_ptr(),
                                  run.resets.from(d, states.reset_h, states.reset_c)};
    run.backend.backward(pass, parameter_of(run.arguments, run.arguments.weight_hh, d));
    if (run.plan.is("step")) {
      const RecurrenceStep& first = steps[sizes.steps - 1];
      cut_first(first, grad_h, of_direction(states.reset_h, d));
      cut_first(first, grad_c, of_direction(states.reset_c, d));
    }
    return result;
  }

  // For algorithms that run step by step: if a reset replaced the first step's state, the gradient
  // goes to the replacement.
  void cut_first(const RecurrenceStep& step, const Tensor& grad, Tensor of_reset) const {
    if (!run.resets.marks.defined() || step.marked_rows == 0) return;
    const Tensor mark = run.rows(run.resets.marks).narrow(0, step.marks, step.marked_rows);
    Tensor rows = grad.narrow(0, 0, step.marked_rows);
    if (of_reset.defined()) {
      of_reset = of_reset.narrow(0, step.start, step.marked_rows);
      of_reset.copy_(at::where(mark, rows, of_reset));
    }
    rows.masked_fill_(mark, 0);
  }

  // [S, H]: h before each step of direction d.
  Tensor previous_h(int64_t d) const {
    const int64_t hidden = run.sizes.hidden;
    const Tensor own = part(run.rows(output), 1, d * hidden, hidden);
    const Tensor found = run.sequence.previous_h(run.arguments.h0[d], own, d);
    const LayerResets& resets = run.resets;
    if (!resets.marks.defined()) return found;
    const Tensor mark = run.sequence.marks_before(run.rows(resets.marks), d);
    if (!resets.h.defined()) return found.masked_fill(mark, 0);
    Tensor by = run.rows_or_batch(resets.h[d]);
    if (!resets.per_step) by = run.sequence.each_step(by);
    return at::where(mark, by, found);
  }

  // The gradient of W_hh, whose blocks are those of `of_state` in another order. Rolling them
  // afterwards would write it twice, which takes longer than the product of a few rows.
  Tensor weight_hh(const Tensor& of_state, const Tensor& h) const {
    const int64_t rows = of_state.size(1), moved = run.cell.torch_shift * run.sizes.hidden;
    if (moved == 0) return of_state.t().mm(h);
    const Tensor found = at::empty({rows, h.size(1)}, h.options());
    Tensor first = found.narrow(0, 0, rows - moved), last = found.narrow(0, rows - moved, moved);
    at::mm_out(first, of_state.narrow(1, moved, rows - moved).t(), h);
    at::mm_out(last, of_state.narrow(1, 0, moved).t(), h);
    return found;
  }

  // The gradients that products and sums over all steps compute from grad_gates [S, GH]. `previous`
  // is previous_h(d), or undefined if that is not computed yet.
  void parameters(int64_t d, const Tensor& grad_gates, Tensor previous, Gradients& found) const {
    const LayerArguments& a = run.arguments;
    if (run.backend.parameters != nullptr) {
      // Needed only here: otherwise h before each step is read from parts of the output.
      const bool moved = a.batch_sizes.defined() || run.resets.marks.defined();
      if (mask[4] && moved && !previous.defined()) previous = previous_h(d);
      add_parameters(run, mask, d, grad_gates.const_data_ptr(), found.bias_sums, output, previous,
                     found.whole);
      return;
    }
    const Tensor of_input = run.input_window(grad_gates), of_state = run.state_window(grad_gates);
    if (mask[0]) {
      const Tensor w = cast(parameter_of(a, a.weight_ih, d), run.work);
      Tensor& input = found.whole.input;
      input = input.defined() ? input.add_(run.mm(of_input, w)) : run.mm(of_input, w);
    }
    if (mask[3]) {
      found.weight_ih.push_back(run.mm(of_input.t(), cast(run.rows(a.input), run.work)));
    }
    if (mask[4]) {
      if (!previous.defined()) previous = previous_h(d);
      const Tensor h = cast(previous, run.work);
      found.weight_hh.push_back(weight_hh(of_state, h));
    }
    if (!mask[5] && !mask[6]) return;
    const Tensor total = grad_gates.sum(0);
    // Each in separate memory that holds nothing else.
    const bool whole = run.cell.same_gates();
    const Tensor of_bias = run.input_window(total);
    if (mask[5]) found.bias_ih.push_back(whole ? of_bias : of_bias.clone());
    if (mask[6])
      found.bias_hh.push_back(run.state_window(mask[5] && whole ? total.clone() : total));
  }

  void direction(int64_t d, Gradients& found) const {
    const Tensor previous = recompute ? previous_h(d) : Tensor();
    const Tensor grad_h = state(grads.h_n, d, run.plan.transposed);
    const Tensor grad_c = state(grads.c_n, d, /*transposed=*/false);
    const Tensor of_gates = grad_gates(d, previous, grad_h, grad_c, found.states);
    if (mask[1]) found.states.h0[d].copy_(grad_h);
    if (mask[2]) found.states.c0[d].copy_(grad_c);
    parameters(d, of_gates, previous, found);
  }

  // grad_gates [D, S, GH], and the gradients of h0 and c0 if needed.
  Tensor all_directions(Gradients& found) const {
    const Tensor result = at::empty({run.sizes.directions, run.sequence.rows, run.width()},
                                    run.arguments.input.options());
    // Recomputed gates are overwritten here, too, if the kernels allow it.
    const Tensor again = run.reads_words() && recompute ? at::empty_like(result) : result;
    for (int64_t d = 0; d < run.sizes.directions && recompute; ++d) {
      again[d].copy_(recompute_gates(run, d, previous_h(d)));
    }
    const bool sums = run.plan.is("grid") && result.scalar_type() == at::kFloat;
    if (sums && (mask[5] || mask[6]) && run.sizes.batch > 0) {
      const int64_t parts = (run.sizes.batch - 1) / run.plan.grid_rows + 1;
      found.bias_sums = at::empty({run.sizes.directions, parts, run.width()}, result.options());
    }
    const Tensor rows = grads.output.defined() ? with_matrix(grads.output) : Tensor();
    persistent_backward(run, recompute ? again : gates,
                        {rows, contiguous(grads.h_n), contiguous(grads.c_n), Tensor()},
                        found.states, result, found.bias_sums);
    return result;
  }

  Gradients gradients() const {
    const LayerArguments& a = run.arguments;
    Gradients found;
    StateGradients& states = found.states;
    if (mask[1]) states.h0 = at::empty(a.h0.sizes(), a.h0.options());
    if (mask[2]) states.c0 = at::empty(a.c0.sizes(), a.c0.options());
    const std::array<int64_t, 3> places{run.sizes.directions, run.sequence.rows, run.sizes.hidden};
    const auto options = a.input.options().dtype(run.acc);
    // An argument that was not given has no gradient.
    if (mask[7] && a.reset_h.defined()) states.reset_h = at::zeros(places, options);
    if (mask[8] && a.reset_c.defined()) states.reset_c = at::zeros(places, options);
    if (run.persistent()) {
      const Tensor of_gates = all_directions(found);
      for (int64_t d = 0; d < run.sizes.directions; ++d) {
        parameters(d, run.rows(of_gates, d), Tensor(), found);
      }
      return found;
    }
    for (int64_t d = 0; d < run.sizes.directions; ++d) direction(d, found);
    return found;
  }
};

// The gradient of reset_h or reset_c, from the gradients for each step and row [D, S, H].
Tensor of_replaced(const LayerRun& run, const Tensor& grad, const Tensor& model) {
  if (!grad.defined()) return grad;
  const Tensor found = run.resets.per_step ? grad.view(model.sizes())
                                           : run.sequence.sum_of_steps(grad, run.sizes.batch);
  return cast(found, model.scalar_type());
}

// Joins the gradients of a parameter of `layer`, one for each direction, to the parameter's shape.
Tensor stacked(const std::vector<Tensor>& t, const LayerArguments& layer) {
  if (t.empty()) return Tensor();
  const auto dtype = layer.input.scalar_type();
  if (layer.one_direction()) return cast(t[0], dtype);
  return cast(t.size() == 1 ? t[0].unsqueeze(0) : at::stack(t), dtype);
}

}  // namespace

LayerGrads recurrent_layer_backward_kernel(const RecurrenceBackend& backend,
                                           const LayerBackwardCall& call) {
  const auto& [grads, arguments, output, gates, recompute, algorithm, mask] = call;
  check_layer_backward(grads, arguments, output, gates, recompute);
  check_layer_backward_data(grads, arguments, output, gates);
  // Autocast must not change the dtype of the products: it is that of the forward pass.
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
  const LayerRun run(backend, arguments, algorithm, /*backward=*/true);
  const Tensor& input = arguments.input;
  const FlushInProducts flush(input, run.multiplications());
  const Tensor whole_gates = gates.contiguous();
  Gradients found = Backward{run, grads, output, whole_gates, recompute, mask}.gradients();
  LayerGradients& whole = found.whole;
  if (backend.parameters == nullptr) {
    if (mask[0]) whole.input = cast(whole.input, input.scalar_type()).view(input.sizes());
    whole.weight_ih = stacked(found.weight_ih, arguments);
    whole.weight_hh = stacked(found.weight_hh, arguments);
    whole.bias_ih = stacked(found.bias_ih, arguments);
    whole.bias_hh = from_gate_order(stacked(found.bias_hh, arguments), arguments);
  }
  return {whole.input,
          found.states.h0,
          found.states.c0,
          whole.weight_ih,
          whole.weight_hh,
          whole.bias_ih,
          whole.bias_hh,
          of_replaced(run, found.states.reset_h, arguments.reset_h),
          of_replaced(run, found.states.reset_c, arguments.reset_c)};
}

}  // namespace treadle
