// Checks that an address is not in GPU memory, which the host must not access.
#pragma once

namespace treadle {

// Whether the host may read the byte. This is checked only if CUDA's driver is loaded; otherwise
// the caller is responsible for every address.
bool readable(const char* address);

}  // namespace treadle
