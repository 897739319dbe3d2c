// Chooses the instruction set of the CPU kernels.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "kernels/common/cpu/isa.h"

namespace treadle::cpu {
namespace {

Isa best() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return Isa::kAvx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c")) {
    return Isa::kAvx2;
  }
#endif
  return Isa::kPortable;
}

Isa choose() {
  const Isa found = best();
  const char* cap = std::getenv("TREADLE_CPU_CAPABILITY");
  if (cap == nullptr || *cap == '\0') return found;
  const std::string_view wanted = cap;
  if (wanted == "portable") return Isa::kPortable;
  if (wanted == "avx2") return std::min(Isa::kAvx2, found);
  if (wanted != "avx512") {
    std::fprintf(stderr,
                 "treadle: TREADLE_CPU_CAPABILITY must be portable, avx2 or avx512, got %s; it is "
                 "ignored\n",
                 cap);
  }
  return found;
}

}  // namespace

Isa isa() {
  static const Isa chosen = choose();
  return chosen;
}

const char* isa_name() {
  switch (isa()) {
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx2:
      return "avx2";
    default:
      return "portable";
  }
}

}  // namespace treadle::cpu
