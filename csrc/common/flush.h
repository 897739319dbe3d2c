// FlushSubnormals in every thread that shares a product of ATen's: saturated gates leave h and
// gradients so small that sums of their products are subnormal.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <vector>

#include "kernels/common/cpu/subnormals.h"

namespace treadle {

class FlushInProducts {
 public:
  // Does nothing unless `like` is on the CPU. `multiplications`: of the largest product.
  FlushInProducts(const at::Tensor& like, int64_t multiplications) {
    if (!like.is_cpu()) return;
    before_.resize(multiplications < kShared || at::in_parallel_region() ? 1 : pool_size());
    in_each([&](int64_t begin, int64_t end) {
      std::fill(before_.begin() + begin, before_.begin() + end, cpu::flush_subnormals());
    });
  }
  ~FlushInProducts() {
    in_each([&](int64_t begin, int64_t) { cpu::set_float_mode(before_[begin]); });
  }
  FlushInProducts(const FlushInProducts&) = delete;
  FlushInProducts& operator=(const FlushInProducts&) = delete;

 private:
  // BLAS computes smaller products in the caller's thread.
  static constexpr int64_t kShared = int64_t{1} << 17;

  // Only with OpenMP does thread i of every parallel loop take part i, and BLAS the same threads.
  static int pool_size() {
#if AT_PARALLEL_OPENMP
    return at::get_num_threads();
#else
    return 1;
#endif
  }

  template <class F>
  void in_each(const F& f) {
    at::parallel_for(0, static_cast<int64_t>(before_.size()), 1, f);
  }

  std::vector<unsigned> before_;  // the mode of each thread
};

}  // namespace treadle
