// A barrier for threads that compute the same rows of a batch, each for some of the hidden units.
// Threads wait in every step, so they first spin: this takes less than a microsecond if each thread
// has a core. If there are more threads than cores, a waiting thread would keep another from
// arriving, so it then sleeps.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "kernels/recurrent/cpu/rows.h"

namespace treadle {

class StepBarrier final : public cpu::RowsBarrier {
 public:
  explicit StepBarrier(int64_t parts) : parts_(parts) {}

  void wait(int64_t count) override {
    const int64_t phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(count, std::memory_order_acq_rel) + count == parts_) {
      arrived_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1);
      if (sleepers_.load() > 0) wake();
      return;
    }
    constexpr int kSpins = 512;
    for (int spins = 0; spins < kSpins; ++spins) {
      if (phase_.load(std::memory_order_acquire) != phase) return;
      pause();
    }
    sleep(phase);
  }

  // Ends all waits, because a thread has thrown an exception. The results are then worthless.
  void fail() {
    failed_.store(true);
    wake();
  }

 private:
  const int64_t parts_;
  alignas(64) std::atomic<int64_t> arrived_{0};
  alignas(64) std::atomic<int64_t> phase_{0};
  std::atomic<int64_t> sleepers_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::condition_variable awake_;

  // The last thread to arrive changes phase_ before it reads sleepers_, and a sleeper changes
  // sleepers_ before it reads phase_, so one of them sees the other's change.
  void sleep(int64_t phase) {
    std::unique_lock<std::mutex> lock(mutex_);
    ++sleepers_;
    awake_.wait(lock, [&] { return phase_.load() != phase || failed_.load(); });
    --sleepers_;
  }

  void wake() {
    const std::lock_guard<std::mutex> lock(mutex_);
    awake_.notify_all();
  }

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
};

}  // namespace treadle
