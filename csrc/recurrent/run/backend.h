// The engine that runs a recurrent layer of any cell: a backend's functions, and code that all
// backends share. ATen computes products over all steps; the backend runs the steps.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "common/dispatch.h"
#include "common/matrix.h"
#include "kernels/recurrent/fused_args.h"
#include "kernels/recurrent/gradients/gradients_args.h"
#include "kernels/recurrent/persistent_args.h"
#include "kernels/recurrent/plan/plan.h"
#include "kernels/recurrent/step_args.h"

namespace treadle {

// The rows of every step in memory, first step first.
struct Sequence {
  std::vector<RecurrenceStep> steps;
  int64_t rows = 0;  // of all steps

  // Without batch_sizes input is [T, B, I].
  Sequence(const Tensor& input, const Tensor& batch_sizes);

  // The steps in the order of direction `d` (1 runs backward in time) or, if `reversed`, of its
  // backward pass, with the marks of rows that reset before each step. The last entry is a step
  // without rows.
  std::vector<RecurrenceStep> in_order(int64_t d, bool reversed = false) const;

  // [S, H]: h before each row's step, from h0 [B, H] and output [S, H] of one direction.
  Tensor previous_h(const Tensor& h0, const Tensor& output, int64_t d) const;

  // [S, 1]: whether a row of direction d resets before its step, from the marks [S, 1].
  Tensor marks_before(const Tensor& marks, int64_t d) const;

  // [S, H]: each step's rows of [B, H]. And the inverse, a sum over the steps: [D, B, H] from [D,
  // S, H].
  Tensor each_step(const Tensor& batch) const;
  Tensor sum_of_steps(const Tensor& places, int64_t batch) const;
};

// Gradients of weights and biases, from the gradients of all gates of a direction, by products and
// sums over all steps. A Matrix with null data: that gradient is not needed.
struct ParameterGradients {
  CellKind cell;
  Dtype dtype;
  int64_t direction, batch, hidden;
  std::optional<bool> tf32;
  Matrix grad_gates;        // [S, GH]
  Matrix bias_sums;         // [parts, GH], whose sum is the sum of grad_gates; or none
  Matrix input, weight_ih;  // [S, I], [G_i H, I]
  Matrix previous_h;        // [S, H], h before each step; none: use the next two
  Matrix h0, output;        // [B, H], [S, H], if every row takes every step
  Matrix of_input;          // [S, I]
  bool adds;                // whether to add to of_input or to overwrite it
  Matrix of_weight_ih, of_weight_hh;
  void *of_bias_ih, *of_bias_hh;
};

struct RecurrenceBackend {
  // Half types are multiplied as floats, to which the host converts them once.
  bool widens_half;
  // The plan of a forward or a backward pass; raises for an `algorithm` that cannot run.
  RecurrencePlan (*plan)(const RecurrenceSizes& sizes, at::Device device,
                         std::string_view algorithm, bool backward);
  // Whether a cell's float32 products use tf32, if that differs from torch's setting for matrix
  // products.
  std::optional<bool> (*tf32)(CellKind cell, Dtype dtype);
  // out = a b, all of `dtype`; null if ATen's products are as fast.
  void (*multiply)(const Matrix& out, const Matrix& a, const Matrix& b, Dtype dtype,
                   at::Device device, std::optional<bool> tf32);
  // a [m, k] times b [k, n], in acc_t.
  Tensor (*product_in_acc)(const Tensor& a, const Tensor& b);
  // `first_h`: the h that the first step of algorithm "step" reads in place of args.h, or null. On
  // CUDA weight_hh is dense along rows or columns.
  void (*forward)(const RecurrenceForward& args, const Tensor& weight_hh, const void* first_h);
  // The same for all steps, including the input's products; false if single steps are faster. Null
  // if the backend does not group steps.
  bool (*grouped_forward)(const RecurrenceForward& args, const Tensor& input,
                          const Tensor& weight_ih, const Tensor& weight_hh,
                          const RecurrencePlan& plan, const void* first_h);
  void (*backward)(const RecurrenceBackward& args, const Tensor& weight_hh);
  // c before every step of direction `d`.
  void (*c_states)(const RecurrenceCStates& args, int64_t d, const Sequence& sequence,
                   at::Device device);

  // Computes all of them; null if separate products and sums are as fast.
  void (*parameters)(const ParameterGradients& args, at::Device device) = nullptr;
  // For fused plans; null if the backend makes none.
  void (*fused_forward)(const FusedForward& args, at::Device device,
                        const RecurrencePlan& plan) = nullptr;
  // For persistent plans; null if the backend makes none. These functions set `starts` and
  // `exchange`.
  void (*persistent_forward)(PersistentForward args, const Sequence& sequence, at::Device device,
                             const RecurrencePlan& plan) = nullptr;
  void (*pad_rows)(const PadRows& args, at::Device device) = nullptr;
  // First computes the c states that it reads.
  void (*persistent_backward)(PersistentCStates c_states, PersistentBackward args,
                              const Sequence& sequence, at::Device device,
                              const RecurrencePlan& plan) = nullptr;
};

// plan_recurrence(), but an algorithm that cannot run raises.
inline RecurrencePlan make_plan(const char* op, const RecurrenceSizes& sizes,
                                const RecurrenceDevice& device, std::string_view algorithm,
                                bool backward) {
  RecurrencePlan plan;
  const char* const refusal = plan_recurrence(sizes, device, algorithm, backward, &plan);
  TORCH_CHECK(refusal == nullptr, op, ": ", refusal);
  return plan;
}

// Whether kernels can read t 16 bytes at a time.
inline bool begins_at_16_bytes(const Tensor& t) {
  return reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0;
}

// Contiguous and aligned to 16 bytes.
inline Tensor aligned(const Tensor& t) {
  if (!t.defined()) return t;
  const Tensor found = t.contiguous();
  return begins_at_16_bytes(found) ? found : found.clone();
}

inline MatrixView matrix_view(const Tensor& t) {
  return {t.const_data_ptr(), t.stride(0), t.stride(1)};
}

// Sizes of a launch that takes all rows; the caller sets `starts` for a packed batch.
inline PersistentSizes persistent_sizes(const RecurrenceSizes& sizes, bool half_c) {
  return {sizes.cell,         sizes.dtype,         static_cast<int>(sizes.directions),
          sizes.steps,        sizes.batch,         sizes.hidden,
          /*starts=*/nullptr,
          /*first_row=*/0,    sizes.batch,         half_c,
          /*tf32=*/false,     /*setmaxnreg=*/false};
}

}  // namespace treadle
