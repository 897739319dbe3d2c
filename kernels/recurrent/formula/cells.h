// The cells that the process has registered by their formulas, for treadle.Cell. A formula is a
// program: a line for each value, `op` and the numbers of its operands, or `const` and a number,
// after the inputs, which are values 0, 1, ...; the last line is `out` and the numbers of the
// results. treadle/_formula/ writes programs, csrc/recurrent/formula/ evaluates them with tensors,
// and the kernels of a formula are C++ that treadle/_formula/ has generated from the same program.
#pragma once

#include <string>

#include "kernels/common/exported.h"
#include "kernels/recurrent/cell_info.h"
#include "kernels/recurrent/cpu/rows.h"

namespace treadle {

// The gates, c:                                     -> new h, new c (of a cell without c: h twice)
// The gates, c, gradients of new h and new c:       -> gradients of the gates and of c
// And the tangents of both: inputs, then their tangents, in the same order -> tangents of results.
struct FormulaPrograms {
  std::string forward, backward, forward_tangent, backward_tangent;
};

const FormulaPrograms& formula_programs(CellKind cell) TREADLE_EXPORTED(formula_programs);

// For ctypes. Returns null, or what is wrong. A name can be registered only once. The gates are, in
// this order, those with only a product of h, those with both, and those with only a product of
// the input.
const char* add_formula(const char* name, int gates, int input_gates, int state_gates, int has_c,
                        int affine, const char* forward, const char* backward,
                        const char* forward_tangent, const char* backward_tangent)
    TREADLE_EXPORTED(add_formula);

// Compiles `kernel`, whose instance is the C++ expression `expression`, of the cell `name` for the
// GPU `architecture` (90 for sm_90). Calls give(context, image, bytes, symbol) and returns null, or
// returns what went wrong, valid until the next call.
using FormulaGive = void (*)(void* context, const void* image, size_t bytes, const char* symbol);
using FormulaCompiler = const char* (*)(const char* name, const char* kernel,
                                        const char* expression, int architecture, void* context,
                                        FormulaGive give);

// Compiles the functions of the cell `name` for the CPU and a dtype. Returns null, with a warning
// to the user, where there is no C++ compiler. The functions stay valid.
using FormulaRowsCompiler = const cpu::RowsFunctions* (*)(const char* name, int dtype);

void set_formula_compilers(FormulaCompiler gpu, FormulaRowsCompiler cpu)
    TREADLE_EXPORTED(set_formula_compilers);
FormulaCompiler formula_compiler() TREADLE_EXPORTED(formula_compiler);
const cpu::RowsFunctions* formula_rows(CellKind cell, Dtype dtype) TREADLE_EXPORTED(formula_rows);

}  // namespace treadle
