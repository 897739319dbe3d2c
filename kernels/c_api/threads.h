// Runs a loop on several threads, for callers without their own thread pool.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "treadle/kernels.h"

namespace treadle {

// Calls f(begin, end) for parts of [0, count), of at least `grain` each, on at most as many threads
// as the device allows. If f throws in any thread, the exception is rethrown here after all threads
// have ended.
template <class F>
void in_parallel(const treadle_device& device, int64_t count, int64_t grain, const F& f) {
  const int64_t cores = std::max(1U, std::thread::hardware_concurrency());
  const int64_t allowed = device.threads > 0 ? device.threads : cores;
  const int64_t parts = std::clamp<int64_t>(count / std::max<int64_t>(grain, 1), 1, allowed);
  const auto first = [&](int64_t part) {
    return count / parts * part + std::min(count % parts, part);
  };
  std::mutex mutex;
  std::exception_ptr failure;
  const auto run = [&](int64_t begin, int64_t end) noexcept {
    try {
      f(begin, end);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex);
      failure = std::current_exception();
    }
  };
  std::vector<std::thread> others;
  others.reserve(static_cast<size_t>(parts));
  int64_t started = 1;
  try {
    for (; started < parts; ++started) {
      others.emplace_back(
          [&run, begin = first(started), end = first(started + 1)] { run(begin, end); });
    }
  } catch (...) {  // no more threads can start, so this one computes the rest
  }
  run(first(0), first(1));
  if (started < parts) run(first(started), count);
  for (std::thread& other : others) other.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace treadle
