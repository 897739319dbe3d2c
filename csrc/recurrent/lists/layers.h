// lltm, lstm and gru: arguments and results of their ops; layers.cpp runs them.
#pragma once

#include "recurrent/layer/layer.h"

namespace treadle {

// The arguments that all overloads of an op share.
struct Layers {
  CellKind cell;
  at::TensorList hx;  // for GRU only h0
  at::TensorList params;
  bool has_biases;
  int64_t num_layers;
  double dropout;
  bool train, bidirectional, recompute;
  // [T, B] or [S], and the states after a reset, as hx or one for each step and row: [L*D, T, B, H]
  // or [L*D, S, H].
  OptionalTensor reset;
  at::TensorList reset_hx;      // may be empty
  OptionalTensor lengths = {};  // [B], not of a packed batch
  bool cells = false;           // whether to return the cell states

  const char* op() const { return cell_info(cell).name; }
  bool has_c() const { return cell != CellKind::kGru; }
  int64_t directions() const { return bidirectional ? 2 : 1; }
  // The number of parameters of a layer and direction.
  int64_t each() const { return !has_biases ? 2 : has_bias_hh(cell) ? 4 : 3; }
};

// Results of one layer, or of all. cells [T, B, D*H] or [S, D*H] are undefined unless requested.
struct LayersResults {
  Tensor output, h_n, c_n, cells;
};

// `input` is the packed data if there are `batch_sizes`.
void check_layers(const Tensor& input, const OptionalTensor& batch_sizes, const Layers& layers);

}  // namespace treadle
