// One run of recurrent_layer, forward or backward, on any backend: the kernel (forward.cpp,
// backward.cpp), checks (check.cpp), the plan (plan/plan.cpp), then the steps, one by one or, in
// persistent.cpp, in one launch.
#pragma once

#include <ATen/OpMathType.h>

#include <algorithm>

#include "common/gemm.h"
#include "common/tf32.h"
#include "kernels/common/launches.h"
#include "recurrent/run/backend.h"
#include "recurrent/run/dispatch.h"

namespace treadle {

// The resets as the kernels read them: contiguous, and c in acc.
struct LayerResets {
  Tensor marks, h, c;  // undefined: no resets; zeros
  bool per_step = false;

  LayerResets(const LayerArguments& a, ScalarType acc)
      : marks(contiguous(a.reset)),
        h(aligned(a.reset_h)),
        c(aligned(cast(a.reset_c, acc))),
        per_step(h.defined() && !h.sizes().equals(a.h0.sizes())) {}

  // The arguments of the kernels from direction d on; gradients [D, S, H] may be undefined.
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

// The `algorithm` of a call that runs torch's cell: "auto", with the TF32 setting of matrix
// products.
inline constexpr std::string_view kCellAlgorithm = "cell";

// A layer with checked arguments, and how to run it.
struct LayerRun {
  const RecurrenceBackend& backend;
  const LayerArguments& arguments;
  const CellInfo& cell;
  AsMatrixProducts precision;
  Sequence sequence;
  RecurrenceSizes sizes;
  ScalarType acc, work;  // dtypes of sums and of the products of grad_gates
  RecurrencePlan plan;
  LaunchScope scope;         // launches during this object's lifetime are part of the plan
  std::optional<bool> tf32;  // tf32 of products, if it differs from torch's setting
  LayerResets resets;

  LayerRun(const RecurrenceBackend& backend, const LayerArguments& a, std::string_view algorithm,
           bool backward)
      : backend(backend),
        arguments(a),
        cell(cell_info(a.cell)),
        precision(algorithm == kCellAlgorithm),
        sequence(a.input, a.batch_sizes),
        sizes{a.cell,
              static_cast<int64_t>(sequence.steps.size()),
              a.h0.size(1),
              a.h0.size(2),
              a.h0.size(0),
              to_dtype(a.input.scalar_type()),
              a.reset.defined() ||
                  sequence.rows != static_cast<int64_t>(sequence.steps.size()) * a.h0.size(1)},
        acc(at::toOpMathType(a.input.scalar_type())),
        work(backend.widens_half ? acc : a.input.scalar_type()),
        plan(backend.plan(sizes, a.input.device(), algorithm == kCellAlgorithm ? "auto" : algorithm,
                          backward)),
        scope(plan.algorithm, plan.reason),
        tf32(backend.tf32(a.cell, sizes.dtype)),
        resets(a, acc) {}

  int64_t width() const { return cell.gates * sizes.hidden; }  // GH

  // The columns of gates [..., GH] to which the input's product contributes, and those of h's.
  Tensor input_window(const Tensor& gates) const {
    return window(gates, cell.input_first, cell.input_gates);
  }
  Tensor state_window(const Tensor& gates) const {
    return window(gates, cell.state_first, cell.state_gates);
  }
  Tensor window(const Tensor& gates, int64_t first, int64_t count) const {
    if (count == cell.gates) return gates;
    return gates.narrow(-1, first * sizes.hidden, count * sizes.hidden);
  }

  // a b
  Tensor mm(const Tensor& a, const Tensor& b) const {
    if (!tf32) return mm_few_columns(a, b);
    const Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
    const Tensor of_a = with_matrix(a), of_b = with_matrix(b);
    multiply(matrix_of(out), matrix_of(of_a), matrix_of(of_b));
    return out;
  }
  // out = a b without a dispatcher call, for backends that have it.
  void multiply(const Matrix& out, const Matrix& a, const Matrix& b) const {
    backend.multiply(out, a, b, sizes.dtype, arguments.input.device(), tf32);
  }

  // Whether there is nothing to compute.
  bool idle() const { return sequence.rows == 0 || sizes.hidden == 0; }
  bool persistent() const { return plan.persistent() && !idle(); }
  // Whether the kernels read half types in pairs; the neighbour of a number must not be written
  // meanwhile.
  bool reads_words() const { return plan.one_block() && is_half(sizes.dtype); }

  // The multiplications of the larger product with a weight.
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

// All directions in one launch. output [S, D*H]; h, c [D, B, H] are written after the last steps;
// gates [D, S, GH] or undefined.
void persistent_forward(const LayerRun& run, const Tensor& output, const Tensor& h, const Tensor& c,
                        const Tensor& gates);

// The gradients of a layer's input and parameters, in the layer's shapes.
struct LayerGradients {
  Tensor input, weight_ih, weight_hh, bias_ih, bias_hh;
};

// Computes direction d's part of `found` by the backend's `parameters`; `grad_gates` [S, GH] is
// contiguous. `previous`: h before each step [S, H], or undefined if every row takes every step and
// none resets.
void add_parameters(const LayerRun& run, const LayerMask& mask, int64_t d, const void* grad_gates,
                    const Tensor& bias_sums, const Tensor& output, const Tensor& previous,
                    LayerGradients& found);

// The gradients of initial states and of states after resets; each may be undefined.
struct StateGradients {
  Tensor h0, c0;            // [D, B, H]
  Tensor reset_h, reset_c;  // [D, S, H] acc; zeros where no row resets
};

// grad_gates [D, S, GH] may share the memory of gates. grads.output, whose rows form a matrix, and
// grads.h_n and grads.c_n (contiguous) may be undefined.
void persistent_backward(const LayerRun& run, const Tensor& gates, const LayerOutputs& grads,
                         const StateGradients& states, const Tensor& grad_gates,
                         const Tensor& bias_sums);

// ---- kernels

LayerResults recurrent_layer_kernel(const RecurrenceBackend& backend,
                                    const LayerArguments& arguments, bool recompute,
                                    c10::string_view algorithm);
LayerSaved recurrent_layer_forward_kernel(const RecurrenceBackend& backend,
                                          const LayerArguments& arguments, bool recompute,
                                          c10::string_view algorithm);
LayerGrads recurrent_layer_backward_kernel(const RecurrenceBackend& backend,
                                           const LayerBackwardCall& call);

template <const RecurrenceBackend& backend>
void register_recurrent_layer(torch::Library& m) {
  m.impl("recurrent_layer", LayerKernel<bind<backend, recurrent_layer_kernel>>::call);
  m.impl("recurrent_layer_forward",
         LayerKernel<bind<backend, recurrent_layer_forward_kernel>>::call);
  m.impl("recurrent_layer_backward",
         LayerBackwardKernel<bind<backend, recurrent_layer_backward_kernel>>::call);
}

}  // namespace treadle
