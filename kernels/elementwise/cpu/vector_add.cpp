// vector_add on the CPU. Twin: kernels/elementwise/vector_add.cu.
#include "kernels/math/vector_add.h"

#include "kernels/elementwise/cpu/loop.h"

namespace treadle::cpu::TREADLE_ISA {

// Rounds a number to the dtype of the result, as torch does on the CPU, but not on CUDA.
template <class common_t>
static acc_t<common_t> rounded(ScalarArg number) {
  using acc = acc_t<common_t>;
  return from_stored<common_t, acc>(to_stored<common_t, acc>(number.to<acc>()));
}

void vector_add(const Tile2d& tile, ScalarArg alpha) {
  visit_number(tile.compute, [&](auto type) {
    using common_t = typename decltype(type)::type;
    using acc = acc_t<common_t>;
    loop<common_t, 2>(tile, VectorAdd<acc>{rounded<common_t>(alpha)});
  });
}

void vector_add_scalar(const Tile2d& tile, ScalarArg scalar, bool scalar_is_b, ScalarArg alpha) {
  visit_number(tile.compute, [&](auto type) {
    using common_t = typename decltype(type)::type;
    using acc = acc_t<common_t>;
    const VectorAddScalar<acc> f{rounded<common_t>(alpha), rounded<common_t>(scalar), scalar_is_b};
    loop<common_t, 1>(tile, f);
  });
}

}  // namespace treadle::cpu::TREADLE_ISA
