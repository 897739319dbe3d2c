// The host's declaration of the functors of a cell that a formula defines. It has the numbers of
// gates and of parts of c, which determine the layouts of the kernels. The kernels are compiled at
// run time. In that compilation, functors.h declares the same functors, and generated code defines
// them with the user's formula.
#pragma once

#include <cstdlib>

#include "kernels/math/h_bound.h"
#include "kernels/recurrent/cell_info.h"

namespace treadle::math {

// `half` is true in the forward pass if h is stored in a half type.
template <class acc, int gates, int input_gates, int state_gates, int c_parts, bool half>
struct FormulaRecurrence {
  static constexpr int kGates = gates, kInputGates = input_gates, kStateGates = state_gates;
  static constexpr int kCParts = c_parts;
  static constexpr HBound kHBound = HBound::kNone;
};

// The `Kind` with which the launchers are instantiated (kernels/recurrent/cell_launchers.h).
template <int gates, int input_gates, int state_gates, int c_parts>
struct Formula {
  template <class acc>
  using Cell = FormulaRecurrence<acc, gates, input_gates, state_gates, c_parts, false>;
  template <class acc>
  using HalfCell = FormulaRecurrence<acc, gates, input_gates, state_gates, c_parts, true>;
};

}  // namespace treadle::math

namespace treadle {

// Calls f(Type<Formula>{}) with the Formula that has the cell's numbers of gates. The digits of a
// key are the numbers of gates, of gates with an input product, and of gates with a product with h.
// takes_gates() of formula/cells.cpp must have the same cases.
template <int c_parts, class F>
auto visit_formula_gates(const CellInfo& info, const F& f) {
  const int key = info.gates * 100 + info.input_gates * 10 + info.state_gates;
  switch (key) {
    case 111:
      return f(Type<math::Formula<1, 1, 1, c_parts>>{});
    case 222:
      return f(Type<math::Formula<2, 2, 2, c_parts>>{});
    case 322:
      return f(Type<math::Formula<3, 2, 2, c_parts>>{});
    case 333:
      return f(Type<math::Formula<3, 3, 3, c_parts>>{});
    case 433:
      return f(Type<math::Formula<4, 3, 3, c_parts>>{});
    case 444:
      return f(Type<math::Formula<4, 4, 4, c_parts>>{});
  }
  std::abort();
}

template <class F>
auto visit_formula(const CellInfo& info, const F& f) {
  static_assert(kMostCParts == 4);
  switch (info.c_parts) {
    case 1:
      return visit_formula_gates<1>(info, f);
    case 2:
      return visit_formula_gates<2>(info, f);
    case 3:
      return visit_formula_gates<3>(info, f);
    case 4:
      return visit_formula_gates<4>(info, f);
  }
  std::abort();
}

}  // namespace treadle
