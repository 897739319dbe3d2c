// The argument of an elementwise CPU kernel. Kernels include this file instead of the list of all
// kernels (kernels.h), so that adding an op does not recompile the others.
#pragma once

#include <cstdint>

#include "kernels/common/dtype.h"

namespace treadle::cpu {

// Two dimensions of an elementwise op, in the form of TensorIterator's loops. Operand 0 is the
// output. Element (x, y) of operand i is at data[i] + x * strides[i] + y * strides[operands + i],
// in bytes.
struct Tile2d {
  char** data;
  const int64_t* strides;
  int64_t size0, size1;
  const Dtype* dtypes;  // as stored, one per operand
  Dtype compute;        // inputs are rounded to it first
};

}  // namespace treadle::cpu
