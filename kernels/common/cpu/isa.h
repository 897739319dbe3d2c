// Instruction sets. Every source in a folder cpu/ is compiled once for each set, in a namespace of
// the same name. The first call of isa() chooses one set for the process.
// TREADLE_CPU_CAPABILITY=portable|avx2|avx512 caps the choice, like ATEN_CPU_CAPABILITY for torch.
#pragma once

#include "kernels/common/exported.h"

namespace treadle::cpu {

enum class Isa { kPortable, kAvx2, kAvx512 };

Isa isa();
const char* isa_name();

}  // namespace treadle::cpu

// Expands to call(isa, namespace, ...) for each instruction set except the portable one.
#if defined(__x86_64__)
#define TREADLE_VECTOR_ISAS(call, ...) \
  call(kAvx512, avx512, __VA_ARGS__) call(kAvx2, avx2, __VA_ARGS__)
#else
#define TREADLE_VECTOR_ISAS(call, ...)
#endif

// Declares a function for each instruction set, and one of the same name that calls the function
// for isa(). kernels/cpu_functions.cpp defines the latter.
#define TREADLE_CPU_FUNCTION(name, parameters, arguments)        \
  TREADLE_ISA_DECLARATION(kPortable, portable, name, parameters) \
  TREADLE_VECTOR_ISAS(TREADLE_ISA_DECLARATION, name, parameters) \
  void name parameters TREADLE_EXPORTED(cpu_##name);             \
  TREADLE_CPU_DEFINITION(name, parameters, arguments)

#define TREADLE_ISA_DECLARATION(isa, space, name, parameters) \
  namespace space {                                           \
  void name parameters;                                       \
  }

#define TREADLE_ISA_CASE(isa, space, name, arguments) \
  case Isa::isa:                                      \
    return space::name arguments;

#if defined(TREADLE_DEFINE_CPU_FUNCTIONS)
#define TREADLE_CPU_DEFINITION(name, parameters, arguments)  \
  void name parameters {                                     \
    switch (isa()) {                                         \
      TREADLE_VECTOR_ISAS(TREADLE_ISA_CASE, name, arguments) \
      default:                                               \
        return portable::name arguments;                     \
    }                                                        \
  }
#else
#define TREADLE_CPU_DEFINITION(name, parameters, arguments)
#endif
