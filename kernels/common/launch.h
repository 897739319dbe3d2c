// A description of a launch, and an optional observer of launches. launch_observer.cu sets the
// observer for treadle.launch_info.
#pragma once

#include <cstddef>

namespace treadle {

struct LaunchShape {
  unsigned grid_x, grid_y, grid_z;
  unsigned block;
  size_t shared_bytes;
  int vector_width;         // elements per memory access
  int elements_per_thread;  // at most
};

// If not null, this is called before every launch, on the thread that launches.
inline void (*observe_launch)(const void* kernel, const LaunchShape& shape) = nullptr;

}  // namespace treadle
