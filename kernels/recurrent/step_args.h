// Arguments that describe one direction of a recurrent layer, for kernels on the CPU and on CUDA.
// This header needs neither torch nor CUDA. In shapes, B is the number of rows of the batch, H the
// number of units, and S the number of rows of all steps together (T * B if every row takes every
// step). A cell has G gates. The last G_i of them have a product with the input, and the first G_h
// have one with h (kernels/math/cells). States, products and c have the type acc_t; values saved
// for the backward pass have the type `dtype`.
#pragma once

#include <cstdint>

#include "kernels/common/dtype.h"
#include "kernels/recurrent/cell_info.h"

namespace treadle {

// A step: rows `start` to `start + rows` of the S rows of all steps. They belong to the first
// `rows` rows of the batch. The `marked_rows` marks from index `marks` on determine which rows
// reset before the step.
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
  // reset. Only elements that belong to a reset are written. Null: not requested.
  void *grad_h = nullptr, *grad_c = nullptr;
  bool per_step = false;
};

struct MatrixView {
  const void* data = nullptr;  // null: the argument is missing
  int64_t row_stride = 0, column_stride = 0;
};

// starts_anew() tells whether row b resets before the step. reset_row() is the row's index in the
// arrays of RecurrenceResets.
TREADLE_HD bool starts_anew(const RecurrenceResets& resets, const RecurrenceStep& step, int64_t b) {
  return b < step.marked_rows && resets.marks != nullptr && resets.marks[step.marks + b];
}
TREADLE_HD int64_t reset_row(const RecurrenceResets& resets, const RecurrenceStep& step,
                             int64_t b) {
  return resets.per_step ? step.start + b : b;
}

// Arguments of a forward pass over consecutive steps, in the order in which they run. A row without
// a step keeps its state.
struct RecurrenceForward {
  CellKind cell;
  Dtype dtype;
  int64_t batch, hidden;
  const RecurrenceStep* steps;
  int64_t step_count;
  // `products` is x W_ih^T: [S, G_i H] acc. If all gates have both products, CUDA adds h W_hh^T to
  // `products` in place. Otherwise, and in a StepGraph (csrc/recurrent/cuda/step_groups.h),
  // `state_products` is h W_hh^T for steps[0]: [rows, G_h H] acc, in W_hh's order. On the CPU,
  // `state_products` may be given only for a single step.
  MatrixView products, state_products;
  const void *bias_ih, *bias_hh;  // [G_i H], [G_h H]; each may be null
  void* h;                        // [B, H] state, in and out
  void* c;                        // [B, H] acc, state, in and out
  void* output;                   // [S, H], rows output_stride apart
  int64_t output_stride;
  void* gates;  // [S, GH] contiguous: pre-activations including bias; or null
  // The resets of this direction. On CUDA each step also applies the resets before the next step,
  // so steps[step_count] must exist. The caller applies the resets before the first step.
  RecurrenceResets resets = {};
  // CUDA: the array that the first step reads in place of c, or null. If it is given, the first
  // step must have all rows.
  const void* first_c = nullptr;
  // CPU: the input x [S, I] acc, with a column stride of 1, and W_ih in panels. If they are given,
  // each step also computes its products with the input, and `products` is missing.
  MatrixView input = {};
  int64_t input_size = 0;
  const void* input_panels = nullptr;
};

// Arguments of a backward pass over consecutive steps, in the order in which the backward pass runs
// them. This is the reverse of the forward order.
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
  // On CUDA, a step of the backward pass also handles the resets between it and `last`, the step
  // that runs before it in the backward pass and after it in the forward pass. The caller handles
  // the resets before the first step.
  RecurrenceResets resets = {};
  RecurrenceStep last = {};
};

// Arguments of the function that recomputes c before each step from the saved gates, for the
// backward pass. `c` is the state before the first step and, on return, after the last step.
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
