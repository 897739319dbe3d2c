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

// The gates, parts of c:                            -> new h, parts of new c (or, without c, h)
// The gates, parts of c, gradients of the results:  -> gradients of the gates and of parts of c
// And the tangents of both: inputs, then their tangents, in the same order -> tangents of results.
struct FormulaPrograms {
  std::string forward, backward, forward_tangent, backward_tangent;
};

const FormulaPrograms& formula_programs(CellKind cell) TREADLE_EXPORTED(formula_programs);

// For ctypes. Returns null, or what is wrong. A name can be registered only once. The gates are, in
// this order, those with only a product of h, those with both, and those with only a product of
// the input. c_parts: 0 of a cell without c.
const char* add_formula(const char* name, int gates, int input_gates, int state_gates, int c_parts,
                        int affine, const char* forward, const char* backward,
                        const char* forward_tangent, const char* backward_tangent)
    TREADLE_EXPORTED(add_formula);

// What compiles cells: treadle/_formula/compiler.py. Results come through arguments, so that
// nothing is undefined if Python ends a call by an exception.

// Compiles `kernel`, whose instance is the C++ expression `expression`, of the cell `name` for the
// GPU `architecture` (90 for sm_90), and calls give(context, image, bytes, symbol), or
// fail(context, reason).
using FormulaGive = void (*)(void* context, const void* image, size_t bytes, const char* symbol);
using FormulaFail = void (*)(void* context, const char* reason);
using FormulaCompiler = void (*)(const char* name, const char* kernel, const char* expression,
                                 int architecture, void* context, FormulaGive give,
                                 FormulaFail fail);

// Compiles the functions of the cell `name` for the CPU and a dtype, which stay valid. Leaves
// `found` null, with a warning to the user, if there is no C++ compiler.
using FormulaRowsCompiler = void (*)(const char* name, int dtype, const cpu::RowsFunctions** found);

void set_formula_compilers(FormulaCompiler gpu, FormulaRowsCompiler cpu)
    TREADLE_EXPORTED(set_formula_compilers);
FormulaCompiler formula_compiler() TREADLE_EXPORTED(formula_compiler);
const cpu::RowsFunctions* formula_rows(CellKind cell, Dtype dtype) TREADLE_EXPORTED(formula_rows);

}  // namespace treadle
