// The engine that runs a recurrent layer, whatever its cell: what a backend brings, and what all of
// them share. Products over all steps are ATen's; steps are the backend's.
#pragma once

#include <string_view>
#include <vector>

#include "dispatch.h"
#include "kernels/persistent_args.h"
#include "kernels/recurrence_args.h"
#include "recurrence_plan.h"

namespace treadle {

// The rows of every step, as they lie in memory, first step first.
struct Sequence {
  std::vector<RecurrenceStep> steps;
  int64_t rows = 0;  // of all steps

  Sequence(const Tensor& input, const OptionalTensor& batch_sizes);

  // As direction `d` runs them: 1 is backward in time.
  std::vector<RecurrenceStep> in_order(int64_t d) const;

  // [S, H]: what h was before each row's step, from h0 [B, H] and output [S, H] of one direction.
  Tensor previous_h(const Tensor& h0, const Tensor& output, int64_t d) const;
};

struct RecurrenceBackend {
  // Of a forward or a backward pass; raises for a `regime` that cannot run.
  RecurrencePlan (*plan)(const RecurrenceSizes& sizes, at::Device device, std::string_view regime,
                         bool backward);
  // Of grad_gates, and of the operands of its products.
  ScalarType (*work_dtype)(ScalarType dtype);
  // x [n, I] times W_ih^T [I, 3H], in acc_t.
  Tensor (*input_product)(const Tensor& x, const Tensor& weight_ih, bool transposed);
  void (*forward)(const RecurrenceForward& args, const Tensor& weight_hh,
                  const RecurrencePlan& plan);
  void (*backward)(const RecurrenceBackward& args, const Tensor& weight_hh,
                   const RecurrencePlan& plan);
  // Of direction `d`.
  void (*cells)(const RecurrenceCells& args, int64_t d, const Sequence& sequence, at::Device device,
                const RecurrencePlan& plan);

  // For persistent plans, if it makes any. `starts` and `exchange` are still to be set.
  void (*persistent_forward)(PersistentForward args, const Sequence& sequence, at::Device device,
                             const RecurrencePlan& plan) = nullptr;
  // After the cells that it reads.
  void (*persistent_backward)(PersistentCells cells, PersistentBackward args,
                              const Sequence& sequence, at::Device device,
                              const RecurrencePlan& plan) = nullptr;
};

inline MatrixView matrix_view(const Tensor& t) {
  return {t.const_data_ptr(), t.stride(0), t.stride(1)};
}

}  // namespace treadle
