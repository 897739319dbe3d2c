// The argument of an elementwise CPU kernel. Kernels include this file and not the list of all
// kernels (kernels.h), so that a new op does not recompile the others.
#pragma once

#include <cstdint>

#include "kernels/common/dtype.h"

namespace treadle::cpu {

// Two dimensions of an elementwise op, as TensorIterator hands them out. Operand 0 is the output;
// element (x, y) of operand i is at data[i] + x * strides[i] + y * strides[operands + i] bytes.
struct Tile2d {
  char** data;
  const int64_t* strides;
  int64_t size0, size1;
  const Dtype* dtypes;  // as stored, one per operand
  Dtype compute;        // inputs are rounded to it first
};

}  // namespace treadle::cpu
