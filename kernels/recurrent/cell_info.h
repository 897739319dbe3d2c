// The recurrent cells, as the host describes them: no torch, no CUDA. A cell's gates are blocks of
// H columns; the input's weight and the state's give a window of them each, `input_gates` gates
// from gate `input_first`, and so on.
//   lltm  i, o, z          both weights give all
//   lstm  i, f, g, o       both give all; torch's order
//   gru   n_h, r, z, n_i   weight_hh gives n_h, r, z and weight_ih r, z, n_i
#pragma once

namespace treadle {

enum class CellKind { kLltm, kLstm, kGru };

struct CellInfo {
  const char* name;
  int gates, input_first, input_gates, state_first, state_gates;
};

// One row a CellKind, in its order.
inline constexpr CellInfo kCells[] = {
    {"lltm", 3, 0, 3, 0, 3},
    {"lstm", 4, 0, 4, 0, 4},
    {"gru", 4, 1, 3, 0, 3},
};

constexpr const CellInfo& cell_info(CellKind kind) { return kCells[static_cast<int>(kind)]; }

}  // namespace treadle
