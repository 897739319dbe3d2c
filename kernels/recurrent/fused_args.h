// Arguments of the algorithms that compute a whole step, products and cell, in one launch: "tiles"
// (tiles/tiles.cuh) and "warp" (warp/forward.cuh). This header is for the host and for CUDA, and
// needs no torch.
#pragma once

#include "kernels/recurrent/step_args.h"

namespace treadle {

struct FusedForward {
  // All steps. `products` is unused; h [B, H] receives each row's last state and is not read.
  RecurrenceForward layer;
  const void *weight_ih, *weight_hh;  // [G_i H, I], [G_h H, H] contiguous
  const void* input;                  // [S, I], rows input_row apart
  int64_t input_row, input_size, rows;
  // Two arrays [B, H], which alternately have h before and h after a step. The first step with rows
  // reads states[0]. Rows without that step must have their h0 in both arrays.
  void* states[2];
  // each_fused_step sets these for each step.
  RecurrenceStep step = {}, next = {};
  const void* now_h = nullptr;
  void* next_h = nullptr;
  bool follows = false;  // true after the first step: the kernels that write the input have ended
};

// Calls run(args of one step) for each step that has rows.
template <class Error, class F>
Error each_fused_step(FusedForward args, Error success, const F& run) {
  int now = 0;
  for (int64_t s = 0; s < args.layer.step_count; ++s) {
    args.step = args.layer.steps[s];
    args.next = args.layer.steps[s + 1];
    if (args.step.rows == 0) continue;
    args.now_h = args.states[now];
    args.next_h = args.states[now ^ 1];
    const Error error = run(args);
    if (error != success) return error;
    args.follows = true;
    args.layer.first_c = nullptr;
    now ^= 1;
  }
  return success;
}

}  // namespace treadle
