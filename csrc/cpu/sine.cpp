// sine on the CPU: out = sin(x); backward: grad * cos(x). Twin: kernels/sine.cu.
#include "cpu/sine.h"

namespace treadle::cpu::TREADLE_ISA {
namespace {

struct SineLoop {
  template <class T>
  void operator()(T* out, int64_t n, const T* x) const {
    for (int64_t i = 0; i < n; i += kBlock) {
      compute<Sin>(out + i, n - i < kBlock ? n - i : kBlock, x + i);
    }
  }
};

struct SineBackwardLoop {
  template <class T>
  void operator()(T* out, int64_t n, const T* grad, const T* x) const {
    T slope[kBlock];
    for (int64_t begin = 0; begin < n; begin += kBlock) {
      const int64_t size = n - begin < kBlock ? n - begin : kBlock;
      compute<Cos>(slope, size, x + begin);
#pragma GCC ivdep
      for (int64_t i = 0; i < size; ++i) out[begin + i] = grad[begin + i] * slope[i];
    }
  }
};

}  // namespace

void sine(const Piece& piece) {
  visit_floating(piece.compute,
                 [&](auto type) { loop<typename decltype(type)::type, 1>(piece, SineLoop{}); });
}

void sine_backward(const Piece& piece) {
  visit_floating(piece.compute, [&](auto type) {
    loop<typename decltype(type)::type, 2>(piece, SineBackwardLoop{});
  });
}

}  // namespace treadle::cpu::TREADLE_ISA
