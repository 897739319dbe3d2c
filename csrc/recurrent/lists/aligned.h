// Runs rows of variable length (`lengths`) for cells whose c cannot be carried through the padding,
// which are the cells of formulas. Each direction runs on rows that all end at the last step, so
// the states after that step are the last states. Before its own steps, a row repeats its first
// step, and the results of these repetitions are not used.
#pragma once

#include <c10/util/FunctionRef.h>

#include "recurrent/lists/layers.h"
#include "recurrent/lists/lengths.h"

namespace treadle {

// `run` runs a layer of one direction, without lengths.
LayersResults run_aligned(const LayerArguments& layer, const RowLengths& lengths,
                          c10::function_ref<LayersResults(const LayerArguments&)> run);

}  // namespace treadle
