// Runs rows of variable length (`lengths`) for cells that must not run over the padding: rnn_relu,
// whose h may grow there until derivatives are NaN, and formulas, whose derivatives may be infinite
// at zero. Each direction runs on rows that all end at the last step, so the states after that step
// are the last states. A shorter row begins later: the steps before its beginning repeat its first
// step, and their results are not used.
#pragma once

#include <c10/util/FunctionRef.h>

#include "recurrent/lists/layers.h"
#include "recurrent/lists/lengths.h"

namespace treadle {

// `run` runs a layer of one direction, without lengths.
LayersResults run_aligned(const LayerArguments& layer, const RowLengths& lengths,
                          c10::function_ref<LayersResults(const LayerArguments&)> run);

}  // namespace treadle
