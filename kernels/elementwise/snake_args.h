// snake's backward pass as the host describes it: no torch, no CUDA.
#pragma once

#include <cstdint>

#include "kernels/common/dtype.h"

namespace treadle {

// x, grad and grad_x are [N, C, L], alpha and beta and their gradients [C], all dense and of one
// dtype. A gradient that is not wanted is null. `partial` holds, for each chunk of work, the two
// sums of each channel: [chunks, 2, C] of acc_t; null if neither alpha nor beta has a gradient.
struct SnakeBackwardArgs {
  Dtype dtype;
  int64_t n, c, l;
  const void *grad, *x, *alpha, *beta;
  void *grad_x, *grad_alpha, *grad_beta;
  void* partial;
  bool beta_is_alpha;  // then grad_alpha is the sum of both
  double eps;
};

// A channel's gradient by its two sums, grad x sin cos and grad sin^2, with b = beta + eps.
template <class acc>
struct SnakeChannel {
  acc alpha, inverse;  // 1 / b
  bool beta_is_alpha;

  TREADLE_HD acc grad_beta(acc square) const { return -(square * inverse) * inverse; }
  TREADLE_HD acc grad_alpha(acc product, acc square) const {
    const acc own = 2 * (product * inverse);
    return beta_is_alpha ? own + grad_beta(square) : own;
  }
};

// How the CPU divides the work: a chunk is a part of a row for all channels. Sums are added in the
// order of the chunks, so that they do not depend on threads.
struct SnakeCpuChunks {
  static constexpr int64_t kLength = 8192;
  int64_t parts, count;

  explicit SnakeCpuChunks(const SnakeBackwardArgs& args)
      : parts((args.l + kLength - 1) / kLength), count(args.n * parts) {}
};

}  // namespace treadle
