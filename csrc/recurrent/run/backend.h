// How a recurrent layer of any cell is run: a backend's functions, and code that all backends
// share. ATen computes products over all steps; the backend runs the steps. layer/layer.h explains
// the sizes, such as S.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "common/dispatch.h"
#include "common/matrix.h"
#include "kernels/recurrent/plan/plan.h"
#include "kernels/recurrent/step_args.h"
#include "recurrent/layer/layer.h"

namespace treadle {

// Where the rows of each step are in memory, in the order of time.
struct Sequence {
  std::vector<RecurrenceStep> steps;
  int64_t rows = 0;  // the sum over all steps

  // Without batch_sizes, input is [T, B, I].
  Sequence(const Tensor& input, const Tensor& batch_sizes);

  // The steps in the order of direction `d` (1 runs backward in time), with the marks of rows that
  // reset before each step. If `reversed`, the order is that of the direction's backward pass. The
  // last entry is a step without rows.
  std::vector<RecurrenceStep> in_order(int64_t d, bool reversed = false) const;

  // [S, H]: h before each row's step, from h0 [B, H] and output [S, H] of one direction.
  Tensor previous_h(const Tensor& h0, const Tensor& output, int64_t d) const;

  // [S, 1]: whether a row of direction d resets before its step, from the marks [S, 1].
  Tensor marks_before(const Tensor& marks, int64_t d) const;

  // each_step: [S, H] from [B, H], by copying the rows of each step. sum_of_steps is the transpose:
  // [D, B, H] from [D, S, H], by a sum over the steps.
  Tensor each_step(const Tensor& batch) const;
  Tensor sum_of_steps(const Tensor& places, int64_t batch) const;
};

struct BackwardPass;
struct LayerRun;

// The gradients of a layer's input and parameters, in the shapes of these arguments.
struct LayerGradients {
  Tensor input, weight_ih, weight_hh, bias_ih, bias_hh;
};

// The gradients of initial states and of states after resets; each may be undefined.
struct StateGradients {
  Tensor h0, c0;            // [D, B, H]
  Tensor reset_h, reset_c;  // [D, S, H] in LayerRun::acc; zeros where no row resets
};

struct RecurrenceBackend {
  // Whether half types are converted to float before they are multiplied; the host does this once.
  bool widens_half;
  // The plan of a forward or a backward pass; raises for an `algorithm` that cannot run. Sets
  // `tf32` if the TF32 setting of float32 products differs from that of torch's matrix products.
  RecurrencePlan (*plan)(const RecurrenceSizes& sizes, at::Device device,
                         std::string_view algorithm, bool backward, std::optional<bool>* tf32);
  // a [m, k] times b [k, n], in the dtype of sums (float32 for half types).
  Tensor (*product)(const LayerRun& run, const Tensor& a, const Tensor& b);
  // The forward pass; gates are undefined unless `save`.
  LayerSaved (*forward)(const LayerRun& run, bool save);
  // The backward pass. Writes those tensors of `states` that are defined.
  LayerGradients (*backward)(const BackwardPass& pass, const StateGradients& states);
};

// The `algorithm` of a call by a module that replaces one of torch's cells: "auto", but with the
// TF32 setting of matrix products.
inline constexpr std::string_view kCellAlgorithm = "cell";

inline std::string_view planned(std::string_view algorithm) {
  return algorithm == kCellAlgorithm ? "auto" : algorithm;
}

// Like plan_recurrence(), but raises for an algorithm that cannot run.
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

// t itself if it is contiguous and aligned to 16 bytes, otherwise a copy that is.
inline Tensor aligned(const Tensor& t) {
  if (!t.defined()) return t;
  const Tensor found = t.contiguous();
  return begins_at_16_bytes(found) ? found : found.clone();
}

inline MatrixView matrix_view(const Tensor& t) {
  return {t.const_data_ptr(), t.stride(0), t.stride(1)};
}

}  // namespace treadle
