// Memory of a GPU has addresses that the host must not touch.
#pragma once

namespace treadle {

// Whether the host may read the byte. It is asked only where CUDA's driver is loaded: where not,
// every address is the caller's to answer for.
bool readable(const char* address);

}  // namespace treadle
