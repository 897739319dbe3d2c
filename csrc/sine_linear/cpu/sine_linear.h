// The sine layer's pointwise part on the CPU, as csrc/sine_linear.cpp calls it: raw memory, no
// torch. A call does the elements begin .. end of the result, numbered flat.
// Half types are computed in float. Formula: kernels/math/sine_linear.h. Twin:
// kernels/sine_linear.cu.
#pragma once

#include <cstdint>

#include "cpu/isa.h"
#include "kernels/sine_linear_args.h"

namespace treadle::cpu {

TREADLE_CPU_FUNCTION(sine_linear_forward,
                     (const SineLinearForward& args, int64_t begin, int64_t end),
                     (args, begin, end))
TREADLE_CPU_FUNCTION(sine_linear_slope, (const SineLinearSlope& args, int64_t begin, int64_t end),
                     (args, begin, end))
TREADLE_CPU_FUNCTION(sine_linear_slope_backward,
                     (const SineLinearSlopeBackward& args, int64_t begin, int64_t end),
                     (args, begin, end))

}  // namespace treadle::cpu
