// lltm, lstm and gru: arguments and results of their ops; layers.cpp runs them.
#pragma once

#include "recurrent/layer/layer.h"

namespace treadle {

// The arguments that all overloads of an op share.
struct Layers {
  CellKind cell;
  at::TensorList hx;  // of GRU h0 alone
  at::TensorList params;
  bool has_biases;
  int64_t num_layers;
  double dropout;
  bool train, bidirectional, recompute;
  // [T, B] or [S], and what replaces the states, as hx or one for each place: [L*D, T, B, H] or
  // [L*D, S, H].
  OptionalTensor reset;
  at::TensorList reset_hx;      // may be empty
  OptionalTensor lengths = {};  // [B], not of a packed batch
  bool cells = false;           // whether those of all steps are asked for

  const char* op() const { return cell_info(cell).name; }
  bool has_c() const { return cell != CellKind::kGru; }
  int64_t directions() const { return bidirectional ? 2 : 1; }
  // Parameters of a layer and direction.
  int64_t each() const { return !has_biases ? 2 : has_bias_hh(cell) ? 4 : 3; }
};

// Results of one layer, or of all. cells [T, B, D*H] or [S, D*H] are undefined unless requested.
struct LayersResults {
  Tensor output, h_n, c_n, cells;
};

// `input` is the packed data where there are `batch_sizes`.
void check_layers(const Tensor& input, const OptionalTensor& batch_sizes, const Layers& layers);

}  // namespace treadle
