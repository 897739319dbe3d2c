// The backward pass of rows_forward.h. Twin: kernels/recurrent/step/step.cuh.
#pragma once

#include "kernels/recurrent/cpu/rows_forward.h"

namespace treadle::cpu::TREADLE_ISA {

// Replaces the gates of kColumns units of a row by their gradients, and the gradient of c after the
// step by that of c before it. Like advance(), this does not depend on the dtype of the tensors.
template <class Cell, class acc>
TREADLE_NOINLINE void gradients_of_units(GatesOf<Cell, acc>& gates, const UnitsOf<acc>* old_c,
                                         const UnitsOf<acc>& new_c, const UnitsOf<acc>& grad_h,
                                         UnitsOf<acc>* grad_c) {
  constexpr int kGates = Cell::kGates, kCParts = Cell::kCParts;
  for (int64_t i = 0; i < kColumns<acc>; ++i) {
    acc g[kGates];
    for (int k = 0; k < kGates; ++k) g[k] = gates[k][i];
    math::CType<acc, kCParts> c{}, own{};
    for (int p = 0; p < kCParts; ++p) {
      math::part(c, p) = old_c[p][i], math::part(own, p) = grad_c[p][i];
    }
    const auto grad = Cell::backward(Cell::slopes(g, c, new_c[i]), grad_h[i], own);
    for (int k = 0; k < kGates; ++k) gates[k][i] = grad.gates[k];
    for (int p = 0; p < kCParts; ++p) grad_c[p][i] = math::part(grad.old_cell, p);
  }
}

// The backward pass of a part of the batch.
template <template <class> class CellOf, class T, class acc = acc_t<T>>
class BackwardRows {
  using Cell = CellOf<acc>;
  static constexpr int kGates = Cell::kGates, kCParts = Cell::kCParts;
  static constexpr int64_t kN = kColumns<acc>;
  static_assert(!Cell::kReadsNewCell || kCParts == 1);

 public:
  BackwardRows(const RecurrenceBackward& args, const acc* panels, const RowsPart& part)
      : a_(args),
        panels_(panels),
        part_(part),
        begin_(part.begin),
        count_(part.end - part.begin),
        padded_(groups_of<acc>(args.hidden) * kN),
        new_c_(Cell::kReadsNewCell ? count_ * padded_ : 0) {}

  void run() {
    int64_t rows_after = 0;
    for (int64_t s = 0; s < a_.step_count; ++s) {
      const RecurrenceStep& step = a_.steps[s];
      const int64_t rows = std::clamp(step.rows - begin_, int64_t{0}, count_);
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t b = begin_ + r;
        // If the row was reset before the next step, the c before that step is not the c after this
        // step.
        const bool known = r < rows_after && !starts_anew(a_.resets, a_.steps[s - 1], b);
        for (int64_t column = part_.first_unit; column < part_.last_unit; column += kN) {
          begin_row(step.start + b, b, column, known);
        }
      }
      rows_after = rows;
      // The product reads the gradients of all gates. Other threads may write them.
      if (part_.barrier != nullptr) part_.barrier->wait(part_.count);
      for (int64_t column = part_.first_unit; column < part_.last_unit && panels_ != nullptr;
           column += kBackwardUnits * kN) {
        run_columns(step, column, rows);
      }
      for (int64_t r = 0; r < rows && a_.resets.marks != nullptr; ++r) cut(step, begin_ + r);
    }
  }

 private:
  const RecurrenceBackward& a_;
  const acc* panels_;
  const RowsPart& part_;
  int64_t begin_, count_, padded_;
  // c after the current step of each row. It is kept, so that tanh(c) need not wait until c is
  // computed again from the gates.
  Scratch<acc> new_c_;

  acc* grad_h(int64_t b) const {
    return static_cast<acc*>(const_cast<void*>(a_.grad_h.data)) + b * a_.hidden;
  }

  // If a reset replaced the state before the step, the gradient goes to the replacement.
  void cut(const RecurrenceStep& step, int64_t b) const {
    if (!starts_anew(a_.resets, step, b)) return;
    const int64_t row = step.start + b;
    move(grad_h(b), a_.resets.grad_h, row * a_.hidden);
    for (int64_t p = 0; p < kCParts; ++p) {
      move(static_cast<acc*>(a_.grad_c) + (b * kCParts + p) * a_.hidden, a_.resets.grad_c,
           (row * kCParts + p) * a_.hidden);
    }
  }

  // Moves this part's units of `from` to element `at` of `to`, or drops them if `to` is null.
  void move(acc* from, void* to, int64_t at) const {
    const int64_t first = part_.first_unit, width = part_.last_unit - first;
    if (to != nullptr) std::copy_n(from + first, width, static_cast<acc*>(to) + at + first);
    std::fill_n(from + first, width, acc(0));
  }

  // Computes the gradients of the gates and of c for kN units. If `known`, new_c_ has the c after
  // this step.
  TREADLE_INLINE void begin_row(int64_t row, int64_t b, int64_t column, bool known) {
    const int64_t n = std::min(kN, a_.hidden - column);
    acc gates[kGates][kN] = {}, old_c[kCParts][kN] = {}, dh[kN] = {}, own[kN] = {};
    acc dc[kCParts][kN] = {};
    for (int k = 0; k < kGates; ++k) {
      load_some<T>(a_.gates, (row * kGates + k) * a_.hidden + column, gates[k], n);
    }
    for (int p = 0; p < kCParts; ++p) {
      load_some<acc>(a_.c_states, (row * kCParts + p) * a_.hidden + column, old_c[p], n);
    }
    if (a_.grad_output.data != nullptr) {
      const auto& [data, row_stride, column_stride] = a_.grad_output;
      const int64_t element = row * row_stride + column * column_stride;
      if (column_stride == 1) {
        load_some<T>(data, element, dh, n);
      } else {
        load<T, acc>(static_cast<const char*>(data) + element * int64_t{sizeof(T)},
                     column_stride * int64_t{sizeof(T)}, dh, n);
      }
    }
    acc* const own_dh = grad_h(b) + column;
    acc* const own_dc = static_cast<acc*>(a_.grad_c) + b * kCParts * a_.hidden + column;
    load_some<acc>(own_dh, 0, own, n);
    for (int64_t i = 0; i < kN; ++i) dh[i] += own[i];
    for (int p = 0; p < kCParts; ++p) load_some<acc>(own_dc, p * a_.hidden, dc[p], n);
    acc new_c[kN] = {};
    if constexpr (Cell::kReadsNewCell) {
      acc* const own_c = new_c_ + ((b - begin_) * padded_ + column);
      std::copy_n(known ? own_c : old_c[0], kN, new_c);
      if (!known) next_c<Cell, acc>(gates, &new_c);
      std::copy_n(old_c[0], kN, own_c);
    }
    gradients_of_units<Cell, acc>(gates, old_c, new_c, dh, dc);
    for (int k = 0; k < kGates; ++k) {
      store_some<acc>(a_.grad_gates, (row * kGates + k) * a_.hidden + column, gates[k], n);
    }
    for (int p = 0; p < kCParts; ++p) store_some<acc>(own_dc, p * a_.hidden, dc[p], n);
  }

  // Computes the gradient of the previous h: the gradients of those gates that have a product with
  // h, multiplied by W.
  void run_columns(const RecurrenceStep& step, int64_t column, int64_t rows) {
    constexpr int64_t kWidth = kBackwardUnits * kN;
    const int64_t depth = Cell::kStateGates * a_.hidden, n = std::min(kWidth, a_.hidden - column);
    const int64_t width = kGates * a_.hidden;
    const acc* x = static_cast<const acc*>(a_.grad_gates) + (step.start + begin_) * width;
    multiply_rows<kBackwardUnits>(
        panels_ + column * depth, x, width, rows, depth, [](int64_t, int64_t) {},
        [&](int64_t first, int64_t count, const acc* products) {
          for (int64_t i = 0; i < count; ++i) {
            acc* const to = grad_h(begin_ + first + i) + column;
            n == kWidth ? std::copy_n(products + i * kWidth, kWidth, to)
                        : std::copy_n(products + i * kWidth, n, to);
          }
        });
  }
};

// Computes c before each step from the gates, for a part of the batch.
template <template <class> class CellOf, class T, class acc = acc_t<T>>
void recurrence_c_states(const RecurrenceCStates& a, const RowsPart& part) {
  using Cell = CellOf<acc>;
  constexpr int kGates = Cell::kGates, kCParts = Cell::kCParts;
  constexpr int64_t kN = kColumns<acc>;
  const int64_t width = kCParts * a.hidden;
  for (int64_t s = 0; s < a.step_count; ++s) {
    for (int64_t b = part.begin; b < std::min(part.end, a.steps[s].rows); ++b) {
      const int64_t row = a.steps[s].start + b;
      const bool anew = starts_anew(a.resets, a.steps[s], b);
      const int64_t replaced = anew ? reset_row(a.resets, a.steps[s], b) : 0;
      for (int64_t column = part.first_unit; column < part.last_unit; column += kN) {
        const int64_t n = std::min(kN, a.hidden - column);
        acc gates[kGates][kN] = {}, c[kCParts][kN] = {};
        for (int k = 0; k < kGates; ++k) {
          load_some<T>(a.gates, (row * kGates + k) * a.hidden + column, gates[k], n);
        }
        for (int p = 0; p < kCParts; ++p) {
          const int64_t at = p * a.hidden + column;
          if (!anew) {
            load_some<acc>(a.c, b * width + at, c[p], n);
          } else if (a.resets.c != nullptr) {
            load_some<acc>(a.resets.c, replaced * width + at, c[p], n);
          }
          store_some<acc>(a.c_states, row * width + at, c[p], n);
        }
        next_c<Cell, acc>(gates, c);
        for (int p = 0; p < kCParts; ++p) {
          store_some<acc>(a.c, b * width + p * a.hidden + column, c[p], n);
        }
      }
    }
  }
}

}  // namespace treadle::cpu::TREADLE_ISA
