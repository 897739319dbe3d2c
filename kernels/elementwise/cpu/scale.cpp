// scale on the CPU. Twin: kernels/elementwise/scale.cu.
#include "kernels/math/scale.h"

#include "kernels/elementwise/cpu/loop.h"

namespace treadle::cpu::TREADLE_ISA {

void scale(const Tile2d& tile, ScalarArg factor) {
  visit_number(tile.compute, [&](auto type) {
    using common_t = typename decltype(type)::type;
    using acc = acc_t<common_t>;
    loop<common_t, 1>(tile, Scale<acc>{factor.to<acc>()});
  });
}

}  // namespace treadle::cpu::TREADLE_ISA
