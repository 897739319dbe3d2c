// cosine on the CPU: out = cos(x); backward: -grad * sin(x). Twin: kernels/cosine.cu.
#include "cpu/sine.h"

namespace treadle::cpu::TREADLE_ISA {

void cosine(const Piece& piece) { wave_loop<Wave::kCosine>(piece); }

void cosine_backward(const Piece& piece) { slope_loop<Wave::kSine, true>(piece); }

}  // namespace treadle::cpu::TREADLE_ISA
