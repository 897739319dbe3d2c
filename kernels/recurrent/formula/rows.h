// The functions of kernels/recurrent/cpu/rows.h for a formula and one dtype. The system's C++
// compiler compiles them when a layer first needs them, from a source in which functors.h and the
// formula's functor come before this header.
#pragma once

#include "kernels/recurrent/cpu/rows.h"
#include "kernels/recurrent/cpu/rows_backward.h"

namespace treadle::cpu::TREADLE_ISA {

template <template <class> class CellOf, class T>
struct FormulaRows {
  using acc = acc_t<T>;

  static void pack_forward(CellKind, Dtype, const MatrixView& weight, int64_t hidden,
                           int64_t first_unit, int64_t last_unit, void* panels) {
    TREADLE_ISA::pack_forward<CellOf<acc>, T>(weight, hidden, first_unit, last_unit,
                                              static_cast<acc*>(panels));
  }
  static void pack_backward(CellKind, Dtype, const MatrixView& weight, int64_t hidden,
                            int64_t first_unit, int64_t last_unit, void* panels) {
    TREADLE_ISA::pack_backward<CellOf<acc>, T>(weight, hidden, first_unit, last_unit,
                                               static_cast<acc*>(panels));
  }
  static void pack_input(CellKind, Dtype, const MatrixView& weight, int64_t inputs, int64_t hidden,
                         int64_t first_unit, int64_t last_unit, void* panels) {
    TREADLE_ISA::pack_input<CellOf<acc>, T>(weight, inputs, hidden, first_unit, last_unit,
                                            static_cast<acc*>(panels));
  }
  static void forward(const RecurrenceForward& args, const void* panels, const RowsPart& part) {
    ForwardRows<CellOf, T>(args, static_cast<const acc*>(panels), part).run();
  }
  static void backward(const RecurrenceBackward& args, const void* panels, const RowsPart& part) {
    BackwardRows<CellOf, T>(args, static_cast<const acc*>(panels), part).run();
  }
  static void c_states(const RecurrenceCStates& args, const RowsPart& part) {
    recurrence_c_states<CellOf, T>(args, part);
  }

  static void products(CellKind, Dtype, ProductOf product, const RowProducts& args,
                       int64_t first_unit, int64_t last_unit) {
    multiply_unpacked<CellOf<acc>, T, acc>(product, args, first_unit, last_unit);
  }

  static constexpr RowsFunctions kFunctions{pack_forward, pack_backward, pack_input, forward,
                                            backward,     c_states,      products};
};

}  // namespace treadle::cpu::TREADLE_ISA

// Defines the only symbol of the compiled library.
#define TREADLE_FORMULA_ROWS(T, ...)                       \
  namespace treadle::cpu::TREADLE_ISA {                    \
  template <class acc>                                     \
  using TheCell = __VA_ARGS__;                             \
  }                                                        \
  extern "C" __attribute__((visibility("default")))        \
  const treadle::cpu::RowsFunctions treadle_formula_rows = \
      treadle::cpu::TREADLE_ISA::FormulaRows<treadle::cpu::TREADLE_ISA::TheCell, T>::kFunctions;
