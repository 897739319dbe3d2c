// lltm_layer's steps on the CPU, as csrc/lltm_layer_cpu.cpp calls them: raw memory, no torch.
// `panels` are weights [3H, H] laid out by the pack functions, of panel_bytes. Rows begin .. end of
// the batch; results are the same wherever a parallel loop cuts at multiples of kRowBlock.
#pragma once

#include <cstdint>

#include "cpu/isa.h"
#include "kernels/recurrence_args.h"

namespace treadle::cpu {

inline constexpr int64_t kRowBlock = 8;

// Of weights [3H, H]; forward and backward panels are padded differently, and this holds either.
inline int64_t lltm_panel_bytes(int64_t hidden, int64_t acc_bytes) {
  const int64_t unit = 2 * 64 / acc_bytes;
  return (hidden + unit - 1) / unit * unit * hidden * 3 * acc_bytes;
}

TREADLE_CPU_FUNCTION(lltm_pack_forward,
                     (Dtype dtype, const MatrixView& weight, int64_t hidden, void* panels),
                     (dtype, weight, hidden, panels))
TREADLE_CPU_FUNCTION(lltm_pack_backward,
                     (Dtype dtype, const MatrixView& weight, int64_t hidden, void* panels),
                     (dtype, weight, hidden, panels))
TREADLE_CPU_FUNCTION(lltm_layer_forward,
                     (const RecurrenceForward& args, const void* panels, int64_t begin,
                      int64_t end),
                     (args, panels, begin, end))
TREADLE_CPU_FUNCTION(lltm_layer_backward,
                     (const RecurrenceBackward& args, const void* panels, int64_t begin,
                      int64_t end),
                     (args, panels, begin, end))
TREADLE_CPU_FUNCTION(lltm_layer_cells, (const RecurrenceCells& args, int64_t begin, int64_t end),
                     (args, begin, end))

}  // namespace treadle::cpu
