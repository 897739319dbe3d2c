// Arguments of the persistent kernels, which compute all steps of a recurrent layer in one launch,
// usually for all directions. This header is for the host and for CUDA, and needs no torch. Shapes
// are as in step_args.h, with D directions, some of which may run backward in time
// (PersistentSizes::groups). Strides count elements. Arrays that are read in 16-byte chunks have a
// 16-byte-aligned base and strides that are multiples of 8 elements (of 4 in float32). If H does
// not allow such strides, the caller pads the rows; the padding is never used. The kernel of a
// single block needs no alignment, because it reads single elements. In half types it reads each
// element together with its neighbour, which must not be written meanwhile.
#pragma once

#include <cstdint>

#include "kernels/common/dtype.h"
#include "kernels/recurrent/cell_info.h"
#include "kernels/recurrent/step_args.h"

namespace treadle {

struct PersistentSizes {
  CellKind cell;
  Dtype dtype;     // Half, BFloat16 or Float
  int directions;  // that this launch computes, from first_direction on
  int64_t steps, batch, hidden;
  // [T + 1] on the device: where the rows of each step of a packed batch begin. Null if the batch
  // is not packed; then step t begins at row t * batch.
  const int64_t* starts;
  int64_t first_row, row_count;  // the rows of the batch that this launch computes
  bool half_c;                   // whether c0, c_n and their gradients have `dtype`, else acc
  // The first `groups` of all directions run forward in time, the others backward.
  int groups = 1;
  int first_direction = 0;
};

// The number of row groups, over all its directions, in a launch of a grid kernel whose row groups
// have `rows` rows each.
inline int grid_groups(const PersistentSizes& sizes, int rows) {
  return static_cast<int>((sizes.row_count + rows - 1) / rows) * sizes.directions;
}

struct PersistentForward {
  PersistentSizes sizes;
  // [D, S, G, H], in 16-byte chunks: x W_ih^T, for the gates that have this product.
  const void* products;
  int64_t product_direction, product_row, product_gate;
  const void* weight_hh;  // [D, G_h H, H] contiguous
  // [D, G_i H] and [D, G_h H] contiguous; each may be null.
  const void *bias_ih, *bias_hh;
  // [D, B, H] contiguous. For a single block h0 and c0 may be null, which means zeros.
  const void* h0;
  void* h;         // [D, B, H]: after each row's last step
  const void* c0;  // [D, B, H] contiguous
  void* c;         // [D, B, H]: after each row's last step
  void* output;    // [S, D * H], rows output_row apart
  int64_t output_row;
  // [D, S, GH] contiguous: pre-activations including bias; or null. May be `products`, except for a
  // single block in half types.
  void* gates;
  void* exchange;  // grid: its workspace, every byte 0xff
  RecurrenceResets resets = {};
};

struct PersistentBackward {
  PersistentSizes sizes;
  const void* gates;  // [D, S, G, H] as forward saves them, in 16-byte chunks
  int64_t gate_direction, gate_row, gate_gate;
  const void* c_states;  // [D, S, H] acc: c before each step, in 16-byte chunks
  int64_t c_direction, c_row;
  const void* grad_output;  // [D, S, H] in 16-byte chunks, or null
  int64_t grad_direction, grad_row;
  const void* weight_hh;  // [D, G_h H, H] contiguous
  // [D, B, H] contiguous: gradients of the last states (in) and of the first (out), or null.
  const void *grad_h_n, *grad_c_n;
  void *grad_h0, *grad_c0;
  // [D, S, GH] contiguous. May be `gates`, except for a single block in half types.
  void* grad_gates;
  void* exchange;  // grid: its workspace, every byte 0xff
  RecurrenceResets resets = {};
  // grid, float32: [D, bias_parts, GH], sums of grad_gates over all steps of a row group; or null.
  float* bias_sums = nullptr;
  int64_t bias_parts = 0;
};

// Arguments of the kernel that computes c before each step from the saved gates, in one launch.
struct PersistentCStates {
  PersistentSizes sizes;  // any floating dtype
  const void* gates;      // [D, S, GH] contiguous
  const void* c0;         // [D, B, H] contiguous
  void* c_states;         // [D, S, H] acc
  int64_t c_direction, c_row;
  int direction;  // the first direction of this launch; "step" launches one direction at a time
  RecurrenceResets resets = {};
};

}  // namespace treadle
