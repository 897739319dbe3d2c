// The CPU kernels of the elementwise ops. They use raw memory and no torch.
#pragma once

#include "kernels/common/cpu/isa.h"
#include "kernels/elementwise/cpu/tile.h"
#include "kernels/elementwise/snake_args.h"
#include "kernels/elementwise/unary_ops.h"

namespace treadle::cpu {

TREADLE_CPU_FUNCTION(scale, (const Tile2d& tile, ScalarArg factor), (tile, factor))

// a + alpha * b. In the second function a or b is the number `scalar`.
TREADLE_CPU_FUNCTION(vector_add, (const Tile2d& tile, ScalarArg alpha), (tile, alpha))
TREADLE_CPU_FUNCTION(vector_add_scalar,
                     (const Tile2d& tile, ScalarArg scalar, bool scalar_is_b, ScalarArg alpha),
                     (tile, scalar, scalar_is_b, alpha))

// snake. A task of its backward pass is one channel of one chunk (SnakeCpuChunks). snake_backward
// runs the tasks from `begin` to `end`. When all are done, snake_sums adds their sums.
TREADLE_CPU_FUNCTION(snake, (const Tile2d& tile, const SnakeForm& form), (tile, form))
TREADLE_CPU_FUNCTION(snake_backward, (const SnakeBackwardArgs& args, int64_t begin, int64_t end),
                     (args, begin, end))
TREADLE_CPU_FUNCTION(snake_sums, (const SnakeBackwardArgs& args), (args))

// The kernels of each op of one tensor, such as sine and sine_backward.
#define TREADLE_DECLARE_CPU(op, ...)                     \
  TREADLE_CPU_FUNCTION(op, (const Tile2d& tile), (tile)) \
  TREADLE_CPU_FUNCTION(op##_backward, (const Tile2d& tile), (tile))
TREADLE_UNARY_OPS(TREADLE_DECLARE_CPU)
#undef TREADLE_DECLARE_CPU

}  // namespace treadle::cpu
