// Instruction sets. Every source in a folder cpu/ is compiled once for each, in a namespace of its
// name; isa() chooses one when the process first asks. TREADLE_CPU_CAPABILITY=portable|avx2|avx512
// caps the choice, as ATEN_CPU_CAPABILITY does for torch.
#pragma once

#include "kernels/common/exported.h"

namespace treadle::cpu {

enum class Isa { kPortable, kAvx2, kAvx512 };

Isa isa();
const char* isa_name();

}  // namespace treadle::cpu

// Declares a function for all instruction sets, and one of the same name that calls the best.
// kernels/cpu_functions.cpp defines the latter.
#if defined(__x86_64__)
#define TREADLE_CPU_FUNCTION(name, parameters, arguments) \
  namespace portable {                                    \
  void name parameters;                                   \
  }                                                       \
  namespace avx2 {                                        \
  void name parameters;                                   \
  }                                                       \
  namespace avx512 {                                      \
  void name parameters;                                   \
  }                                                       \
  void name parameters TREADLE_EXPORTED(cpu_##name);      \
  TREADLE_CPU_DEFINITION(name, parameters, arguments)
#else
#define TREADLE_CPU_FUNCTION(name, parameters, arguments) \
  namespace portable {                                    \
  void name parameters;                                   \
  }                                                       \
  void name parameters TREADLE_EXPORTED(cpu_##name);      \
  TREADLE_CPU_DEFINITION(name, parameters, arguments)
#endif

#if !defined(TREADLE_DEFINE_CPU_FUNCTIONS)
#define TREADLE_CPU_DEFINITION(name, parameters, arguments)
#elif defined(__x86_64__)
#define TREADLE_CPU_DEFINITION(name, parameters, arguments) \
  void name parameters {                                    \
    switch (isa()) {                                        \
      case Isa::kAvx512:                                    \
        return avx512::name arguments;                      \
      case Isa::kAvx2:                                      \
        return avx2::name arguments;                        \
      default:                                              \
        return portable::name arguments;                    \
    }                                                       \
  }
#else
#define TREADLE_CPU_DEFINITION(name, parameters, arguments) \
  void name parameters { return portable::name arguments; }
#endif
