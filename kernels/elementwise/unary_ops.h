// The elementwise ops of one tensor and no number, TREADLE_UNARY_OPS(declare): each has a kernel
// and one for its gradient, on CUDA (launchers.h) and on the CPU (cpu/kernels.h).
#pragma once

// clang-format off
#define TREADLE_UNARY_OPS(declare) \
  declare(sine)                    \
  declare(cosine)
// clang-format on
