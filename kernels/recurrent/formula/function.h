// Finds the address of a kernel. The kernel is compiled with the library or, for a cell that a
// formula defines, at run time, when a launcher first needs it.
#pragma once

#include <cuda_runtime_api.h>

#include <initializer_list>
#include <typeinfo>

#include "kernels/recurrent/formula/kind.h"

namespace treadle {

template <class Cell>
inline constexpr bool kFromFormula = false;
template <class acc, int gates, int input_gates, int state_gates, int c_parts, bool half>
inline constexpr bool
    kFromFormula<math::FormulaRecurrence<acc, gates, input_gates, state_gates, c_parts, half>> =
        true;

// A template argument that is a bool or an int. It is not a string, because the hundreds of callers
// would then take 30 s longer to compile.
struct TemplateValue {
  int value;
  bool is_bool;

  constexpr TemplateValue(int value) : value(value), is_bool(false) {}
  constexpr TemplateValue(bool value) : value(value), is_bool(true) {}
};

// Returns, as a cudaKernel_t, the kernel's instance with these template arguments, for the cell of
// this thread's FormulaScope. Throws std::runtime_error if the kernel cannot be compiled or loaded.
const void* formula_kernel(const char* kernel, std::initializer_list<const std::type_info*> types,
                           std::initializer_list<TemplateValue> values);

// While a FormulaScope exists, the launchers of its thread use the kernels of `cell`.
class FormulaScope {
 public:
  explicit FormulaScope(CellKind cell);
  ~FormulaScope();
  FormulaScope(const FormulaScope&) = delete;

 private:
  CellKind before_;
};

namespace formula {

template <class T, class...>
using First = T;

template <class Function, class... Types, class... Values>
Function function(const char* kernel, Values... values) {
  return reinterpret_cast<Function>(
      const_cast<void*>(formula_kernel(kernel, {&typeid(Types)...}, {TemplateValue(values)...})));
}

}  // namespace formula

// A pointer to a kernel that computes all steps of a pass.
template <class Args>
using PersistentKernel = void (*)(Args, int);

#define TREADLE_UNPACK(...) __VA_ARGS__

// Returns kernel<types, values> as a pointer of type `pointer`. The first of the types is the cell.
// The branch that is not taken is not instantiated, so the library contains no kernels of formulas.
#define TREADLE_FUNCTION(pointer, kernel, types, values)                                          \
  [&] {                                                                                           \
    pointer found = nullptr;                                                                      \
    if constexpr (::treadle::kFromFormula<::treadle::formula::First<TREADLE_UNPACK types>>) {     \
      found = ::treadle::formula::function<pointer, TREADLE_UNPACK types>(#kernel,                \
                                                                          TREADLE_UNPACK values); \
    } else {                                                                                      \
      found = &kernel<TREADLE_UNPACK types, TREADLE_UNPACK values>;                               \
    }                                                                                             \
    return found;                                                                                 \
  }()

// The same for a kernel that is compiled with and without resets. `values` contains the name
// `resets`, which stands for the value of the bool `given`.
#define TREADLE_RESETS_FUNCTION(pointer, given, kernel, types, values)                            \
  [&] {                                                                                           \
    const bool given_resets = given;                                                              \
    pointer found = nullptr;                                                                      \
    if constexpr (::treadle::kFromFormula<::treadle::formula::First<TREADLE_UNPACK types>>) {     \
      const bool resets = given_resets;                                                           \
      found = ::treadle::formula::function<pointer, TREADLE_UNPACK types>(#kernel,                \
                                                                          TREADLE_UNPACK values); \
    } else if (given_resets) {                                                                    \
      constexpr bool resets = true;                                                               \
      found = &kernel<TREADLE_UNPACK types, TREADLE_UNPACK values>;                               \
    } else {                                                                                      \
      constexpr bool resets = false;                                                              \
      found = &kernel<TREADLE_UNPACK types, TREADLE_UNPACK values>;                               \
    }                                                                                             \
    return found;                                                                                 \
  }()

}  // namespace treadle
