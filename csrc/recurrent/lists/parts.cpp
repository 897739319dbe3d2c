// Functions with which the ops of layers.cpp extract parameters and states from their lists.
#include <ATen/Functions.h>
#include <ATen/OpMathType.h>

#include "recurrent/layer/autocast.h"
#include "recurrent/lists/layers.h"

namespace treadle {

Tensor of_directions(at::TensorList params, int64_t each, int64_t k) {
  if (k >= each) return Tensor();
  if (static_cast<int64_t>(params.size()) > each) return at::stack({params[k], params[each + k]});
  // A parameter of a wrong shape only gains a dimension here; recurrent_layer then raises.
  return params[k].dim() == (k < 2 ? 2 : 1) ? params[k] : params[k].unsqueeze(0);
}

// c of the given states. For a cell without c, this is h in the dtype before rounding. Under
// autocast, torch's LSTM has c in the lower precision. LLTM's c keeps its dtype, because it
// accumulates.
static Tensor given_c(const Layers& a, at::TensorList states, bool packed) {
  if (states.empty()) return Tensor();
  if (!a.has_c()) return cast(states[0], at::toOpMathType(states[0].scalar_type()));
  const Tensor& c = states[1];
  if (a.cell != CellKind::kLstm || c.scalar_type() != at::kFloat) return c;
  return cast(c, autocast_dtype(a.cell, packed, c).value_or(at::kFloat));
}

GivenStates::GivenStates(const Layers& a, bool packed)
    : h0(a.hx.empty() ? Tensor() : a.hx[0]),
      c0(given_c(a, a.hx, packed)),
      reset_h(a.reset_hx.empty() ? Tensor() : a.reset_hx[0]),
      reset_c(given_c(a, a.reset_hx, packed)),
      reset(a.reset ? a.reset->unsqueeze(-1) : Tensor()) {}

c10::SymInt hidden_size(const Layers& a) {
  // Later checks raise for a weight of another shape.
  const Tensor& weight_hh = a.params[1];
  if (weight_hh.dim() == 0) return 0;
  const c10::SymInt columns = weight_hh.sym_size(-1);
  if (weight_hh.dim() != 2 || columns == 0) return columns;
  const auto units = weight_hh.sym_size(0) / cell_info(a.cell).state_gates;
  return units > columns && units % columns == 0 ? units : columns;  // if larger, block-diagonal
}

c10::SymDimVector states_shape(const Tensor& input, const OptionalTensor& batch_sizes,
                               const Layers& a) {
  if (!a.hx.empty()) return c10::SymDimVector(a.hx[0].sym_sizes());
  c10::SymInt batch = 0;
  if (!batch_sizes) {
    batch = input.sym_size(1);
  } else if (batch_sizes->numel() > 0) {
    batch = batch_sizes->select(0, 0).item<int64_t>();
  }
  return {a.num_layers * a.directions(), batch, hidden_size(a)};
}

}  // namespace treadle
