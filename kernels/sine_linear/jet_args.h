// Arguments of the kernels of jets through a sine layer, on the CPU and on CUDA, without torch or
// CUDA. A jet [P, N, C] consists of P parts of N points with C columns. The parts are the value,
// its first derivatives with respect to the d coordinates, and either no second derivatives, or
// their sum (the Laplacian), or the d second derivatives on the Hessian's diagonal. The layer has O
// columns and I inputs. Formula: kernels/math/sine_jet.h.
#pragma once

#include <cstdint>

#include "kernels/common/dtype.h"
#include "kernels/sine_linear/args.h"

namespace treadle {

enum class JetSecond : int8_t { kNone, kLaplacian, kDiagonal };

struct JetParts {
  int64_t coordinates;
  JetSecond second;

  TREADLE_HD int64_t seconds() const {
    return second == JetSecond::kNone ? 0 : second == JetSecond::kLaplacian ? 1 : coordinates;
  }
  TREADLE_HD int64_t total() const { return 1 + coordinates + seconds(); }
};

// A chunk of the points: n rows of [P, N, O]. Parts are part_stride elements apart.
struct SineJetForward {
  Dtype dtype;  // of output, bias, input and weight
  JetParts parts;
  int64_t rows, columns;  // n, O
  double omega;
  const void* value;  // [n, O] in acc_t, without bias; null: all parts are computed from input
  // The products of the other parts, in acc_t on the CPU and in `dtype` on CUDA. They may be stored
  // in output.
  const void* rest;
  int64_t rest_stride;  // elements between the parts of `rest`
  // input [P, n, I] and weight [O, I], on CUDA; I <= kMaxCoordinates except in the fused kernel.
  const void* input;
  int64_t input_part_stride, row_stride, column_stride, inputs;
  const void* weight;
  const void* bias;  // [O] or null
  void* output;      // [P, n, O]
  int64_t part_stride;
  void* phase;  // [n, O] or null
};

// The gradient of z [P, N, O] = input weight^T + bias, from the gradient of output.
struct SineJetBackward {
  Dtype dtype;
  JetParts parts;
  int64_t rows, columns;
  double omega;
  const void *grad, *output, *phase;  // [P, N, O], [P, N, O], [N, O]
  // [P, N, O]. On entry, its last parts contain the second derivatives of z, which are then
  // overwritten.
  void* grad_z;
  void* grad_bias;  // [O], the sums of grad_z's first part, or null; only on CUDA
  void* sums;       // the parts of column_sums.cuh; only on CUDA
};

}  // namespace treadle
