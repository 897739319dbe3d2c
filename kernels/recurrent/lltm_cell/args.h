// Arguments of the LLTM cell's kernels on the CPU and on CUDA. This header needs neither torch nor
// CUDA. Shapes: N independent problems of B rows and H units each.
#pragma once

#include <cstdint>

#include "kernels/common/dtype.h"

namespace treadle {

// An array [N, B, columns] with strides in elements (0 where expanded). If `data` is null, the
// argument is missing. A bias is [N, 1, 3H] with row_stride 0.
struct LltmView {
  const void* data = nullptr;
  int64_t problem_stride = 0, row_stride = 0, column_stride = 0;
};

struct LltmShape {
  Dtype dtype;  // gates, bias, new_h, grad_h, grad_gates
  // old_cell, new_cell and their gradients. This is `dtype` or, for half types, may be float.
  Dtype cell_dtype;
  int64_t problems, rows_per_problem, hidden;
};

struct LltmForward {
  LltmShape shape;
  LltmView gates;          // [N, B, 3H]: columns i, o, z
  LltmView bias;           // [N, 1, 3H] or missing
  LltmView old_cell;       // [N, B, H]
  void *new_h, *new_cell;  // [N, B, H] contiguous
};

struct LltmBackward {
  LltmShape shape;
  LltmView gates, bias, new_cell;  // as in forward
  LltmView grad_h, grad_cell;      // [N, B, H] or missing
  void* grad_gates;                // [N, B, 3H] contiguous
  void* grad_old_cell;             // [N, B, H] contiguous, or null
};

// The whole forward pass for few rows, including the product. cell.gates is not read. `weights`,
// `old_h` and `input` must have a column stride of 1.
struct LltmFewForward {
  LltmForward cell;
  LltmView weights, old_h, input;  // [N, 3H, H+I], [N, B, H], [N, B, I]
  int64_t features;                // I
  void* gates;                     // [N, B, 3H] contiguous: the product, without bias
};

// The gradients that are computed from grad_gates [N, B, 3H], for few rows. grad_gates and the
// results are contiguous; each result may be null.
struct LltmGradients {
  LltmShape shape;
  int64_t features;
  const void* grad_gates;
  LltmView weights, old_h, input;  // as in LltmFewForward
  void *grad_input, *grad_weights, *grad_bias, *grad_old_h;
};

// x [N, B, H+I], contiguous, receives [old_h, input]. Elements are copied as bytes.
struct LltmPack {
  int element_size;
  int64_t problems, rows, hidden, features;
  LltmView old_h, input;
  void* x;
};

// grad_bias [N, 3H] receives the sum of grad_gates [N, B, 3H] over the rows. Both are contiguous.
struct LltmBiasGrad {
  Dtype dtype;
  int64_t problems, rows, columns;
  const void* grad_gates;
  void* grad_bias;
};

}  // namespace treadle
