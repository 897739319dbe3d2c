// A barrier for threads that compute the same rows of a batch, each for some of the hidden units.
// It takes less than a microsecond, so threads may wait after every step.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

namespace treadle::cpu {

class StepBarrier {
 public:
  explicit StepBarrier(int64_t parts) : parts_(parts) {}

  // Waits until `parts` parts have arrived. The caller counts as `count` parts. All callers must
  // run at the same time.
  void wait(int64_t count) {
    const int64_t phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(count, std::memory_order_acq_rel) + count == parts_) {
      arrived_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1, std::memory_order_release);
      return;
    }
    // If there are more threads than cores, the others may need this core.
    constexpr int kSpins = 1024;
    for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; ++spins) {
      if (failed_.load(std::memory_order_relaxed)) return;
      spins < kSpins ? pause() : std::this_thread::yield();
    }
  }

  // Ends all waits, because a thread has thrown an exception. The results are then worthless.
  void fail() { failed_.store(true, std::memory_order_relaxed); }

 private:
  const int64_t parts_;
  alignas(64) std::atomic<int64_t> arrived_{0};
  alignas(64) std::atomic<int64_t> phase_{0};
  std::atomic<bool> failed_{false};

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
};

}  // namespace treadle::cpu
