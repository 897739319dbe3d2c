// sine on the CPU. Twin: kernels/sine.cu.
#include "cpu/elementwise.h"
#include "kernels/math/sine.h"

namespace treadle::cpu::TREADLE_ISA {

void sine(const Piece& piece) {
  visit_floating(piece.compute, [&](auto type) {
    loop<typename decltype(type)::type, 1>(piece, Sine{});
  });
}

void sine_backward(const Piece& piece) {
  visit_floating(piece.compute, [&](auto type) {
    loop<typename decltype(type)::type, 2>(piece, SineBackward{});
  });
}

}  // namespace treadle::cpu::TREADLE_ISA
