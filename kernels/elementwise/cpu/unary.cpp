// The ops of unary_ops.h on the CPU. Twin: kernels/elementwise/unary.cu.
#include "kernels/elementwise/cpu/sine.h"
#include "kernels/elementwise/unary_ops.h"

namespace treadle::cpu::TREADLE_ISA {

template <class Op, bool kIntegers>
void loop_forward(const Tile2d& tile) {
  visit_computed<kIntegers>(tile.compute, [&](auto type) {
    using common_t = typename decltype(type)::type;
    loop<common_t, 1>(tile, typename Op::template Forward<common_t>{});
  });
}

template <class Op>
void loop_backward(const Tile2d& tile) {
  visit_floating(tile.compute, [&](auto type) {
    using common_t = typename decltype(type)::type;
    loop<common_t, 2>(tile, typename Op::template Backward<common_t>{});
  });
}

#define TREADLE_DEFINE_UNARY(op, Type, integers)                      \
  void op(const Tile2d& tile) { loop_forward<Type, integers>(tile); } \
  void op##_backward(const Tile2d& tile) { loop_backward<Type>(tile); }
TREADLE_UNARY_OPS(TREADLE_DEFINE_UNARY)

}  // namespace treadle::cpu::TREADLE_ISA
