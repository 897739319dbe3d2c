// cosine on the CPU: out = cos(x); backward: -grad * sin(x). Twin: kernels/elementwise/cosine.cu.
#include "kernels/elementwise/cpu/sine.h"

namespace treadle::cpu::TREADLE_ISA {

void cosine(const Tile2d& tile) { wave_loop<Wave::kCosine>(tile); }

void cosine_backward(const Tile2d& tile) { slope_loop<Wave::kSine, true>(tile); }

}  // namespace treadle::cpu::TREADLE_ISA
