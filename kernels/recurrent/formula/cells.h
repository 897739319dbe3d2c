// The cells that this process has registered as formulas, for treadle.Cell. A formula is the text
// of a program. The program's inputs are values 0, 1, 2 and so on. Each line computes the next
// value. A line consists of an operation and the numbers of its operands, or of `const` and a
// number. The last line is `out` and the numbers of the results. treadle/_formula/ writes programs
// and generates C++ kernels from them; csrc/recurrent/formula/ evaluates them with tensors.
#pragma once

#include <string>

#include "kernels/common/exported.h"
#include "kernels/recurrent/cell_info.h"
#include "kernels/recurrent/cpu/rows.h"

namespace treadle {

// `forward` maps the gates and parts of c to new h and parts of new c. In a cell without c, the old
// h and the new h take the places of c and new c. `backward` maps the same inputs and the gradients
// of the results to the gradients of the gates and of parts of c. The two tangent programs take
// these inputs and then their tangents, in the same order, and return the tangents of the results.
struct FormulaPrograms {
  std::string forward, backward, forward_tangent, backward_tangent;
};

const FormulaPrograms& formula_programs(CellKind cell) TREADLE_EXPORTED(formula_programs);

// Registers a cell; Python calls this through ctypes. Returns null, or a text that says what is
// wrong. A name can be registered only once. The first gates have only the product with h, the next
// ones have both products, and the last ones have only the input product. `c_parts` is 0 for a cell
// without c.
const char* add_formula(const char* name, int gates, int input_gates, int state_gates, int c_parts,
                        int affine, const char* forward, const char* backward,
                        const char* forward_tangent, const char* backward_tangent)
    TREADLE_EXPORTED(add_formula);

// treadle/_formula/compiler.py defines the functions that compile cells. They return results
// through arguments, because a return value would be undefined if Python ended the call with an
// exception.

// Compiles an instance of `kernel` for the cell `name` and the GPU `architecture` (90 for sm_90).
// `expression` is that instance in C++. Then calls give(context, image, bytes, symbol) or, if
// compilation fails, fail(context, reason).
using FormulaGive = void (*)(void* context, const void* image, size_t bytes, const char* symbol);
using FormulaFail = void (*)(void* context, const char* reason);
using FormulaCompiler = void (*)(const char* name, const char* kernel, const char* expression,
                                 int architecture, void* context, FormulaGive give,
                                 FormulaFail fail);

// Compiles the CPU functions of the cell `name` for a dtype, and sets *found to them; they stay
// valid. If there is no C++ compiler, warns the user and leaves *found null.
using FormulaRowsCompiler = void (*)(const char* name, int dtype, const cpu::RowsFunctions** found);

void set_formula_compilers(FormulaCompiler gpu, FormulaRowsCompiler cpu)
    TREADLE_EXPORTED(set_formula_compilers);
FormulaCompiler formula_compiler() TREADLE_EXPORTED(formula_compiler);
const cpu::RowsFunctions* formula_rows(CellKind cell, Dtype dtype) TREADLE_EXPORTED(formula_rows);

}  // namespace treadle
