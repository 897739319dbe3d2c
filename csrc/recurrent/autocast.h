#pragma once

#include "recurrent/layer.h"

namespace treadle {

// What autocast casts a layer to, if it is on for its device. `state` is h0 of a GRU, else c0.
std::optional<ScalarType> autocast_dtype(CellKind cell, bool packed, const Tensor& state);

}  // namespace treadle
