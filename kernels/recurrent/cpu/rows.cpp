// The steps of recurrent_layer on the CPU. The loops are in rows_forward.h and rows_backward.h, the
// formulas in kernels/math/cells. Twin: kernels/recurrent/instances/step.cu.
#include "kernels/recurrent/cpu/rows.h"

#include "kernels/math/cells/gru.h"
#include "kernels/math/cells/lltm.h"
#include "kernels/math/cells/lstm.h"
#include "kernels/math/cells/rnn_relu.h"
#include "kernels/math/cells/rnn_tanh.h"
#include "kernels/recurrent/cpu/rows_backward.h"

namespace treadle::cpu::TREADLE_ISA {

// Calls f(Type<Kind>{}, Type<T>{}), where Kind has the cell's functors and T is the dtype's type.
template <class F>
static void visit_kernel(CellKind cell, Dtype dtype, const F& f) {
  visit_cell(cell, [&](auto kind) { visit_floating(dtype, [&](auto type) { f(kind, type); }); });
}

// Checks that the functors and cell_info.h agree about a cell.
template <class Kind>
constexpr bool agrees(CellKind cell) {
  using Cell = typename Kind::template Cell<float>;
  const CellInfo& info = cell_info(cell);
  bool same = Cell::kGates == info.gates && Cell::kInputGates == info.input_gates &&
              Cell::kStateGates == info.state_gates &&
              (Cell::kHBound == math::HBound::kNone) == h_grows(cell);
  for (int gate = 0; gate < Cell::kStateGates; ++gate) {
    const int block = (gate + Cell::kStateGates - info.torch_shift) % Cell::kStateGates;
    same = same && Cell::weight_block(gate) == block;
  }
  return same;
}
static_assert(agrees<math::Lltm>(CellKind::kLltm) && agrees<math::Lstm>(CellKind::kLstm) &&
              agrees<math::Gru>(CellKind::kGru) && agrees<math::RnnTanh>(CellKind::kRnnTanh) &&
              agrees<math::RnnRelu>(CellKind::kRnnRelu));

void recurrent_pack_forward(CellKind cell, Dtype dtype, const MatrixView& weight, int64_t hidden,
                            int64_t first_unit, int64_t last_unit, void* panels) {
  visit_kernel(cell, dtype, [&](auto kind, auto type) {
    using T = typename decltype(type)::type;
    using Cell = typename decltype(kind)::type::template Cell<acc_t<T>>;
    pack_forward<Cell, T>(weight, hidden, first_unit, last_unit, static_cast<acc_t<T>*>(panels));
  });
}

void recurrent_pack_backward(CellKind cell, Dtype dtype, const MatrixView& weight, int64_t hidden,
                             int64_t first_unit, int64_t last_unit, void* panels) {
  visit_kernel(cell, dtype, [&](auto kind, auto type) {
    using T = typename decltype(type)::type;
    using Cell = typename decltype(kind)::type::template Cell<acc_t<T>>;
    pack_backward<Cell, T>(weight, hidden, first_unit, last_unit, static_cast<acc_t<T>*>(panels));
  });
}

void recurrent_pack_input(CellKind cell, Dtype dtype, const MatrixView& weight, int64_t inputs,
                          int64_t hidden, int64_t first_unit, int64_t last_unit, void* panels) {
  visit_kernel(cell, dtype, [&](auto kind, auto type) {
    using T = typename decltype(type)::type;
    using Cell = typename decltype(kind)::type::template Cell<acc_t<T>>;
    pack_input<Cell, T>(weight, inputs, hidden, first_unit, last_unit,
                        static_cast<acc_t<T>*>(panels));
  });
}

void recurrent_layer_forward(const RecurrenceForward& args, const void* panels,
                             const RowsPart& part) {
  visit_kernel(args.cell, args.dtype, [&](auto cell, auto type) {
    using Kind = typename decltype(cell)::type;
    using T = typename decltype(type)::type;
    ForwardRows<Kind::template Cell, T>(args, static_cast<const acc_t<T>*>(panels), part).run();
  });
}

void recurrent_layer_backward(const RecurrenceBackward& args, const void* panels,
                              const RowsPart& part) {
  visit_kernel(args.cell, args.dtype, [&](auto cell, auto type) {
    using Kind = typename decltype(cell)::type;
    using T = typename decltype(type)::type;
    BackwardRows<Kind::template Cell, T>(args, static_cast<const acc_t<T>*>(panels), part).run();
  });
}

void recurrent_layer_c_states(const RecurrenceCStates& args, const RowsPart& part) {
  visit_kernel(args.cell, args.dtype, [&](auto cell, auto type) {
    using Kind = typename decltype(cell)::type;
    recurrence_c_states<Kind::template Cell, typename decltype(type)::type>(args, part);
  });
}

void recurrent_products(CellKind cell, Dtype dtype, ProductOf product, const RowProducts& args,
                        int64_t first_unit, int64_t last_unit) {
  visit_kernel(cell, dtype, [&](auto kind, auto type) {
    using T = typename decltype(type)::type;
    using Cell = typename decltype(kind)::type::template Cell<acc_t<T>>;
    multiply_unpacked<Cell, T, acc_t<T>>(product, args, first_unit, last_unit);
  });
}

}  // namespace treadle::cpu::TREADLE_ISA
