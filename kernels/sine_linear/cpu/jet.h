// Jets through the sine layer on the CPU, as csrc/sine_linear/cpu.cpp calls them: raw memory, no
// torch. A call computes elements begin .. end of [rows, columns], all parts of each.
// Formula: kernels/math/sine_jet.h. Twins: kernels/sine_linear/jet_forward.cu, jet_backward.cu.
#pragma once

#include "kernels/common/cpu/isa.h"
#include "kernels/sine_linear/jet_args.h"

namespace treadle::cpu {

TREADLE_CPU_FUNCTION(sine_jet_forward, (const SineJetForward& args, int64_t begin, int64_t end),
                     (args, begin, end))
TREADLE_CPU_FUNCTION(sine_jet_backward, (const SineJetBackward& args, int64_t begin, int64_t end),
                     (args, begin, end))

}  // namespace treadle::cpu
