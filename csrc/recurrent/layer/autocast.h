#pragma once

#include "recurrent/layer/layer.h"

namespace treadle {

// The dtype to which autocast casts a layer, if autocast is enabled for the device. `state` is c0
// if the cell has c, otherwise h0.
std::optional<ScalarType> autocast_dtype(CellKind cell, bool packed, const Tensor& state);

}  // namespace treadle
