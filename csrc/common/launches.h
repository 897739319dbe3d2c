// Between info.cpp and the backend that launches (cuda/launch.cpp, or cuda_missing.cpp).
#pragma once

#include <string>

#include "treadle/info.h"

namespace treadle {

void add_launch(Launch launch);

// While it lives, launches of this thread are recorded as part of this regime, with its reason:
// both string literals.
class LaunchNote {
 public:
  LaunchNote(const char* regime, const char* reason);
  ~LaunchNote();
  LaunchNote(const LaunchNote&) = delete;
  LaunchNote& operator=(const LaunchNote&) = delete;
};

std::string cuda_version();  // that of the toolkit, "none" in a CPU-only build

}  // namespace treadle
