// A mode in which a thread treats subnormal numbers as zero, in arguments and in results. Without
// this mode, each subnormal number would cost about 150 cycles, and saturated gates of recurrent
// layers fill whole tensors with such numbers. Subnormal float16 values are normal floats, and
// conversions still read and write them. Only x86 has the mode; elsewhere these functions do
// nothing.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace treadle::cpu {

inline void set_float_mode([[maybe_unused]] unsigned mode) {
#if defined(__x86_64__)
  _mm_setcsr(mode);
#endif
}

// Returns the previous mode.
inline unsigned flush_subnormals() {
#if defined(__x86_64__)
  constexpr unsigned kResults = 0x8000, kArguments = 0x0040;
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | kResults | kArguments);
  return before;
#else
  return 0;
#endif
}

// Flushes subnormals in the current thread during its lifetime.
class FlushSubnormals {
 public:
  FlushSubnormals() : before_(flush_subnormals()) {}
  ~FlushSubnormals() { set_float_mode(before_); }
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
  unsigned before_;
};

}  // namespace treadle::cpu
