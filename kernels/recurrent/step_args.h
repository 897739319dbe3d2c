// Arguments that describe one direction of a recurrent layer, for kernels on the CPU and on CUDA.
// This header needs neither torch nor CUDA. Shapes: S rows of all steps (of a packed batch, or T *
// B), B rows of the batch, H units. Of the G gates, the last G_i have a product with the input, and
// the first G_h have one with h (kernels/math/cells). States, products and c are acc_t; values
// saved for the backward pass are `dtype`.
#pragma once

#include <cstdint>

#include "kernels/common/dtype.h"
#include "kernels/recurrent/cell_info.h"

namespace treadle {

// Rows `start` to `start + rows` of S, which are a prefix of the batch. The `marked_rows` marks
// from index `marks` on determine which rows reset before the step.
struct RecurrenceStep {
  int64_t start, rows;
  int64_t marks = 0, marked_rows = 0;
};

// Resets replace states before a step. Marks are in the order of time. Direction 0 resets before
// the marked step. Direction 1, which runs backward in time, resets before the step that precedes
// the marked step in time. The first step can have a mark only in direction 0.
struct RecurrenceResets {
  const bool* marks = nullptr;  // [S]; null: no resets
  // The states that a reset restores, contiguous: [D, B, H] or, if `per_step`, [D, S, H]; h in
  // `dtype`, c in acc. Null: zeros.
  const void *h = nullptr, *c = nullptr;
  // Backward: [D, S, H] acc, the gradients of the replacement states, indexed by the step after the
  // reset. Only the elements of resets are written. Null: not requested.
  void *grad_h = nullptr, *grad_c = nullptr;
  bool per_step = false;
};

struct MatrixView {
  const void* data = nullptr;  // null: the argument is missing
  int64_t row_stride = 0, column_stride = 0;
};

// Whether row b resets before the step, and its row in the arrays of RecurrenceResets.
TREADLE_HD bool starts_anew(const RecurrenceResets& resets, const RecurrenceStep& step, int64_t b) {
  return b < step.marked_rows && resets.marks != nullptr && resets.marks[step.marks + b];
}
TREADLE_HD int64_t reset_row(const RecurrenceResets& resets, const RecurrenceStep& step,
                             int64_t b) {
  return resets.per_step ? step.start + b : b;
}

// Consecutive steps in the order in which they run. A row without a step keeps its state.
struct RecurrenceForward {
  CellKind cell;
  Dtype dtype;
  int64_t batch, hidden;
  const RecurrenceStep* steps;
  int64_t step_count;
  // [S, G_i H] acc: x W_ih^T. CUDA adds h W_hh^T in place if all gates have both products;
  // otherwise, and in a StepGraph, `state_products` has that product for steps[0], [rows, G_h H]
  // acc in W_hh's order. On the CPU it has the product of the only step, or is missing.
  MatrixView products, state_products;
  const void *bias_ih, *bias_hh;  // [G_i H], [G_h H]; each may be null
  void* h;                        // [B, H] state, in and out
  void* c;                        // [B, H] acc, state, in and out
  void* output;                   // [S, H], rows output_stride apart
  int64_t output_stride;
  void* gates;  // [S, GH] contiguous: pre-activations including bias; or null
  // The resets of this direction. On CUDA each step writes the replaced states for the next one, so
  // steps[step_count] must exist, and the caller replaces the states of the first step.
  RecurrenceResets resets = {};
  // CUDA: the array that the first step reads in place of c, or null. If it is given, the first
  // step has all rows.
  const void* first_c = nullptr;
};

// Steps in the order in which the backward pass runs them, the reverse of the forward order.
struct RecurrenceBackward {
  CellKind cell;
  Dtype dtype;
  int64_t batch, hidden;
  const RecurrenceStep* steps;
  int64_t step_count;
  const void* gates;       // as saved by the forward pass
  const void* c_states;    // [S, H] acc, contiguous: c before each step
  MatrixView grad_output;  // [S, H] or missing
  MatrixView grad_h;       // [B, H] acc, state, in and out
  void* grad_c;            // [B, H] acc, state, in and out
  void* grad_gates;        // [S, GH] contiguous: `dtype` on CUDA, acc on the CPU
  // On CUDA each step handles the reset after it, which is the reset before `last`, the step that
  // ran previously. The caller handles the reset before the first step.
  RecurrenceResets resets = {};
  RecurrenceStep last = {};
};

// Recomputes c before each step from the saved gates, for the backward pass. c [B, H] acc: the
// state before the first step, and on return the state after the last step.
struct RecurrenceCStates {
  CellKind cell;
  Dtype dtype;
  int64_t batch, hidden;
  const RecurrenceStep* steps;
  int64_t step_count;
  const void* gates;  // [S, GH]
  void* c;            // [B, H] acc
  void* c_states;     // [S, H] acc
  RecurrenceResets resets = {};
};

}  // namespace treadle
