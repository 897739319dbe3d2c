#pragma once

#include "recurrent/layer/layer.h"

namespace treadle {

// The dtype to which autocast casts a layer, if autocast is on for the device. `state` is h0 for a
// GRU, else c0.
std::optional<ScalarType> autocast_dtype(CellKind cell, bool packed, const Tensor& state);

}  // namespace treadle
