// Arguments of the persistent kernels: a recurrent layer in one launch, all steps and directions.
// For the host and CUDA, no torch. Shapes as in step_args.h, D directions; direction 1 runs
// backward in time. Strides count elements. What is read in 16-byte chunks has a 16-byte-aligned
// base and strides that are multiples of 8 elements (floats: of 4): the caller pads a width H that
// is none, and the padding is never read.
#pragma once

#include <cstdint>

#include "kernels/common/dtype.h"
#include "kernels/recurrent/cell_info.h"

namespace treadle {

struct PersistentSizes {
  CellKind cell;
  Dtype dtype;  // Half or BFloat16; cluster: Float, too
  int directions;
  int64_t steps, batch, hidden;
  // Device [T + 1]: the first row of each step of a packed batch; null: t * batch.
  const int64_t* starts;
  int64_t first_row, row_count;  // the rows of the batch that this launch computes
  bool half_c;                   // c0, c_n and their gradients are of `dtype`, else of acc
};

struct PersistentForward {
  PersistentSizes sizes;
  const void* products;  // [D, S, G, H]: x W_ih^T, in 16-byte chunks
  int64_t product_direction, product_row, product_gate;
  const void* weight_hh;  // [D, GH, H] contiguous
  const void* bias;       // [D, GH] contiguous, or null
  const void* h0;         // [D, B, H] contiguous
  void* h;                // [D, B, H]: after each row's last step
  const void* c0;         // [D, B, H] contiguous
  void* c;                // [D, B, H]: after each row's last step
  void* output;           // [S, D * H], rows output_row apart
  int64_t output_row;
  void* gates;  // [D, S, GH] contiguous: pre-activations, bias in them; or null. May be `products`
  void* exchange;  // grid: its workspace, every byte 0xff
};

struct PersistentBackward {
  PersistentSizes sizes;
  const void* gates;  // [D, S, G, H] as forward saves them, in 16-byte chunks
  int64_t gate_direction, gate_row, gate_gate;
  const void* c_states;  // [D, S, H] acc: c before each step, in 16-byte chunks
  int64_t c_direction, c_row;
  const void* grad_output;  // [D, S, H] in 16-byte chunks, or null
  int64_t grad_direction, grad_row;
  const void* weight_hh;  // [D, GH, H] contiguous
  // [D, B, H] contiguous: gradients of the last states (in) and of the first (out); each may be
  // null
  const void *grad_h_n, *grad_c_n;
  void *grad_h0, *grad_c0;
  void* grad_gates;  // [D, S, GH] contiguous
  void* exchange;    // grid: its workspace, every byte 0xff
};

// c before each step from all gates, in one launch.
struct PersistentCStates {
  PersistentSizes sizes;  // any floating dtype
  const void* gates;      // [D, S, GH] contiguous
  const void* c0;         // [D, B, H] contiguous
  void* c_states;         // [D, S, H] acc
  int64_t c_direction, c_row;
  int direction;  // the first of `directions`: step computes one at a time
};

// A cluster kernel: each block of a cluster keeps the weights of `units` hidden units, and a
// cluster takes up to rows() rows of the batch through all steps.
struct ClusterShape {
  int units, blocks, tiles;

  constexpr int64_t hidden() const { return int64_t{units} * blocks; }  // at most
  // A block alone has a thread for each (unit, row) of two rows; others, tiles of 8 rows.
  constexpr int rows() const { return blocks == 1 ? 2 : 8 * tiles; }

  // Whether it has a kernel of half types, or of float32. What fits one block in float32, a larger
  // cluster never does faster.
  constexpr bool has_half() const { return blocks > 1; }
  constexpr bool has_fp32() const {
    return blocks == 1 || (blocks == 16 && units <= 32 && tiles == 1);
  }
};

inline constexpr ClusterShape kClusterShapes[] = {
    {32, 1, 1}, {64, 1, 1}, {128, 1, 1},                                         //
    {16, 4, 1}, {16, 4, 2}, {16, 8, 1},  {16, 8, 2},  {16, 16, 1}, {16, 16, 2},  //
    {32, 8, 1}, {32, 8, 2}, {32, 16, 1}, {32, 16, 2}, {64, 8, 1},  {64, 8, 2},  {48, 16, 1},
};
// The backward pass exchanges G times as much, and has kernels of one tile only.

struct ClusterPlan {
  ClusterShape shape;
  int rows;  // of the batch a cluster
};

}  // namespace treadle
