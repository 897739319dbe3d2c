// What was launched and what the library was compiled with. No torch, no CUDA header needed.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

// The library hides what is not named here.
#pragma GCC visibility push(default)
namespace treadle {

struct Launch {
  std::string kernel;  // demangled
  unsigned grid[3];
  unsigned block[3];
  int vector_width;         // elements a memory access
  int elements_per_thread;  // at most
  int registers;            // a thread
  size_t shared_bytes;      // a block, static and dynamic
  size_t local_bytes;       // a thread; more than 0 means spills or indexed arrays
  int blocks_per_sm;        // resident at once, on the current device
  double occupancy;         // resident warps over the most a multiprocessor holds
  std::string algorithm;    // of lltm: how it is run, and why so; empty elsewhere
  std::string reason;
};

// While on, every launch of this library by this thread is recorded (and still made).
void record_launches(bool on);

// The launches recorded by this thread since the last call.
std::vector<Launch> take_launches();

// One line of JSON: torch, cuda, compiler, isa (the one chosen for this process).
std::string compiled_with();

}  // namespace treadle
#pragma GCC visibility pop
