// The CPU functions of all families that choose their instruction set when they are called: what
// the headers below declare by TREADLE_CPU_FUNCTION.
#define TREADLE_DEFINE_CPU_FUNCTIONS

#include "kernels/elementwise/cpu/kernels.h"
#include "kernels/recurrent/cpu/rows.h"
#include "kernels/recurrent/lltm_cell/cpu/cell.h"
#include "kernels/sine_linear/cpu/jet.h"
#include "kernels/sine_linear/cpu/sine_linear.h"
