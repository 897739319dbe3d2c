// Arguments of algorithm "tiles" (tiles.cuh), for the host and CUDA, no torch. Everything has a
// 16-byte-aligned base and H is a multiple of 64.
#pragma once

#include "kernels/recurrent/step_args.h"

namespace treadle {

struct TilesForward {
  // `products` [S, G_i H] of `dtype`; h [B, H] receives each row's last state, and nothing reads
  // it.
  RecurrenceForward layer;
  const void* weight_hh;  // [G_h H, H] contiguous
  // h before and after a step, [B, H] each, in turns: the first step with rows begins with
  // states[turn]. Rows that it does not have must have their h0 in both.
  void* states[2];
  int turn = 0;
  // Set by the launch, for each step.
  RecurrenceStep step = {}, next = {};
  void* next_h = nullptr;
};

struct TilesBackward {
  // grad_h [B, H] acc contiguous: in, of the last states; out, of the first. grad_gates of `dtype`;
  // grad_output has columns next to each other, and rows that are multiples of 8 elements apart.
  RecurrenceBackward layer;
  const void* weight_hh;  // [H, G_h H] contiguous, in the order of gates: transposed
  int64_t rows;           // S
  // Set by the launch, for each step.
  RecurrenceStep step = {};
};

}  // namespace treadle
