// lltm, lstm and gru: layers of cells, with the arguments of aten::lstm and aten::gru. They unpack
// the lists, apply dropout between layers and call recurrent_layer, so they have every device and
// derivative that recurrent_layer has.
#include <ATen/Functions.h>
#include <ATen/OpMathType.h>

#include "common/check.h"
#include "recurrent/autocast.h"
#include "recurrent/check.h"

namespace treadle {
namespace {

const auto& layer_op() {
  static const auto op = find_op<LayerSignature>("treadle::recurrent_layer");
  return op;
}

// What both overloads of an op are given.
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
  at::TensorList reset_hx;  // may be empty

  const char* op() const { return cell_info(cell).name; }
  bool has_c() const { return cell != CellKind::kGru; }
  int64_t directions() const { return bidirectional ? 2 : 1; }
  // Parameters of a layer and direction.
  int64_t each() const { return !has_biases ? 2 : has_bias_hh(cell) ? 4 : 3; }
};

void check_resets(const Layers& a) {
  const char* const op = a.op();
  const size_t states = a.has_c() ? 2 : 1;
  TORCH_CHECK(a.reset_hx.empty() || a.reset_hx.size() == states, op,
              ": reset_hx must be two tensors, of h and of c, got ", a.reset_hx.size());
  const char* names[] = {"reset_hx[0]", "reset_hx[1]"};
  for (size_t k = 0; k < a.reset_hx.size(); ++k) {
    const Tensor& t = a.reset_hx[k];
    TORCH_CHECK(
        (t.dim() == 3 || t.dim() == 4) && t.sym_size(0) == a.num_layers * a.directions(), op, ": ",
        a.has_c() ? names[k] : "reset_hx",
        " must have shape [L*D, B, H], or [L*D, T, B, H] with one for each step, with L*D = ",
        a.num_layers * a.directions(), ", got ", t.sym_sizes());
  }
}

void check_lists(const Layers& a) {
  const char* const op = a.op();
  const int64_t directions = a.directions(), each = a.each();
  if (a.has_c()) {
    TORCH_CHECK(a.hx.size() == 2, op, ": hx must be two tensors, h0 and c0, got ", a.hx.size());
  }
  TORCH_CHECK(a.num_layers >= 1, op, ": num_layers must be at least 1, got ", a.num_layers);
  const int64_t count = a.num_layers * directions * each;
  TORCH_CHECK(static_cast<int64_t>(a.params.size()) == count, op, ": params must be ", each,
              " tensors for each of ", a.num_layers * directions, " layers and directions, ", count,
              " in all, got ", a.params.size());
  // The directions are stacked, which would silently promote different dtypes.
  for (int64_t k = 0; k < count; ++k) {
    if (k / each % directions == 0) continue;
    const std::string name = "params[" + std::to_string(k) + "]";
    const std::string first = "params[" + std::to_string(k - each) + "]";
    check_like(op, name.c_str(), a.params[k], first.c_str(), a.params[k - each]);
    check_shape(op, name.c_str(), ("that of " + first).c_str(), a.params[k],
                a.params[k - each].sym_sizes());
  }
  check_resets(a);
  const char* names[] = {"h0", "c0"};
  for (size_t k = 0; k < a.hx.size(); ++k) {
    TORCH_CHECK(a.hx[k].dim() == 3 && a.hx[k].sym_size(0) == a.num_layers * directions, op, ": ",
                names[k], " must have shape [L*D, B, H] with L*D = ", a.num_layers * directions,
                ", got ", a.hx[k].sym_sizes());
  }
}

// All of them: stacking would read those of two directions, and recurrent_layer sees one layer's
// alone.
void check_list_storages(const Layers& a) {
  const char* names[] = {"h0", "c0"};
  for (size_t k = 0; k < a.hx.size(); ++k) check_composite_storage(a.op(), names[k], a.hx[k]);
  if (a.reset) check_composite_storage(a.op(), "reset", *a.reset);
  for (const Tensor& t : a.reset_hx) check_composite_storage(a.op(), "reset_hx", t);
  for (size_t k = 0; k < a.params.size(); ++k) {
    const std::string name = "params[" + std::to_string(k) + "]";
    check_composite_storage(a.op(), name.c_str(), a.params[k]);
  }
}

// Tensors k, k + each, ... of a layer's: one of each direction, stacked, or of one as it is.
Tensor of_directions(at::TensorList params, int64_t each, int64_t k) {
  if (static_cast<int64_t>(params.size()) > each) return at::stack({params[k], params[each + k]});
  // Of a wrong shape with another dimension, which the op then refuses.
  return params[k].dim() == (k < 2 ? 2 : 1) ? params[k] : params[k].unsqueeze(0);
}

// The states [D, ...] of a layer, from those of all layers.
Tensor of_layer(const Layers& a, const Tensor& states, int64_t layer) {
  if (a.num_layers == 1) return states;
  return states.narrow(0, layer * a.directions(), a.directions());
}

OptionalTensor of_layer_if_any(const Layers& a, const Tensor& states, int64_t layer) {
  return states.defined() ? OptionalTensor(of_layer(a, states, layer)) : std::nullopt;
}

// The c of states that are given. GRU's is h without rounding. Under autocast torch's LSTM has c in
// the lower precision; the LLTM's, which only adds up, keeps its own.
Tensor given_c(const Layers& a, at::TensorList states, bool packed) {
  if (states.empty()) return Tensor();
  if (a.cell == CellKind::kGru) return cast(states[0], at::toOpMathType(states[0].scalar_type()));
  const Tensor& c = states[1];
  if (a.cell != CellKind::kLstm || c.scalar_type() != at::kFloat) return c;
  return cast(c, autocast_dtype(a.cell, packed, c).value_or(at::kFloat));
}

LayerResults run(const Tensor& input, const OptionalTensor& batch_sizes, const Layers& a) {
  const LayerCaller caller(a.op());
  check_lists(a);
  check_list_storages(a);
  const int64_t directions = a.directions(), each = a.each();
  const bool packed = batch_sizes.has_value();
  const Tensor c0 = given_c(a, a.hx, packed), reset_c = given_c(a, a.reset_hx, packed);
  const OptionalTensor reset = a.reset ? OptionalTensor(a.reset->unsqueeze(-1)) : std::nullopt;
  Tensor x = input;
  std::vector<Tensor> h_n, c_n;
  for (int64_t layer = 0; layer < a.num_layers; ++layer) {
    if (layer > 0 && a.dropout != 0 && a.train) x = at::dropout(x, a.dropout, a.train);
    const int64_t first = layer * directions;
    const auto own = a.params.slice(first * each, directions * each);
    const auto bias = [&](int64_t k) -> OptionalTensor {
      if (k >= each) return std::nullopt;
      return of_directions(own, each, k);
    };
    Tensor h, c;
    std::tie(x, h, c) =
        layer_op().call(x, batch_sizes, of_layer(a, a.hx[0], layer), of_layer(a, c0, layer),
                        of_directions(own, each, 0), of_directions(own, each, 1), bias(2), bias(3),
                        a.op(), a.recompute, "auto", reset,
                        of_layer_if_any(a, a.reset_hx.empty() ? Tensor() : a.reset_hx[0], layer),
                        of_layer_if_any(a, reset_c, layer));
    h_n.push_back(h);
    c_n.push_back(c);
  }
  if (a.num_layers == 1) return {x, h_n[0], c_n[0]};
  return {x, at::cat(h_n), a.has_c() ? at::cat(c_n) : Tensor()};
}

LayerResults run_input(const Tensor& input, bool batch_first, Layers a) {
  TORCH_CHECK(input.dim() == 3, a.op(), ": input must have shape ",
              batch_first ? "[B, T, I]" : "[T, B, I]", ", got ", input.sym_sizes());
  if (a.reset) {
    check_shape(a.op(), "reset", batch_first ? "[B, T]" : "[T, B]", *a.reset,
                input.sym_sizes().slice(0, 2));
  }
  if (!batch_first) return run(input, std::nullopt, a);
  if (a.reset) a.reset = a.reset->transpose(0, 1);
  std::vector<Tensor> reset_hx = a.reset_hx.vec();
  for (Tensor& t : reset_hx) {
    if (t.dim() == 4) t = t.transpose(1, 2);
  }
  a.reset_hx = reset_hx;
  auto [output, h_n, c_n] = run(input.transpose(0, 1), std::nullopt, a);
  return {output.transpose(0, 1), h_n, c_n};
}

LayerResults run_data(const Tensor& data, const Tensor& batch_sizes, const Layers& a) {
  if (a.reset) check_shape(a.op(), "reset", "[S]", *a.reset, data.sym_sizes().slice(0, 1));
  return run(data, batch_sizes, a);
}

using OptionalList = std::optional<at::TensorList>;

// ---- the ops. Of lltm and lstm hx is a list, of gru a tensor.

template <CellKind cell>
LayerResults pair_input(const Tensor& input, at::TensorList hx, at::TensorList params,
                        bool has_biases, int64_t num_layers, double dropout, bool train,
                        bool bidirectional, bool batch_first, bool recompute,
                        const OptionalTensor& reset, OptionalList reset_hx) {
  return run_input(input, batch_first,
                   {cell, hx, params, has_biases, num_layers, dropout, train, bidirectional,
                    recompute, reset, reset_hx.value_or(at::TensorList())});
}

template <CellKind cell>
LayerResults pair_data(const Tensor& data, const Tensor& batch_sizes, at::TensorList hx,
                       at::TensorList params, bool has_biases, int64_t num_layers, double dropout,
                       bool train, bool bidirectional, bool recompute, const OptionalTensor& reset,
                       OptionalList reset_hx) {
  return run_data(data, batch_sizes,
                  {cell, hx, params, has_biases, num_layers, dropout, train, bidirectional,
                   recompute, reset, reset_hx.value_or(at::TensorList())});
}

at::TensorList one_or_none(const OptionalTensor& t) {
  return t ? at::TensorList(*t) : at::TensorList();
}

Tensors2 gru_input(const Tensor& input, const Tensor& hx, at::TensorList params, bool has_biases,
                   int64_t num_layers, double dropout, bool train, bool bidirectional,
                   bool batch_first, bool recompute, const OptionalTensor& reset,
                   const OptionalTensor& reset_hx) {
  auto [output, h_n, c_n] =
      run_input(input, batch_first,
                {CellKind::kGru, hx, params, has_biases, num_layers, dropout, train, bidirectional,
                 recompute, reset, one_or_none(reset_hx)});
  return {output, h_n};
}

Tensors2 gru_data(const Tensor& data, const Tensor& batch_sizes, const Tensor& hx,
                  at::TensorList params, bool has_biases, int64_t num_layers, double dropout,
                  bool train, bool bidirectional, bool recompute, const OptionalTensor& reset,
                  const OptionalTensor& reset_hx) {
  auto [output, h_n, c_n] =
      run_data(data, batch_sizes,
               {CellKind::kGru, hx, params, has_biases, num_layers, dropout, train, bidirectional,
                recompute, reset, one_or_none(reset_hx)});
  return {output, h_n};
}

void register_layers(torch::Library& m) {
  m.impl("lltm.input", pair_input<CellKind::kLltm>);
  m.impl("lltm.data", pair_data<CellKind::kLltm>);
  m.impl("lstm.input", pair_input<CellKind::kLstm>);
  m.impl("lstm.data", pair_data<CellKind::kLstm>);
  m.impl("gru.input", gru_input);
  m.impl("gru.data", gru_data);
}

}  // namespace

TORCH_LIBRARY_IMPL(treadle, CompositeImplicitAutograd, m) { register_layers(m); }

// Without this vmap does not decompose the ops.
TORCH_LIBRARY_IMPL(treadle, FuncTorchBatchedDecomposition, m) { register_layers(m); }

}  // namespace treadle
