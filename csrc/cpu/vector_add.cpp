// vector_add on the CPU. Twin: kernels/vector_add.cu.
#include "cpu/elementwise.h"
#include "kernels/math/vector_add.h"

namespace treadle::cpu::TREADLE_ISA {

// torch's CPU code rounds alpha to the dtype of the result before it multiplies (CUDA does not).
template <class common_t>
static acc_t<common_t> rounded_alpha(Number alpha) {
  using acc = acc_t<common_t>;
  return from_stored<common_t, acc>(to_stored<common_t, acc>(alpha.to<acc>()));
}

void vector_add(const Piece& piece, Number alpha) {
  visit_number(piece.compute, [&](auto type) {
    using common_t = typename decltype(type)::type;
    using acc = acc_t<common_t>;
    loop<common_t, 2>(piece, VectorAdd<acc>{rounded_alpha<common_t>(alpha)});
  });
}

void vector_add_scalar(const Piece& piece, Number scalar, bool scalar_is_b, Number alpha) {
  visit_number(piece.compute, [&](auto type) {
    using common_t = typename decltype(type)::type;
    using acc = acc_t<common_t>;
    loop<common_t, 1>(piece,
                      VectorAddScalar<acc>{rounded_alpha<common_t>(alpha), scalar.to<acc>(), scalar_is_b});
  });
}

}  // namespace treadle::cpu::TREADLE_ISA
