// What a launch looked like, for treadle.launch_info: recorded by the function that launches.
#pragma once

#include <cstddef>

namespace treadle {

struct LaunchShape {
  unsigned grid_x, grid_y, grid_z;
  unsigned block;
  size_t shared_bytes;
  int vector_width;         // elements a memory access
  int elements_per_thread;  // at most
};

bool recording_launches();  // on this thread
void record_launch(const void* kernel, const LaunchShape& shape);

}  // namespace treadle
