// Between info.cpp and the backend that launches (cuda/launch.cpp, or cuda_missing.cpp).
#pragma once

#include <string>

#include "treadle/info.h"

namespace treadle {

bool recording_launches();  // on this thread
void add_launch(Launch launch);

// While it lives, launches of this thread are recorded as part of this algorithm, with its reason:
// both string literals.
class LaunchScope {
 public:
  LaunchScope(const char* algorithm, const char* reason);
  ~LaunchScope();
  LaunchScope(const LaunchScope&) = delete;
  LaunchScope& operator=(const LaunchScope&) = delete;
};

std::string cuda_version();  // that of the toolkit, "none" in a CPU-only build

}  // namespace treadle
