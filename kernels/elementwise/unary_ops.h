// The elementwise ops of one tensor and no number, TREADLE_UNARY_OPS(row). A row is the op, the
// type of its formula (on CUDA and on the CPU), and whether integers give integers; otherwise they
// give floats. Each op has a kernel and one for its gradient, <op>_backward.
#pragma once

// clang-format off
#define TREADLE_UNARY_OPS(row) \
  row(sine, Sine, false)       \
  row(cosine, Cosine, false)
// clang-format on
