// The CPU kernels as csrc/<op>.cpp calls them: raw memory, no torch.
#pragma once

#include <cstdint>

#include "cpu/isa.h"
#include "kernels/dtype.h"

namespace treadle::cpu {

// A 2-D piece of an elementwise op, as TensorIterator hands it out. Operand 0 is the output;
// operand i of step (x, y) lies at data[i] + x * strides[i] + y * strides[operands + i] bytes.
struct Piece {
  char** data;
  const int64_t* strides;
  int64_t size0, size1;
  const Dtype* dtypes;  // as stored, one per operand
  Dtype compute;        // what the inputs are rounded to before the computation
};

TREADLE_CPU_FUNCTION(scale, (const Piece& piece, Number factor), (piece, factor))

// a + alpha * b; the Scalar form has one input, and `scalar` stands for a or for b.
TREADLE_CPU_FUNCTION(vector_add, (const Piece& piece, Number alpha), (piece, alpha))
TREADLE_CPU_FUNCTION(vector_add_scalar,
                     (const Piece& piece, Number scalar, bool scalar_is_b, Number alpha),
                     (piece, scalar, scalar_is_b, alpha))

TREADLE_CPU_FUNCTION(sine, (const Piece& piece), (piece))
TREADLE_CPU_FUNCTION(sine_backward, (const Piece& piece), (piece))
TREADLE_CPU_FUNCTION(cosine, (const Piece& piece), (piece))
TREADLE_CPU_FUNCTION(cosine_backward, (const Piece& piece), (piece))

}  // namespace treadle::cpu
