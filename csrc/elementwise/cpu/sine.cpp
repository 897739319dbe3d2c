// sine on the CPU: out = sin(x); backward: grad * cos(x). Twin: kernels/sine.cu.
#include "cpu/sine.h"

namespace treadle::cpu::TREADLE_ISA {

void sine(const Piece& piece) { wave_loop<Wave::kSine>(piece); }

void sine_backward(const Piece& piece) { slope_loop<Wave::kCosine, false>(piece); }

}  // namespace treadle::cpu::TREADLE_ISA
