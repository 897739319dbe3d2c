// Arguments of the kernels around the steps, and between the products that follow a backward pass.
// For the host and CUDA, no torch. Shapes as in step_args.h.
#pragma once

#include <cstdint>

#include "kernels/common/dtype.h"

namespace treadle {

// to [T * B, H] contiguous = h before each step of direction `direction`, if every row takes every
// step: h0 [B, H] contiguous, then the output [T * B, H], rows output_row apart, shifted by one
// step. Elements are copied as bytes.
struct PreviousH {
  int element_size, direction;
  int64_t rows, batch, hidden;  // T * B, B, H
  const void *h0, *output;
  int64_t output_row;
  void* to;
};

// to [rows, width] contiguous = from [rows, columns] contiguous, padded with zeros. Elements are
// copied as bytes.
struct PadRows {
  int element_size;
  int64_t rows, columns, width;
  const void* from;
  void* to;
};

// The destination of the sums of `count` columns from `first` on, rotated: column `shift` of these
// is stored first, and the columns before it last. Null data: no destination.
struct BiasTarget {
  void* data = nullptr;
  int64_t first = 0, count = 0, shift = 0;
};

// The sums of grad_gates [rows, columns], contiguous, over the rows.
struct BiasSums {
  Dtype dtype;
  int64_t rows, columns;
  const void* grad_gates;
  BiasTarget targets[2];
};

}  // namespace treadle
