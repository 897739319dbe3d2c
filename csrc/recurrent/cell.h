// The argument `cell` of recurrent_layer.
#pragma once

#include <string_view>

#include "kernels/recurrent/cell_info.h"

namespace treadle {

// The library hides what is not named here; _C asks for plans of any cell.
#pragma GCC visibility push(default)
// Raises for a name that no cell with kernels has.
CellKind find_cell(const char* op, std::string_view name);
#pragma GCC visibility pop

}  // namespace treadle
