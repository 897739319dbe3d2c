// recurrent_layer: one layer of cells over a sequence, in D directions (1 or 2; the second runs
// backward in time). Sizes: T steps, B rows, S rows in all steps of a packed batch together, I
// inputs, H hidden units, G gates of the cell. A weight or bias has H rows for each gate to which
// it contributes; in LLTM and LSTM these are all gates (cell_info.h).
//   input [T, B, I]               or [S, I] with batch_sizes [T] (int64 on the CPU, non-increasing)
//   h0, c0, h_n, c_n [D, B, H]    c0 and c_n in input's dtype, or float32 if that is a half type
//   weight_ih [D, GH, I], weight_hh [D, GH, H], bias_ih and bias_hh [D, GH] or none; with one
//                                 direction, all may lack D, and then so do their gradients.
//                                 weight_hh [D, GH, H/n] has n diagonal blocks (groups.h)
//   output [T, B, D*H]            or [S, D*H]
//   reset [T, B, 1] bool          or [S, 1]: where it is true at step t, a row resets: reset_h and
//                                 reset_c, or zeros, replace the state before step t. Direction 1,
//                                 which runs backward, resets between step t and step t - 1
//   reset_h, reset_c [D, B, H]    or one for each step, [D, T, B, H] or [D, S, H], with the dtypes
//                                 of h0 and c0
#pragma once

#include <ATen/Functions.h>

#include <array>
#include <string_view>

#include "common/tensors.h"
#include "kernels/recurrent/cell_info.h"

namespace treadle {

// The cell named `name`, which is the op's argument `cell`. Raises if there is no such cell.
CellKind find_cell(const char* op, std::string_view name);

// The arguments of a layer, or their gradients or tangents, in which batch_sizes, reset and cell
// are not used. An undefined tensor was not given or is zero.
struct LayerArguments {
  Tensor input, h0, c0, weight_ih, weight_hh, bias_ih, bias_hh, reset_h = {}, reset_c = {};
  Tensor batch_sizes = {}, reset = {};
  CellKind cell = {};
  int64_t groups = 1;  // layer/groups.h

  // 0 if direction d runs forward in time, 1 if it runs backward.
  int64_t time_direction(int64_t d) const { return d / groups; }

  // Whether weights and biases lack the dimension D.
  bool one_direction() const { return weight_ih.dim() == 2; }

  template <class F>
  LayerArguments map(F f) const {
    return {f(input),   f(h0),      f(c0),       f(weight_ih), f(weight_hh), f(bias_ih), f(bias_hh),
            f(reset_h), f(reset_c), batch_sizes, reset,        cell,         groups};
  }
};

// The results of a layer, and its gates [D, T, B, GH] or [D, S, GH] before activation, including
// biases; or the gradients or tangents of these. If W_hh has n diagonal blocks, the gates are [D*n,
// ..., GH/n], as the kernels compute them. The backward op recomputes c of every step from the
// gates. With `recompute`, gates has shape [0], and the backward op also recomputes the gates.
struct LayerOutputs {
  Tensor output, h_n, c_n, gates;

  template <class F>
  LayerOutputs map(F f) const {
    return {f(output), f(h_n), f(c_n), f(gates)};
  }
};

// Which of input, h0, c0, weight_ih, weight_hh, bias_ih, bias_hh, reset_h, reset_c get a gradient.
using LayerMask = std::array<bool, 9>;

// ---- the dispatcher's types

using LayerResults = Tensors3;  // output, h_n, c_n
using LayerSaved = Tensors4;    // output, h_n, c_n, gates
using LayerGrads = Tensors9;    // in the order of LayerMask

template <class Results>
using LayerCall = Results(const Tensor& input, const OptionalTensor& batch_sizes, const Tensor& h0,
                          const Tensor& c0, const Tensor& weight_ih, const Tensor& weight_hh,
                          const OptionalTensor& bias_ih, const OptionalTensor& bias_hh,
                          c10::string_view cell, bool recompute, c10::string_view algorithm,
                          const OptionalTensor& reset, const OptionalTensor& reset_h,
                          const OptionalTensor& reset_c);
using LayerSignature = LayerCall<LayerResults>;
using LayerForwardSignature = LayerCall<LayerSaved>;

using LayerBackwardSignature = LayerGrads(
    const OptionalTensor& grad_output, const OptionalTensor& grad_h_n,
    const OptionalTensor& grad_c_n, const Tensor& input, const OptionalTensor& batch_sizes,
    const Tensor& h0, const Tensor& c0, const Tensor& weight_ih, const Tensor& weight_hh,
    const OptionalTensor& bias_ih, const OptionalTensor& bias_hh, const Tensor& output,
    const Tensor& gates, c10::string_view cell, bool recompute, c10::string_view algorithm,
    LayerMask mask, const OptionalTensor& reset, const OptionalTensor& reset_h,
    const OptionalTensor& reset_c);

inline Tensor of_direction(const Tensor& t, int64_t d) { return t.defined() ? t.select(0, d) : t; }

// of_direction for a weight or bias of `layer`, which may lack the dimension D.
inline Tensor parameter_of(const LayerArguments& layer, const Tensor& t, int64_t d) {
  return layer.one_direction() ? t : of_direction(t, d);
}

// Replaces each defined weight and bias t by f(t).
template <class F>
void each_parameter(LayerArguments& a, const F& f) {
  for (Tensor* t : {&a.weight_ih, &a.weight_hh, &a.bias_ih, &a.bias_hh}) {
    if (t->defined()) *t = f(*t);
  }
}

// weight_hh or bias_hh, with its blocks of `hidden` rows along `dim` rolled from torch's order to
// the order of the gates.
inline Tensor in_gate_order(const Tensor& t, CellKind cell, const c10::SymInt& hidden,
                            int64_t dim) {
  const int shift = cell_info(cell).torch_shift;
  return t.defined() && shift != 0 ? at::roll_symint(t, hidden * shift, dim) : t;
}

// in_gate_order with the sizes of `layer`, and its inverse.
inline Tensor in_gate_order(const Tensor& t, const LayerArguments& layer) {
  return in_gate_order(t, layer.cell, layer.h0.sym_size(-1), layer.one_direction() ? 0 : 1);
}
inline Tensor from_gate_order(const Tensor& t, const LayerArguments& layer) {
  return in_gate_order(t, layer.cell, -layer.h0.sym_size(-1), layer.one_direction() ? 0 : 1);
}

}  // namespace treadle
