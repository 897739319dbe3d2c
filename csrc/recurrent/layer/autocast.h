#pragma once

#include "recurrent/layer/layer.h"

namespace treadle {

// The dtype to which autocast casts a layer, if it is on for the device. `state` is h0 of a GRU,
// else c0.
std::optional<ScalarType> autocast_dtype(CellKind cell, bool packed, const Tensor& state);

}  // namespace treadle
