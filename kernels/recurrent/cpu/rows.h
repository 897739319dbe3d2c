// The steps of recurrent_layer on the CPU, for csrc/recurrent/run/cpu.cpp. The functions use raw
// memory and no torch. A call computes rows begin to end of the batch; a parallel loop may divide
// the rows at any multiple of kRowBlock without changing results. `panels` has the weights
// [G_h H, H] in the layout of the pack functions. It is null if the caller computes the products
// with h. Then forward reads `state_products`, and backward leaves grad_h unchanged.
#pragma once

#include <cstdint>

#include "kernels/common/cpu/isa.h"
#include "kernels/recurrent/step_args.h"

namespace treadle::cpu {

inline constexpr int64_t kRowBlock = 8;

// Enough bytes for either forward or backward panels, whose padding differs.
inline int64_t recurrent_panel_bytes(int64_t rows, int64_t hidden, int64_t acc_bytes) {
  const int64_t unit = 2 * 64 / acc_bytes;
  return (hidden + unit - 1) / unit * unit * rows * acc_bytes;
}

TREADLE_CPU_FUNCTION(recurrent_pack_forward,
                     (CellKind cell, Dtype dtype, const MatrixView& weight, int64_t hidden,
                      void* panels),
                     (cell, dtype, weight, hidden, panels))
TREADLE_CPU_FUNCTION(recurrent_pack_backward,
                     (CellKind cell, Dtype dtype, const MatrixView& weight, int64_t hidden,
                      void* panels),
                     (cell, dtype, weight, hidden, panels))
TREADLE_CPU_FUNCTION(recurrent_layer_forward,
                     (const RecurrenceForward& args, const void* panels, int64_t begin,
                      int64_t end),
                     (args, panels, begin, end))
TREADLE_CPU_FUNCTION(recurrent_layer_backward,
                     (const RecurrenceBackward& args, const void* panels, int64_t begin,
                      int64_t end),
                     (args, panels, begin, end))
TREADLE_CPU_FUNCTION(recurrent_layer_c_states,
                     (const RecurrenceCStates& args, int64_t begin, int64_t end),
                     (args, begin, end))

// The functions above for one cell: the library's, or functions that were compiled for a formula.
struct RowsFunctions {
  void (*pack_forward)(CellKind cell, Dtype dtype, const MatrixView& weight, int64_t hidden,
                       void* panels);
  void (*pack_backward)(CellKind cell, Dtype dtype, const MatrixView& weight, int64_t hidden,
                        void* panels);
  void (*forward)(const RecurrenceForward& args, const void* panels, int64_t begin, int64_t end);
  void (*backward)(const RecurrenceBackward& args, const void* panels, int64_t begin, int64_t end);
  void (*c_states)(const RecurrenceCStates& args, int64_t begin, int64_t end);
};

}  // namespace treadle::cpu
