// One run of lltm_layer, forward or backward, on any backend.
#pragma once

#include <torch/library.h>

#include "lltm_layer.h"
#include "lltm_layer_check.h"
#include "recurrence.h"

namespace treadle {

// The arguments of a layer that has been checked.
struct Layer {
  static constexpr int64_t kGates = 3;

  const RecurrenceBackend& backend;
  const Tensor &input, &h0, &c0, &weight_ih, &weight_hh;
  const OptionalTensor& bias;
  Sequence sequence;
  int64_t directions, batch, hidden;
  Dtype dtype;
  ScalarType acc, work;
  RecurrencePlan plan;

  Layer(const RecurrenceBackend& backend, const Tensor& input, const OptionalTensor& batch_sizes,
        const Tensor& h0, const Tensor& c0, const Tensor& weight_ih, const Tensor& weight_hh,
        const OptionalTensor& bias, std::string_view regime, bool backward);

  // No unit takes a step.
  bool idle() const { return sequence.rows == 0 || hidden == 0; }

  // [T, B, n] or [S, n] as [S, n].
  Tensor rows(const Tensor& t) const { return t.reshape({sequence.rows, t.size(-1)}); }

  // Direction d: output [S, D*H]; h, c [B, H] are the state; gates [S, 3H] or undefined.
  void forward(int64_t d, const Tensor& output, const Tensor& h, const Tensor& c,
               const Tensor& gates) const;

  // All directions: h, c [D, B, H] are what the last steps leave; gates [D, S, 3H] or undefined.
  void persistent_forward(const Tensor& output, const Tensor& h, const Tensor& c,
                          const Tensor& gates) const;

  // grad_gates [D, S, 3H] of all directions, which may be the same memory as gates; grad_output
  // [S, D*H] or undefined; so may be those of the last states, contiguous, and of the first.
  void persistent_backward(const Tensor& gates, const Tensor& grad_output, const Tensor& grad_h_n,
                           const Tensor& grad_c_n, const Tensor& grad_h0, const Tensor& grad_c0,
                           const Tensor& grad_gates) const;

  // gates [S, 3H] of direction d, from what h was before each step.
  Tensor gates_again(int64_t d, const Tensor& previous_h) const;

  // The c of every step [S, H] of direction d, from its gates.
  Tensor cells_again(int64_t d, const Tensor& gates) const;
};

LayerSaved lltm_layer_forward_with(const RecurrenceBackend& backend, const Tensor& input,
                                   const OptionalTensor& batch_sizes, const Tensor& h0,
                                   const Tensor& c0, const Tensor& weight_ih,
                                   const Tensor& weight_hh, const OptionalTensor& bias, bool save,
                                   std::string_view regime);

LayerGrads lltm_layer_backward_with(const RecurrenceBackend& backend,
                                    const OptionalTensor& grad_output,
                                    const OptionalTensor& grad_h_n, const OptionalTensor& grad_c_n,
                                    const Tensor& input, const OptionalTensor& batch_sizes,
                                    const Tensor& h0, const Tensor& c0, const Tensor& weight_ih,
                                    const Tensor& weight_hh, const OptionalTensor& bias,
                                    const Tensor& output, const Tensor& gates, bool recompute,
                                    std::string_view regime, LayerMask mask);

template <const RecurrenceBackend& backend>
LayerResults lltm_layer_kernel(const Tensor& input, const OptionalTensor& batch_sizes,
                               const Tensor& h0, const Tensor& c0, const Tensor& weight_ih,
                               const Tensor& weight_hh, const OptionalTensor& bias, bool,
                               c10::string_view regime) {
  auto [output, h_n, c_n, gates] = lltm_layer_forward_with(
      backend, input, batch_sizes, h0, c0, weight_ih, weight_hh, bias, /*save=*/false, regime);
  return {output, h_n, c_n};
}

template <const RecurrenceBackend& backend>
LayerSaved lltm_layer_forward_kernel(const Tensor& input, const OptionalTensor& batch_sizes,
                                     const Tensor& h0, const Tensor& c0, const Tensor& weight_ih,
                                     const Tensor& weight_hh, const OptionalTensor& bias,
                                     bool recompute, c10::string_view regime) {
  return lltm_layer_forward_with(backend, input, batch_sizes, h0, c0, weight_ih, weight_hh, bias,
                                 !recompute, regime);
}

template <const RecurrenceBackend& backend>
LayerGrads lltm_layer_backward_kernel(const OptionalTensor& grad_output,
                                      const OptionalTensor& grad_h_n,
                                      const OptionalTensor& grad_c_n, const Tensor& input,
                                      const OptionalTensor& batch_sizes, const Tensor& h0,
                                      const Tensor& c0, const Tensor& weight_ih,
                                      const Tensor& weight_hh, const OptionalTensor& bias,
                                      const Tensor& output, const Tensor& gates, bool recompute,
                                      c10::string_view regime, LayerMask mask) {
  return lltm_layer_backward_with(backend, grad_output, grad_h_n, grad_c_n, input, batch_sizes, h0,
                                  c0, weight_ih, weight_hh, bias, output, gates, recompute, regime,
                                  mask);
}

template <const RecurrenceBackend& backend>
void register_lltm_layer(torch::Library& m) {
  m.impl("lltm_layer", lltm_layer_kernel<backend>);
  m.impl("lltm_layer_forward", lltm_layer_forward_kernel<backend>);
  m.impl("lltm_layer_backward", lltm_layer_backward_kernel<backend>);
}

}  // namespace treadle
