// Rows of variable length (`lengths`) of a cell whose c cannot be kept in the padding: a formula's.
// Each direction runs on rows that all end at the last step, so the states after that step are the
// last states. The steps before a row repeat its first step, and results of them are not used.
#pragma once

#include <c10/util/FunctionRef.h>

#include "recurrent/lists/layers.h"
#include "recurrent/lists/lengths.h"

namespace treadle {

// `run` runs a layer of one direction, without lengths.
LayersResults run_aligned(const LayerArguments& layer, const RowLengths& lengths,
                          c10::function_ref<LayersResults(const LayerArguments&)> run);

}  // namespace treadle
