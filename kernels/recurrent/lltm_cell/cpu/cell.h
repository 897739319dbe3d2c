// The LLTM cell's pointwise part on the CPU, for csrc/recurrent/lltm_cell/cell.cpp. The functions
// use raw memory and no torch. There are N independent cells of B rows and H units each. Units are
// numbered over [N, B, H], and a call computes units begin to end, so that a parallel loop can
// divide them anywhere. Half types are computed in float. Formula: kernels/math/cells/lltm.h. Twin:
// kernels/recurrent/lltm_cell/cell.cu.
#pragma once

#include <cstdint>

#include "kernels/common/cpu/isa.h"
#include "kernels/recurrent/lltm_cell/args.h"

namespace treadle::cpu {

TREADLE_CPU_FUNCTION(lltm_cell_forward, (const LltmForward& args, int64_t begin, int64_t end),
                     (args, begin, end))
TREADLE_CPU_FUNCTION(lltm_cell_backward, (const LltmBackward& args, int64_t begin, int64_t end),
                     (args, begin, end))

}  // namespace treadle::cpu
