// Arguments of the kernels of gradients.cu. This header is for the host and for CUDA, and needs no
// torch. step_args.h explains the shapes.
#pragma once

#include <cstdint>

#include "kernels/common/dtype.h"

namespace treadle {

// `to` [T * B, H] receives h before each step of one direction of a dense batch: h0 [B, H], then
// the output [T * B, H] shifted by one step, or zeros if the row resets before the step. `to` and
// h0 are contiguous; the output's rows are output_row elements apart. Elements are copied as bytes.
struct PreviousH {
  int element_size, direction;
  int64_t rows, batch, hidden;  // T * B, B, H
  const void *h0, *output;
  int64_t output_row;
  const bool* marks;  // [T * B] (RecurrenceResets); null: no resets
  void* to;
};

// `to` [rows, width] receives `from` [rows, columns], padded with zeros. Both are contiguous.
// Elements are copied as bytes.
struct PadRows {
  int element_size;
  int64_t rows, columns, width;
  const void* from;
  void* to;
};

// Where the sums of `count` columns, from column `first` on, are stored. Sums are rotated by
// `shift`: the sum of column `first` + `shift` is stored first, and the sums of the `shift` columns
// before it are stored at the end. If `data` is null, no sums are stored.
struct BiasTarget {
  void* data = nullptr;
  int64_t first = 0, count = 0, shift = 0;
};

// Sums over the rows of grad_gates [rows, columns], which is contiguous.
struct BiasSums {
  Dtype dtype;
  int64_t rows, columns;
  const void* grad_gates;
  BiasTarget targets[2];
};

}  // namespace treadle
