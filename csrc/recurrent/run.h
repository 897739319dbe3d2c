// One run of lltm_layer, forward or backward, on any backend: kernel (forward.cpp, backward.cpp),
// checks (check.cpp), plan (plan.cpp), then steps one by one or, in persistent.cpp, in one launch.
#pragma once

#include <ATen/OpMathType.h>

#include <algorithm>

#include "recurrent/backend.h"
#include "recurrent/check.h"

namespace treadle {

// A layer whose arguments have been checked, and how it is run.
struct LayerRun {
  static constexpr int64_t kGates = 3;

  const RecurrenceBackend& backend;
  const LayerArguments& arguments;
  Sequence sequence;
  RecurrenceSizes sizes;
  ScalarType acc, work;  // of sums, and of the products of grad_gates
  RecurrencePlan plan;

  LayerRun(const RecurrenceBackend& backend, const LayerArguments& a, std::string_view algorithm,
           bool backward)
      : backend(backend),
        arguments(a),
        sequence(a.input, a.batch_sizes),
        sizes{static_cast<int64_t>(sequence.steps.size()),
              a.h0.size(1),
              a.h0.size(2),
              kGates,
              a.h0.size(0),
              to_dtype(a.input.scalar_type())},
        acc(at::toOpMathType(a.input.scalar_type())),
        work(backend.widens_half ? acc : a.input.scalar_type()),
        plan(backend.plan(sizes, a.input.device(), algorithm, backward)) {}

  // No unit takes a step.
  bool idle() const { return sequence.rows == 0 || sizes.hidden == 0; }
  bool persistent() const { return plan.persistent() && !idle(); }

  // Of the larger product with a weight.
  int64_t multiplications() const {
    const int64_t inputs = std::max(sizes.hidden, arguments.input.size(-1));
    return sequence.rows * kGates * sizes.hidden * inputs;
  }

  // [T, B, n] or [S, n] as [S, n].
  Tensor rows(const Tensor& t) const { return t.reshape({sequence.rows, t.size(-1)}); }
};

// All directions in one launch. output [S, D*H]; h, c [D, B, H] are what the last steps leave;
// gates [D, S, 3H] or undefined.
void persistent_forward(const LayerRun& run, const Tensor& output, const Tensor& h, const Tensor& c,
                        const Tensor& gates);

// grad_gates [D, S, 3H], which may be the same memory as gates. grads.output [S, D*H], grads.h_n
// and grads.c_n (contiguous), grad_h0 and grad_c0 may be undefined.
void persistent_backward(const LayerRun& run, const Tensor& gates, const LayerOutputs& grads,
                         const Tensor& grad_h0, const Tensor& grad_c0, const Tensor& grad_gates);

// ---- kernels

LayerResults lltm_layer_kernel(const RecurrenceBackend& backend, const Tensor& input,
                               const OptionalTensor& batch_sizes, const Tensor& h0,
                               const Tensor& c0, const Tensor& weight_ih, const Tensor& weight_hh,
                               const OptionalTensor& bias, bool recompute,
                               c10::string_view algorithm);

LayerSaved lltm_layer_forward_kernel(const RecurrenceBackend& backend, const Tensor& input,
                                     const OptionalTensor& batch_sizes, const Tensor& h0,
                                     const Tensor& c0, const Tensor& weight_ih,
                                     const Tensor& weight_hh, const OptionalTensor& bias,
                                     bool recompute, c10::string_view algorithm);

LayerGrads lltm_layer_backward_kernel(
    const RecurrenceBackend& backend, const OptionalTensor& grad_output,
    const OptionalTensor& grad_h_n, const OptionalTensor& grad_c_n, const Tensor& input,
    const OptionalTensor& batch_sizes, const Tensor& h0, const Tensor& c0, const Tensor& weight_ih,
    const Tensor& weight_hh, const OptionalTensor& bias, const Tensor& output, const Tensor& gates,
    bool recompute, c10::string_view algorithm, LayerMask mask);

template <const RecurrenceBackend& backend>
void register_lltm_layer(torch::Library& m) {
  m.impl("lltm_layer", bind<backend, lltm_layer_kernel>);
  m.impl("lltm_layer_forward", bind<backend, lltm_layer_forward_kernel>);
  m.impl("lltm_layer_backward", bind<backend, lltm_layer_backward_kernel>);
}

}  // namespace treadle
