// TREADLE_UNARY_OPS(row) lists the elementwise ops that have one tensor and no number. A row
// consists of the op, the type of its formula (on CUDA and on the CPU), and whether integer inputs
// give integer results (if not, they give floats). Each op also has a kernel for its gradient,
// <op>_backward.
#pragma once

// clang-format off
#define TREADLE_UNARY_OPS(row) \
  row(sine, Sine, false)       \
  row(cosine, Cosine, false)
// clang-format on
