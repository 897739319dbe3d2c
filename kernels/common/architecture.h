// The number of an NVIDIA GPU's architecture, which determines the kernels that it can run.
#pragma once

namespace treadle {

// Returns 90 for sm_90 (compute capability 9.0). Returns 0 for an AMD GPU, which runs no NVIDIA
// code but may report 9.0, as gfx90a does.
constexpr int architecture_of([[maybe_unused]] int major, [[maybe_unused]] int minor) {
#if defined(__HIP_PLATFORM_AMD__)
  return 0;
#else
  return 10 * major + minor;
#endif
}

}  // namespace treadle
