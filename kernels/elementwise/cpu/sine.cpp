// sine on the CPU: out = sin(x); backward: grad * cos(x). Twin: kernels/elementwise/sine.cu.
#include "kernels/elementwise/cpu/sine.h"

namespace treadle::cpu::TREADLE_ISA {

void sine(const Tile2d& tile) { wave_loop<Wave::kSine>(tile); }

void sine_backward(const Tile2d& tile) { slope_loop<Wave::kCosine, false>(tile); }

}  // namespace treadle::cpu::TREADLE_ISA
