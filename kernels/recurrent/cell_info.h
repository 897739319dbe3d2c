// The host's table of recurrent cells. This header needs neither torch nor CUDA.
#pragma once

#ifndef __CUDACC_RTC__
#include <cstdlib>
#include <string_view>
#endif

#include "kernels/common/dtype.h"
#include "kernels/common/exported.h"

namespace treadle {

// The cells that are compiled into the library. Values from kFormula on are cells that the process
// has registered (formula/cells.h).
enum class CellKind { kLltm, kLstm, kGru, kRnnTanh, kRnnRelu, kFormula };

// The most numbers that c can have for each unit (c_parts).
inline constexpr int kMostCParts = 4;

// The kernels have `gates` gates per unit. x W_ih^T and its bias are added to `input_gates` of
// them, from `input_first` on; h W_hh^T and its bias to `state_gates`, from `state_first` on.
// weight_ih has `input_gates` blocks of H rows, and weight_hh has `state_gates`.
//   lltm  i, o, z          all gates have both products
//   lstm  i, f, g, o       all gates have both products; in torch's order
//   gru   n_h, r, z, n_i   n_h has no input product, n_i no product with h; torch has r, z, n
//   rnn_tanh, rnn_relu     one gate, with both products
struct CellInfo {
  const char* name;
  int gates, input_first, input_gates, state_first, state_gates;
  // Rolling torch's weight_hh and bias_hh by `torch_shift` blocks gives this order of gates.
  int torch_shift;
  // Whether the caller has a state c besides h. The c of other cells is h before rounding.
  bool has_c;
  // How many numbers c has for each unit. c is [D, B, c_parts * H] and consists of blocks of H.
  int c_parts;
  // LLTM has one bias, which is bias_ih.
  bool has_bias_hh;
  // Whether |h| can grow at every step, so that no bound is known before the first step.
  bool h_grows;

  // Whether every gate has both products.
  constexpr bool same_gates() const { return input_gates == gates && state_gates == gates; }
};

inline constexpr CellInfo kCells[] = {
    {"lltm", 3, 0, 3, 0, 3, 0, true, 1, false, false},
    {"lstm", 4, 0, 4, 0, 4, 0, true, 1, true, false},
    {"gru", 4, 1, 3, 0, 3, 1, false, 1, true, false},
    {"rnn_tanh", 1, 0, 1, 0, 1, 0, false, 1, true, false},
    {"rnn_relu", 1, 0, 1, 0, 1, 0, false, 1, true, true},
};

inline constexpr CellKind kCellKinds[] = {CellKind::kLltm, CellKind::kLstm, CellKind::kGru,
                                          CellKind::kRnnTanh, CellKind::kRnnRelu};

// Whether a formula defines the cell. Such a cell has no functor in the library.
constexpr bool is_formula(CellKind cell) { return cell >= CellKind::kFormula; }

#ifndef __CUDACC_RTC__
// For registered cells (formula/cells.cpp).
const CellInfo& formula_info(CellKind cell) TREADLE_EXPORTED(formula_info);
const CellKind* formula_named(std::string_view name) TREADLE_EXPORTED(formula_named);

constexpr const CellInfo& cell_info(CellKind cell) {
  return is_formula(cell) ? formula_info(cell) : kCells[static_cast<int>(cell)];
}

// Whether a step is an affine map of the state, so that steps can be composed before the state is
// known.
bool is_affine(CellKind cell) TREADLE_EXPORTED(is_affine);

// The cell of this name, or null.
inline const CellKind* cell_named(std::string_view name) {
  for (const CellKind& kind : kCellKinds) {
    if (name == cell_info(kind).name) return &kind;
  }
  return formula_named(name);
}

constexpr bool has_bias_hh(CellKind cell) { return cell_info(cell).has_bias_hh; }
constexpr bool has_c(CellKind cell) { return cell_info(cell).has_c; }
constexpr int c_parts(CellKind cell) { return cell_info(cell).c_parts; }
constexpr bool h_grows(CellKind cell) { return cell_info(cell).h_grows; }
#endif

// The functors with which the kernels are instantiated (kernels/math/cells).
namespace math {
struct Lltm;
struct Lstm;
struct Gru;
struct RnnTanh;
struct RnnRelu;
}  // namespace math

#ifndef __CUDACC_RTC__
// Calls f(Type<Kind>{}), where Kind is the cell's struct in math. The cell must be compiled into
// the library.
template <class F>
auto visit_cell(CellKind cell, const F& f) {
  switch (cell) {
    case CellKind::kLltm:
      return f(Type<math::Lltm>{});
    case CellKind::kLstm:
      return f(Type<math::Lstm>{});
    case CellKind::kGru:
      return f(Type<math::Gru>{});
    case CellKind::kRnnTanh:
      return f(Type<math::RnnTanh>{});
    case CellKind::kRnnRelu:
      return f(Type<math::RnnRelu>{});
    case CellKind::kFormula:
      break;
  }
  std::abort();
}
#endif

}  // namespace treadle
