// Chooses the instruction set of the CPU kernels.
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
  if (cap == nullptr) return found;
  Isa wanted = found;
  if (std::string_view(cap) == "portable") wanted = Isa::kPortable;
  if (std::string_view(cap) == "avx2") wanted = Isa::kAvx2;
  return wanted < found ? wanted : found;
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
