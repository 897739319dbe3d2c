// Jets through the sine layer on the CPU, for csrc/sine_linear/cpu.cpp. The functions use raw
// memory and no torch. A call computes all parts of elements begin to end of [rows, columns].
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
