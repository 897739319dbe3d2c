// The sine layer's pointwise kernels on the CPU, for csrc/sine_linear/cpu.cpp and
// kernels/c_api/pointwise.cpp. The functions use raw memory and no torch. A call computes elements
// begin to end of the flat result, half types in float. Formula: kernels/math/sine_linear.h. Twins:
// kernels/sine_linear/forward.cu, backward.cu.
#pragma once

#include <cstdint>

#include "kernels/common/cpu/isa.h"
#include "kernels/sine_linear/args.h"

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
