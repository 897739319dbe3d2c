// Tells whether all phases alpha x of a vector are in the domain of near_snake. snake's CUDA
// kernels share this code.
#pragma once

#include "kernels/common/convert.cuh"
#include "kernels/elementwise/snake_channel.h"

namespace treadle {

// Whether a phase may be beyond kSnakeNear; NaN may give either answer.
template <class scalar_t, int n>
__device__ __forceinline__ bool any_far(const Vector<scalar_t, n>& in, acc_t<scalar_t> alpha) {
  acc_t<scalar_t> x[n], largest = 0;
  widen(in, x);
#pragma unroll
  for (int i = 0; i < n; ++i) largest = fmax(largest, fabs(x[i]));
  return largest * fabs(alpha) > math::kSnakeNear<scalar_t>;
}

}  // namespace treadle
