// The host's description of a snake op, without torch or CUDA.
#pragma once

#include <cstdint>

#include "kernels/common/dtype.h"

namespace treadle {

// Selects one of the formulas of kernels/math/snake.h.
struct SnakeForm {
  double eps;     // added to beta
  bool limit;     // neither beta nor eps was given: x + alpha (x sinc(alpha x))^2
  bool logscale;  // alpha and beta are given as their logarithms
};

// x, grad and grad_x are [N, C, L]; alpha, beta and their gradients are [C]. All are dense and have
// the same dtype. A gradient that is not needed is null. `partial` [chunks, 2, C] of acc_t has two
// sums for each chunk of work and each channel; it is null if neither alpha nor beta needs a
// gradient.
struct SnakeBackwardArgs {
  Dtype dtype;
  int64_t n, c, l;
  const void *grad, *x, *alpha, *beta;
  void *grad_x, *grad_alpha, *grad_beta;
  void* partial;
  bool beta_is_alpha;  // then grad_alpha is the sum of both gradients
  SnakeForm form;
};

// How the CPU divides the work. A chunk is a range of at most kLength of the L elements, in all
// channels of one of the N batch entries. Sums are added in the order of the chunks, so that they
// do not depend on the number of threads.
struct SnakeCpuChunks {
  static constexpr int64_t kLength = 8192;
  int64_t parts, count;

  explicit SnakeCpuChunks(const SnakeBackwardArgs& args)
      : parts((args.l + kLength - 1) / kLength), count(args.n * parts) {}
};

}  // namespace treadle
