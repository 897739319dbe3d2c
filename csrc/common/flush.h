// Sets flush-to-zero in every thread that computes ATen's matrix products, and later restores the
// previous mode. When the gates of a recurrent layer saturate, its states and gradients can be so
// small that sums of their products are subnormal, and many processors compute with subnormal
// numbers slowly.
//
// A new thread inherits the mode of the thread that creates it, and OpenMP keeps the threads that
// it creates. A thread that is created while the caller flushes subnormals would therefore keep
// flushing. There are two remedies: to create no thread in that time, or to restore the caller's
// mode first and then, in a parallel region, the mode of every thread in the pool.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "kernels/common/cpu/subnormals.h"

// Sets MKL's thread limit for the calling thread (0: no limit) and returns the previous one. The
// symbol is null without MKL.
extern "C" int MKL_Set_Num_Threads_Local(int count) __attribute__((weak));

namespace treadle {

// Limits the number of threads in this thread's parallel regions, including those of BLAS.
class LimitThreads {
 public:
  explicit LimitThreads(int count) {
    // A thread's first call of these functions asks MKL for the number of threads, so both calls
    // must come before the limit.
    at::internal::lazy_init_num_threads();
    at::get_num_threads();
#ifdef _OPENMP
    before_ = omp_get_max_threads();
    omp_set_num_threads(count);
#endif
    if (MKL_Set_Num_Threads_Local != nullptr) mkl_before_ = MKL_Set_Num_Threads_Local(count);
  }
  ~LimitThreads() {
#ifdef _OPENMP
    omp_set_num_threads(before_);
#endif
    if (MKL_Set_Num_Threads_Local != nullptr) MKL_Set_Num_Threads_Local(mkl_before_);
  }
  LimitThreads(const LimitThreads&) = delete;
  LimitThreads& operator=(const LimitThreads&) = delete;

 private:
  int before_ = 1, mkl_before_ = 0;
};

class FlushInProducts {
 public:
  // Does nothing unless `like` is on the CPU. `multiplications` is the number of multiplications in
  // the largest product.
  FlushInProducts(const at::Tensor& like, int64_t multiplications) {
    if (!like.is_cpu()) return;
    const int threads = multiplications < kShared || at::in_parallel_region() ? 1 : pool_size();
    limit_.emplace(threads);
    pool_.resize(threads > 1 ? threads : 0);
    in_pool([&](int64_t thread) { pool_[thread] = cpu::flush_subnormals(); });
    caller_ = pool_.empty() ? cpu::flush_subnormals() : pool_[0];
  }
  ~FlushInProducts() {
    if (!limit_) return;
    // The caller's mode is restored before the parallel region. That region may create threads to
    // replace those that BLAS ended, and a new thread inherits the caller's mode.
    cpu::set_float_mode(caller_);
    in_pool([&](int64_t thread) { cpu::set_float_mode(pool_[thread]); });
  }
  FlushInProducts(const FlushInProducts&) = delete;
  FlushInProducts& operator=(const FlushInProducts&) = delete;

 private:
  // With fewer multiplications, dividing a product among threads costs more time than it saves.
  static constexpr int64_t kShared = int64_t{1} << 17;

  // OpenMP is the only backend in which thread i runs part i of every parallel loop, and in which
  // BLAS uses the same threads.
  static int pool_size() {
#if AT_PARALLEL_OPENMP
    return at::get_num_threads();
#else
    return 1;
#endif
  }

  // Runs f(i) in thread i of the pool.
  template <class F>
  void in_pool(const F& f) const {
    at::parallel_for(0, static_cast<int64_t>(pool_.size()), 1,
                     [&](int64_t begin, int64_t) { f(begin); });
  }

  std::optional<LimitThreads> limit_;
  std::vector<unsigned> pool_;  // each thread's previous mode
  unsigned caller_ = 0;
};

}  // namespace treadle
