// Applies a functor of kernels/math to vectors of stored elements.
#pragma once

#include <type_traits>

#include "kernels/common/convert.cuh"
#include "kernels/common/vector.cuh"

namespace treadle {

// out[e] = f(in[0][e], ...) for n elements. f accepts either single elements in acc_t, or vectors.
template <class F, class scalar_t, int n, int kInputs>
__device__ __forceinline__ void apply(const F& f, Vector<scalar_t, n>& out,
                                      const Vector<scalar_t, n> (&in)[kInputs]) {
  using acc = acc_t<scalar_t>;
  if constexpr (kInputs == 1 && std::is_invocable_v<F, acc>) {
    acc x[n], results[n];
    widen(in[0], x);
#pragma unroll
    for (int e = 0; e < n; ++e) results[e] = f(x[e]);
    narrow(results, out);
  } else if constexpr (kInputs == 2 && std::is_invocable_v<F, acc, acc>) {
    acc a[n], b[n], results[n];
    widen(in[0], a);
    widen(in[1], b);
#pragma unroll
    for (int e = 0; e < n; ++e) results[e] = f(a[e], b[e]);
    narrow(results, out);
  } else if constexpr (kInputs == 1) {
    f(out, in[0]);
  } else if constexpr (kInputs == 2) {
    f(out, in[0], in[1]);
  } else {
    f(out, in[0], in[1], in[2]);
  }
}

}  // namespace treadle
