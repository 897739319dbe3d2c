// The cell that a source of this folder is compiled for. The build compiles each source once for
// each header of kernels/math/cells (tools/native/graph.py), so a new cell adds no .cu file.
#pragma once

#ifndef TREADLE_CELL
#error "TREADLE_CELL must name a cell (Lstm) and TREADLE_CELL_HEADER its header"
#endif

#include TREADLE_CELL_HEADER

namespace treadle {

using Cell = math::TREADLE_CELL;

}  // namespace treadle
