// The launches of a thread, as treadle.launch_info shows them. kernels/common/launch_observer.cu
// records them. A build without CUDA has no launches to record.
#pragma once

#include <string>
#include <vector>

#include "kernels/common/exported.h"
#include "kernels/common/launch.h"

namespace treadle {

struct Launch {
  std::string kernel;  // demangled
  LaunchShape shape;
  int registers;            // per thread
  size_t shared_bytes;      // per block, static and dynamic
  size_t local_bytes;       // per thread; more than 0 means spills or indexed arrays
  int blocks_per_sm;        // resident at once, on the current device
  double occupancy;         // resident warps / maximum number of warps of a multiprocessor
  const char* family = "";  // from the LaunchScope, like the next two
  const char* algorithm = "";
  const char* reason = "";
};

// Both functions return a variable of the calling thread. While recording_launches() is true, the
// thread's launches run and are recorded.
bool& recording_launches();
std::vector<Launch>& recorded_launches();

void add_launch(Launch launch);

// The value of recording_launches(), for libtreadle.so.
bool launches_recorded() TREADLE_EXPORTED(launches_recorded);

// From now on, launches of this thread are recorded with this family of kernels, this algorithm and
// its reason. All three must be string literals.
void set_launch_scope(const char* family, const char* algorithm, const char* reason)
    TREADLE_EXPORTED(set_launch_scope);

class LaunchScope {
 public:
  LaunchScope(const char* family, const char* algorithm, const char* reason) {
    set_launch_scope(family, algorithm, reason);
  }
  ~LaunchScope() { set_launch_scope("", "", ""); }
  LaunchScope(const LaunchScope&) = delete;
  LaunchScope& operator=(const LaunchScope&) = delete;
};

}  // namespace treadle
