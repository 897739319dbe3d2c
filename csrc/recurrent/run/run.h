// Runs recurrent_layer, forward or backward, on any backend. The op's kernel (forward.cpp,
// backward.cpp) checks the arguments (layer/check.cpp), makes a plan (kernels/recurrent/plan) and
// calls the backend (cpu.cpp, cuda/layer.cpp). Passes that run step by step share the functions
// below. layer/layer.h explains the sizes, such as S.
#pragma once

#include <ATen/OpMathType.h>

#include <algorithm>
#include <functional>

#include "kernels/recurrent/plan/scope.h"
#include "recurrent/run/backend.h"
#include "recurrent/run/dispatch.h"
#include "recurrent/run/stack.h"

namespace treadle {

// The reset arguments in the form that the kernels read: contiguous, with c in dtype `acc`.
struct LayerResets {
  Tensor marks, h, c;  // undefined marks: no resets; undefined h or c: reset to zeros
  bool per_step = false;

  LayerResets(const LayerArguments& a, ScalarType acc)
      : marks(contiguous(a.reset)),
        h(aligned(a.reset_h)),
        c(aligned(cast(a.reset_c, acc))),
        per_step(h.defined() && !h.sizes().equals(a.h0.sizes())) {}

  // The kernels' arguments, whose pointers begin at direction d. The gradients [D, S, H] may be
  // undefined.
  RecurrenceResets from(int64_t d, const Tensor& grad_h = {}, const Tensor& grad_c = {}) const {
    const auto of = [&](const Tensor& t) { return of_direction(t, d); };
    return {static_cast<const bool*>(const_data_of(marks)),
            const_data_of(of(h)),
            const_data_of(of(c)),
            data_of(of(grad_h)),
            data_of(of(grad_c)),
            per_step};
  }
};

// A layer with checked arguments, and how to run it.
struct LayerRun {
  const RecurrenceBackend& backend;
  const LayerArguments& arguments;
  const CellInfo& cell;
  Sequence sequence;
  RecurrenceSizes sizes;
  ScalarType acc, work;      // dtype of sums; dtype of the factors of matrix products
  std::optional<bool> tf32;  // whether products use TF32, if this differs from torch's setting
  RecurrencePlan plan;
  PlanScope scope;  // launches during this object's lifetime are recorded with the plan
  LayerResets resets;
  StackStates stack;  // set if the layer is one of a stack

  LayerRun(const RecurrenceBackend& backend, const LayerArguments& a, std::string_view algorithm,
           bool backward, const StackStates& stack = {})
      : backend(backend),
        arguments(a),
        cell(cell_info(a.cell)),
        sequence(a.input, a.batch_sizes),
        sizes{a.cell,
              static_cast<int64_t>(sequence.steps.size()),
              a.h0.size(1),
              a.h0.size(2),
              a.h0.size(0),
              to_dtype(a.input.scalar_type()),
              sequence.rows != static_cast<int64_t>(sequence.steps.size()) * a.h0.size(1),
              a.reset.defined(),
              static_cast<int>(a.groups)},
        acc(at::toOpMathType(a.input.scalar_type())),
        work(backend.widens_half ? acc : a.input.scalar_type()),
        plan(backend.plan(sizes, a.input.device(), algorithm, backward, &tf32)),
        scope(sizes, backward, plan),
        resets(a, acc),
        stack(stack) {}

  int64_t width() const { return cell.gates * sizes.hidden; }      // G H
  int64_t c_width() const { return cell.c_parts * sizes.hidden; }  // the number of columns of c

  // The columns of gates [..., GH] to which the product of the input contributes.
  Tensor input_window(const Tensor& gates) const {
    return window(gates, cell.input_first, cell.input_gates);
  }
  // The columns to which the product of h contributes.
  Tensor state_window(const Tensor& gates) const {
    return window(gates, cell.state_first, cell.state_gates);
  }
  Tensor window(const Tensor& gates, int64_t first, int64_t count) const {
    if (count == cell.gates) return gates;
    return gates.narrow(-1, first * sizes.hidden, count * sizes.hidden);
  }

  // Whether there is nothing to compute.
  bool idle() const { return sequence.rows == 0 || sizes.hidden == 0; }
  bool persistent() const { return plan.persistent() && !idle(); }
  // Whether the kernels get null instead of h0 and c0: both are zeros, and the plan has a
  // single-block kernel, which accepts null.
  bool null_states() const { return stack.zeros != nullptr && persistent() && plan.one_block(); }
  // The destinations of the last states.
  Tensor last_h() const {
    const Tensor& h0 = arguments.h0;
    return stack.h_n.defined() ? stack.h_n : at::empty(h0.sizes(), h0.options());
  }
  Tensor last_c() const {
    const Tensor& c0 = arguments.c0;
    return stack.c_n.defined() ? stack.c_n : at::empty(c0.sizes(), c0.options());
  }
  // Whether the kernels read half types in pairs. While they read an element, its neighbour must
  // not be written.
  bool reads_words() const { return plan.one_block() && is_half(sizes.dtype); }

  // The number of multiplications in the larger of the products with W_ih and W_hh.
  int64_t multiplications() const {
    const int64_t inputs = std::max(sizes.hidden, arguments.input.size(-1));
    return sequence.rows * width() * inputs;
  }

  // reset_h or reset_c of a direction, as [B, H] or [S, H].
  static Tensor rows_or_batch(const Tensor& t) { return t.reshape({-1, t.size(-1)}); }

  // [T, B, n] or [S, n] as [S, n].
  Tensor rows(const Tensor& t) const {
    const std::array<int64_t, 2> shape{sequence.rows, t.size(-1)};
    if (t.dim() == 2) return t;
    return t.is_contiguous() ? t.view(shape) : t.reshape(shape);
  }

  // Direction d of contiguous gates [D, ..., n] as [S, n].
  Tensor rows(const Tensor& gates, int64_t d) const {
    return sizes.directions == 1 ? gates.view({sequence.rows, gates.size(-1)}) : rows(gates[d]);
  }
};

// ---- forward

// Direction d of a forward pass that runs step by step.
struct ForwardDirection {
  int64_t d;
  std::vector<RecurrenceStep> steps;   // in the direction's order
  Tensor input, weight_ih, weight_hh;  // input: [S, I]
  Tensor bias_ih, bias_hh;
  Tensor h, c;              // [D, B, H]: the states, which each step updates
  Tensor first_h, first_c;  // [D, B, H]: if defined, the first step reads these instead
  Tensor gates;             // [S, GH], or undefined
  RecurrenceForward all;    // the arguments of all steps, without products

  // The h that the first step reads instead of the h in `all`, or null.
  const void* first_h_data(const LayerRun& run) const;
};

// Memory for the results of a layer; gates are undefined unless `save`.
LayerSaved new_outputs(const LayerRun& run, bool save);

// Calls f for each direction. With `reads_h0`, the first step reads h0 itself, and h is not
// initialized. `reads_c0` means the same for c0 and c.
LayerSaved forward_by_steps(const LayerRun& run, bool save, bool reads_h0, bool reads_c0,
                            const std::function<void(const ForwardDirection&)>& f);

// Multiplies rows of the input by W_ih^T. `gates` is the memory of these rows' gates, or undefined.
using InputProducts = std::function<Tensor(const Tensor& rows, const Tensor& gates)>;

// Calls f(arguments, first) for each chunk of a direction's steps, after computing the products of
// its input. `first` is true for the first chunk.
void in_chunks(const LayerRun& run, const ForwardDirection& direction,
               const InputProducts& multiply,
               const std::function<void(const RecurrenceForward&, bool first)>& f);

// ---- backward

// A backward pass: the gradients of the results, what the forward pass saved, and which gradients
// are needed (`mask`).
struct BackwardPass {
  const LayerRun& run;
  const LayerOutputs& grads;
  const Tensor &output, &gates;
  bool recompute;
  LayerMask mask;

  // [S, H]: h before each step of direction d.
  Tensor previous_h(int64_t d) const;
  // Recomputes the gates [S, GH] of direction d from h before each step.
  Tensor recompute_gates(int64_t d, const Tensor& previous_h) const;
};

// Direction d of a backward pass that runs step by step.
struct BackwardDirection {
  int64_t d;
  const std::vector<RecurrenceStep>& steps;  // in the order of the pass
  Tensor weight_hh;                          // W_hh of this direction
  Tensor grad_h, grad_c;       // [B, H] acc: of h_n and c_n before the steps, then of h0 and c0
  RecurrenceCStates c_states;  // the cell states are computed before the steps
  RecurrenceBackward all;
};

// A backend's functions for one direction. BackwardSteps runs all steps. ParameterSums computes the
// gradients of the input and the parameters from those of the gates [S, GH]; `previous` is
// previous_h(d), or undefined if that has not been computed yet.
using BackwardSteps = std::function<void(const BackwardDirection&)>;
using ParameterSums =
    std::function<void(int64_t d, const Tensor& grad_gates, const Tensor& previous)>;

void backward_by_steps(const BackwardPass& pass, const StateGradients& states,
                       const BackwardSteps& steps, const ParameterSums& parameters);

// ---- kernels

LayerResults recurrent_layer_kernel(const RecurrenceBackend& backend,
                                    const LayerArguments& arguments, bool recompute,
                                    c10::string_view algorithm);
LayerSaved recurrent_layer_forward_kernel(const RecurrenceBackend& backend,
                                          const LayerArguments& arguments, bool recompute,
                                          c10::string_view algorithm);
LayerGrads recurrent_layer_backward_kernel(const RecurrenceBackend& backend,
                                           const LayerBackwardCall& call);

// Runs a layer of a stack, on the device of `backend`.
Tensor recurrent_layer_inference(const RecurrenceBackend& backend, const LayerArguments& arguments,
                                 const StackStates& states);

template <const RecurrenceBackend& backend>
void register_recurrent_layer(torch::Library& m, c10::DeviceType device) {
  layer_inference(device) = bind<backend, recurrent_layer_inference>;
  m.impl("recurrent_layer", LayerKernel<bind<backend, recurrent_layer_kernel>>::call);
  m.impl("recurrent_layer_forward",
         LayerKernel<bind<backend, recurrent_layer_forward_kernel>>::call);
  m.impl("recurrent_layer_backward",
         LayerBackwardKernel<bind<backend, recurrent_layer_backward_kernel>>::call);
}

}  // namespace treadle
