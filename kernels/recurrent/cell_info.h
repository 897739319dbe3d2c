// The cells of recurrent layers, by kind, as the host needs to know them: no torch, no CUDA.
#pragma once

#include <cstdlib>
#include <string_view>

#include "kernels/common/dtype.h"

namespace treadle {

enum class CellKind { kLltm, kLstm, kGru };

// The kernels have `gates` gates a unit. x W_ih^T and its bias add to `input_gates` of them from
// `input_first` on, h W_hh^T and its bias to `state_gates` from `state_first` on: weights have so
// many blocks of H rows.
//   lltm  i, o, z          both weights give all
//   lstm  i, f, g, o       both give all; torch's order
//   gru   n_h, r, z, n_i   weight_hh gives n_h, r, z and weight_ih r, z, n_i; torch has r, z, n
struct CellInfo {
  const char* name;
  int gates, input_first, input_gates, state_first, state_gates;
  // torch's weight_hh and bias_hh, rolled by so many blocks, are in the order of the gates.
  int torch_shift;

  // Whether every gate has both products.
  constexpr bool same_gates() const { return input_gates == gates && state_gates == gates; }
};

inline constexpr CellInfo kCells[] = {
    {"lltm", 3, 0, 3, 0, 3, 0},
    {"lstm", 4, 0, 4, 0, 4, 0},
    {"gru", 4, 1, 3, 0, 3, 1},
};

constexpr const CellInfo& cell_info(CellKind cell) { return kCells[static_cast<int>(cell)]; }

inline constexpr CellKind kCellKinds[] = {CellKind::kLltm, CellKind::kLstm, CellKind::kGru};

// null if there is none of this name.
constexpr const CellKind* cell_named(std::string_view name) {
  for (const CellKind& kind : kCellKinds) {
    if (name == cell_info(kind).name) return &kind;
  }
  return nullptr;
}

// LLTM has one bias, which is bias_ih.
constexpr bool has_bias_hh(CellKind cell) { return cell != CellKind::kLltm; }

// What kernels take: kernels/math/cells.
namespace math {
struct Lltm;
struct Lstm;
struct Gru;
}  // namespace math

// f(Type<functors>{})
template <class F>
auto visit_cell(CellKind cell, const F& f) {
  switch (cell) {
    case CellKind::kLltm:
      return f(Type<math::Lltm>{});
    case CellKind::kLstm:
      return f(Type<math::Lstm>{});
    case CellKind::kGru:
      return f(Type<math::Gru>{});
  }
  std::abort();
}

}  // namespace treadle
