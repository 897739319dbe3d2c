// lltm, lstm, gru, rnn_tanh and rnn_relu: arguments and results of their ops; layers.cpp runs them.
// layer/layer.h explains the sizes, such as S. L is the number of layers.
#pragma once

#include "recurrent/layer/layer.h"

namespace treadle {

// The arguments that all overloads of an op share.
struct Layers {
  CellKind cell;
  at::TensorList hx;  // {h0, c0}, or {h0} for GRU and RNN; if empty, the states are zeros
  at::TensorList params;
  bool has_biases;
  int64_t num_layers;
  double dropout;
  bool train, bidirectional, recompute;
  // reset is [T, B] or [S]. reset_hx are the states after a reset: in the shape of hx, or one for
  // each step and row, [L*D, T, B, H] or [L*D, S, H].
  OptionalTensor reset;
  at::TensorList reset_hx;      // may be empty
  OptionalTensor lengths = {};  // [B]; not for a packed batch
  bool cells = false;           // whether to return the cell states
  bool zeros = false;           // whether hx may be empty

  const char* op() const { return cell_info(cell).name; }
  bool has_c() const { return treadle::has_c(cell); }
  int64_t directions() const { return bidirectional ? 2 : 1; }
  size_t states() const { return has_c() ? 2 : 1; }
  // The number of parameters of a layer and direction.
  int64_t each() const { return !has_biases ? 2 : has_bias_hh(cell) ? 4 : 3; }
  at::TensorList params_of(int64_t layer) const {
    const int64_t count = directions() * each();
    return params.slice(layer * count, count);
  }
};

// Results of one layer, or of all. cells [T, B, D*H] or [S, D*H] are undefined unless requested.
struct LayersResults {
  Tensor output, h_n, c_n, cells;
};

// The initial states and reset states of all layers, [L*D, ...], and the marks, in the form of
// recurrent_layer's arguments.
struct GivenStates {
  Tensor h0, c0, reset_h, reset_c, reset;

  GivenStates(const Layers& layers, bool packed);
};

// H, from weight_hh, which may be block-diagonal (layer/groups.h).
c10::SymInt hidden_size(const Layers& layers);

// [L*D, B, H]
c10::SymDimVector states_shape(const Tensor& input, const OptionalTensor& batch_sizes,
                               const Layers& layers);

// Parameter k of a layer that has `each` parameters per direction: stacked if there are two
// directions.
Tensor of_directions(at::TensorList params, int64_t each, int64_t k);

// `input` is the packed data if there are `batch_sizes`.
void check_layers(const Tensor& input, const OptionalTensor& batch_sizes, const Layers& layers);

}  // namespace treadle
