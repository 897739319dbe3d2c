// scale on the CPU. Twin: kernels/scale.cu.
#include "kernels/math/scale.h"

#include "cpu/elementwise.h"

namespace treadle::cpu::TREADLE_ISA {

void scale(const Piece& piece, Number factor) {
  visit_number(piece.compute, [&](auto type) {
    using common_t = typename decltype(type)::type;
    using acc = acc_t<common_t>;
    loop<common_t, 1>(piece, Scale<acc>{factor.to<acc>()});
  });
}

}  // namespace treadle::cpu::TREADLE_ISA
