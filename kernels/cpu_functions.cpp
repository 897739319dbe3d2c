// Defines the CPU functions that the headers below declare with TREADLE_CPU_FUNCTION. Each calls
// its version for the instruction set of isa().
#define TREADLE_DEFINE_CPU_FUNCTIONS

#include "kernels/elementwise/cpu/kernels.h"
#include "kernels/recurrent/cpu/rows.h"
#include "kernels/recurrent/lltm_cell/cpu/cell.h"
#include "kernels/sine_linear/cpu/jet.h"
#include "kernels/sine_linear/cpu/sine_linear.h"
