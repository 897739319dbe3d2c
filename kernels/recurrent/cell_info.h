// The host's table of recurrent cells. It needs neither torch nor CUDA.
#pragma once

#include <cstdlib>
#include <string_view>

#include "kernels/common/dtype.h"

namespace treadle {

enum class CellKind { kLltm, kLstm, kGru, kRnnTanh, kRnnRelu };

// The kernels have `gates` gates per unit. x W_ih^T and its bias add to `input_gates` of them, from
// `input_first` on; h W_hh^T and its bias add to `state_gates`, from `state_first` on. weight_ih
// has `input_gates` blocks of H rows, weight_hh has `state_gates`.
//   lltm  i, o, z          both weights add to all gates
//   lstm  i, f, g, o       both weights add to all gates, in torch's order
//   gru   n_h, r, z, n_i   weight_hh adds to n_h, r, z, weight_ih to r, z, n_i; torch has r, z, n
//   rnn_tanh, rnn_relu     one gate, to which both weights add
struct CellInfo {
  const char* name;
  int gates, input_first, input_gates, state_first, state_gates;
  // Rolling torch's weight_hh and bias_hh by `torch_shift` blocks gives this order of gates.
  int torch_shift;

  // Whether every gate has both products.
  constexpr bool same_gates() const { return input_gates == gates && state_gates == gates; }
};

inline constexpr CellInfo kCells[] = {
    {"lltm", 3, 0, 3, 0, 3, 0},     {"lstm", 4, 0, 4, 0, 4, 0},     {"gru", 4, 1, 3, 0, 3, 1},
    {"rnn_tanh", 1, 0, 1, 0, 1, 0}, {"rnn_relu", 1, 0, 1, 0, 1, 0},
};

constexpr const CellInfo& cell_info(CellKind cell) { return kCells[static_cast<int>(cell)]; }

inline constexpr CellKind kCellKinds[] = {CellKind::kLltm, CellKind::kLstm, CellKind::kGru,
                                          CellKind::kRnnTanh, CellKind::kRnnRelu};

// The cell of this name, or null.
constexpr const CellKind* cell_named(std::string_view name) {
  for (const CellKind& kind : kCellKinds) {
    if (name == cell_info(kind).name) return &kind;
  }
  return nullptr;
}

// LLTM has one bias, which is bias_ih.
constexpr bool has_bias_hh(CellKind cell) { return cell != CellKind::kLltm; }

// Whether the caller has a state c beside h. The c of other cells is h before rounding.
constexpr bool has_c(CellKind cell) { return cell == CellKind::kLltm || cell == CellKind::kLstm; }

// Whether |h| can grow at every step, so that no bound is known before the first one.
constexpr bool h_grows(CellKind cell) { return cell == CellKind::kRnnRelu; }

// The functors that the kernels are instantiated with: kernels/math/cells.
namespace math {
struct Lltm;
struct Lstm;
struct Gru;
struct RnnTanh;
struct RnnRelu;
}  // namespace math

// Calls f(Type of the cell's functors).
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
  }
  std::abort();
}

}  // namespace treadle
