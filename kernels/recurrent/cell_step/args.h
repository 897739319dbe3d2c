// Arguments of the kernels that run one step of a cell (torch.nn's LSTMCell, GRUCell and RNNCell)
// for few rows, on CUDA. This header needs neither torch nor CUDA. In shapes, B is the number of
// rows, H the number of units and I the number of inputs. step_args.h explains G, G_i and G_h.
// Unlike the steps of a layer, all arrays have the type `dtype`.
#pragma once

#include "kernels/recurrent/cell_info.h"

namespace treadle {

// More rows are slower than torch's matrix products.
inline constexpr int64_t kCellStepRows = 32;

struct CellStepSizes {
  CellKind cell;
  Dtype dtype;
  int64_t rows, hidden, features;  // B, H, I
};

// Rows of an array: `stride` elements apart, and contiguous.
struct CellStepRows {
  const void* data = nullptr;  // null: the argument is missing
  int64_t stride = 0;
};

// If H and I are multiples of 4, the addresses of input, h and weights must be multiples of 4
// elements, and so must the strides of input and h.
struct CellStepForward {
  CellStepSizes sizes;
  CellStepRows input, h, c;           // [B, I], [B, H], [B, H]; c is missing if the cell has none
  const void *weight_ih, *weight_hh;  // [G_i H, I], [G_h H, H]
  const void *bias_ih, *bias_hh;      // [G_i H], [G_h H]; each may be null
  void *new_h, *new_c;                // [B, H]; new_c is null if the cell has no c
  void* gates;                        // [B, G H]: pre-activations including bias; or null
};

// The pointwise part of the backward pass.
struct CellStepBackward {
  CellStepSizes sizes;
  const void* gates;            // as saved by the forward pass
  CellStepRows old_state;       // [B, H]: c or, if the cell has none, h
  CellStepRows grad_h, grad_c;  // [B, H] each; each may be missing
  void* grad_gates;             // [B, G H]
  // [B, H]: the gradient of old_state, without the part that comes through the gates.
  void* grad_old_state;
};

// The gradients that are sums of products with grad_gates. Each result may be null.
struct CellStepGradients {
  CellStepSizes sizes;
  const void* grad_gates;             // [B, G H]
  CellStepRows input, h;              // as in CellStepForward
  const void *weight_ih, *weight_hh;  // as in CellStepForward
  const void* add_to_h;               // [B, H], added to grad_h; or null
  void *grad_input, *grad_h, *grad_weight_ih, *grad_weight_hh, *grad_bias_ih, *grad_bias_hh;
};

}  // namespace treadle
