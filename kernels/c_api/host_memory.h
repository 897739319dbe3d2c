// Memory of a GPU has addresses that the host must not touch.
#pragma once

namespace treadle {

// Whether the host may read the byte. Checked only if CUDA's driver is loaded; otherwise the caller
// is responsible for every address.
bool readable(const char* address);

}  // namespace treadle
