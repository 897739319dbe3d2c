// lltm, lstm, gru, rnn_tanh and rnn_relu: layers of cells, with the arguments of torch's ops. These
// ops unpack the lists, apply dropout between layers and call recurrent_layer, so they support its
// devices and derivatives.
#include "recurrent/lists/layers.h"

#include <ATen/Functions.h>

#include "common/check.h"
#include "recurrent/layer/autocast.h"
#include "recurrent/lists/aligned.h"
#include "recurrent/lists/cells.h"
#include "recurrent/lists/lengths.h"
#include "recurrent/lists/stack.h"
#include "recurrent/run/dispatch.h"

namespace treadle {
namespace {

const auto& single_layer_op() {
  static const auto op = find_op<LayerSignature>("treadle::recurrent_layer");
  return op;
}

LayersResults call_layer(const LayerArguments& a, bool recompute) {
  auto [output, h_n, c_n] = with_arguments(
      a, recompute, "auto", [](const auto&... each) { return single_layer_op().call(each...); });
  return {output, h_n, c_n, Tensor()};
}

// c of every step of a sequence that has one step.
Tensor cells_of_one_step(const Tensor& c_n) { return c_n.transpose(0, 1).flatten(1).unsqueeze(0); }

LayersResults run_layer(const LayerArguments& a, bool recompute, bool cells) {
  LayersResults found = call_layer(a, recompute);
  if (!cells) return found;
  const bool one_step = !a.batch_sizes.defined() && a.input.sym_size(0) == 1;
  found.cells = one_step ? cells_of_one_step(found.c_n)
                         : layer_cells(a, found.output).to(found.c_n.scalar_type());
  return found;
}

// run_layer for rows of variable length.
LayersResults run_layer(const LayerArguments& given, bool recompute, bool cells,
                        const RowLengths& lengths) {
  // The arguments are checked before they are changed. Under autocast they are checked only later,
  // because their dtypes may still differ.
  const auto lower = autocast_dtype(given.cell, /*packed=*/false, given.c0);
  if (!lower) check_layer(layer_op_name(), given);
  if (is_formula(given.cell) || given.cell == CellKind::kRnnRelu) {
    if (lower) {  // selecting rows would hide a wrong number of them
      check_layer(layer_op_name(), given.map([&](const Tensor& t) { return cast(t, *lower); }));
    }
    return run_aligned(given, lengths,
                       [&](const LayerArguments& a) { return call_layer(a, recompute); });
  }
  const LayerArguments a = with_lengths(given, lengths);
  const bool has_c = treadle::has_c(given.cell), both = given.h0.sym_size(0) == 2;
  LayersResults found = call_layer(has_c && !both ? keep_cells(a, lengths) : a, recompute);
  found.output = lengths.without_padding(found.output);
  Tensor of_first;  // c of the forward direction, from which a bidirectional layer's c_n is set
  if (cells) {
    found.cells = layer_cells(a, found.output);
    of_first = found.cells.narrow_symint(-1, 0, a.h0.sym_size(-1));
    found.cells = lengths.without_padding(found.cells).to(found.c_n.scalar_type());
  } else if (has_c && both) {
    of_first = direction_cells(a, found.output, 0);
  }
  set_last_states(found.h_n, found.c_n, given, found.output, both ? of_first : Tensor(), lengths);
  return found;
}

// ---- all layers

// One layer's part of states [L*D, ...]; undefined if `states` is.
Tensor of_layer(const Layers& a, const Tensor& states, int64_t layer) {
  if (!states.defined() || a.num_layers == 1) return states;
  return states.narrow(0, layer * a.directions(), a.directions());
}

// Calls recurrent_layer for each layer, so derivatives, transforms and modes work.
LayersResults run_dispatched(const Tensor& input, const OptionalTensor& batch_sizes,
                             const Layers& a) {
  const int64_t each = a.each();
  const GivenStates states(a, batch_sizes.has_value());
  std::optional<RowLengths> lengths;
  if (a.lengths) lengths.emplace(*a.lengths, input.sym_size(0));
  LayersResults found;
  Tensor x = input;
  std::vector<Tensor> h_n, c_n;
  for (int64_t layer = 0; layer < a.num_layers; ++layer) {
    if (layer > 0 && a.dropout != 0 && a.train) x = at::dropout(x, a.dropout, a.train);
    const auto own = a.params_of(layer);
    const LayerArguments given{x,
                               of_layer(a, states.h0, layer),
                               of_layer(a, states.c0, layer),
                               of_directions(own, each, 0),
                               of_directions(own, each, 1),
                               of_directions(own, each, 2),
                               of_directions(own, each, 3),
                               of_layer(a, states.reset_h, layer),
                               of_layer(a, states.reset_c, layer),
                               value_or_undefined(batch_sizes),
                               states.reset,
                               a.cell};
    const bool cells = a.cells && layer + 1 == a.num_layers;
    found = lengths ? run_layer(given, a.recompute, cells, *lengths)
                    : run_layer(given, a.recompute, cells);
    x = found.output;
    h_n.push_back(found.h_n);
    c_n.push_back(found.c_n);
  }
  if (a.num_layers == 1) return found;
  return {x, at::cat(h_n), a.has_c() ? at::cat(c_n) : Tensor(), found.cells};
}

LayersResults run(const Tensor& input, const OptionalTensor& batch_sizes, const Layers& a) {
  const LayerCaller caller(a.op());
  check_layers(input, batch_sizes, a);
  if (is_plain(input, batch_sizes, a)) {
    const LayerInference run_layer = layer_inference(input.device().type());
    if (run_layer != nullptr) return run_stack(run_layer, input, batch_sizes, a);
  }
  if (!a.hx.empty()) return run_dispatched(input, batch_sizes, a);
  auto shape = states_shape(input, batch_sizes, a);
  std::vector<Tensor> hx{input.new_zeros_symint(shape)};
  const int parts = cell_info(a.cell).c_parts;
  if (parts > 1) shape.back() = shape.back() * parts;
  if (a.has_c()) hx.push_back(parts > 1 ? input.new_zeros_symint(shape) : hx[0]);
  Layers from_zeros = a;
  from_zeros.hx = hx;
  return run_dispatched(input, batch_sizes, from_zeros);
}

LayersResults run_input(const Tensor& input, bool batch_first, Layers a) {
  TORCH_CHECK(input.dim() == 3, a.op(), ": input must have shape ",
              batch_first ? "[B, T, I]" : "[T, B, I]", ", got ", input.sym_sizes());
  if (a.reset) {
    check_marks(a.op(), batch_first ? "[B, T]" : "[T, B]", *a.reset, input.sym_sizes().slice(0, 2));
  }
  const Tensor x = batch_first ? input.transpose(0, 1) : input;
  if (a.lengths) check_lengths(a.op(), *a.lengths, x);
  if (!batch_first) return run(x, std::nullopt, a);
  if (a.reset) a.reset = a.reset->transpose(0, 1);
  std::vector<Tensor> reset_hx = a.reset_hx.vec();
  for (Tensor& t : reset_hx) {
    if (t.dim() == 4) t = t.transpose(1, 2);
  }
  a.reset_hx = reset_hx;
  auto found = run(x, std::nullopt, a);
  found.output = found.output.transpose(0, 1);
  if (a.cells) found.cells = found.cells.transpose(0, 1);
  return found;
}

LayersResults run_data(const Tensor& data, const Tensor& batch_sizes, const Layers& a) {
  if (a.reset) check_marks(a.op(), "[S]", *a.reset, data.sym_sizes().slice(0, 1));
  return run(data, batch_sizes, a);
}

LayersResults run_either(const Tensor& input, const OptionalTensor& batch_sizes, bool batch_first,
                         const Layers& a) {
  TORCH_CHECK(!(batch_sizes && a.lengths), a.op(),
              ": lengths must come with a padded input, got batch_sizes");
  return batch_sizes ? run_data(input, *batch_sizes, a) : run_input(input, batch_first, a);
}

using OptionalList = std::optional<at::TensorList>;

// ---- the ops. hx is a list for lltm and lstm, and a tensor for the others. With `cells`, the cell
// states are the last of four results.

template <bool cells>
auto as_results(const LayersResults& found) {
  if constexpr (cells) {
    return Tensors4{found.output, found.h_n, found.c_n, found.cells};
  } else {
    return Tensors3{found.output, found.h_n, found.c_n};
  }
}

template <CellKind cell, bool cells>
auto pair_input(const Tensor& input, at::TensorList hx, at::TensorList params, bool has_biases,
                int64_t num_layers, double dropout, bool train, bool bidirectional,
                bool batch_first, bool recompute, const OptionalTensor& reset,
                OptionalList reset_hx, const OptionalTensor& lengths) {
  return as_results<cells>(
      run_input(input, batch_first,
                {cell, hx, params, has_biases, num_layers, dropout, train, bidirectional, recompute,
                 reset, reset_hx.value_or(at::TensorList()), lengths, cells}));
}

template <CellKind cell, bool cells>
auto pair_data(const Tensor& data, const Tensor& batch_sizes, at::TensorList hx,
               at::TensorList params, bool has_biases, int64_t num_layers, double dropout,
               bool train, bool bidirectional, bool recompute, const OptionalTensor& reset,
               OptionalList reset_hx) {
  return as_results<cells>(
      run_data(data, batch_sizes,
               {cell, hx, params, has_biases, num_layers, dropout, train, bidirectional, recompute,
                reset, reset_hx.value_or(at::TensorList()), std::nullopt, cells}));
}

at::TensorList one_or_none(const OptionalTensor& t) {
  return t ? at::TensorList(*t) : at::TensorList();
}

template <CellKind cell>
Tensors2 h_input(const Tensor& input, const Tensor& hx, at::TensorList params, bool has_biases,
                 int64_t num_layers, double dropout, bool train, bool bidirectional,
                 bool batch_first, bool recompute, const OptionalTensor& reset,
                 const OptionalTensor& reset_hx, const OptionalTensor& lengths) {
  const auto found = run_input(input, batch_first,
                               {cell, hx, params, has_biases, num_layers, dropout, train,
                                bidirectional, recompute, reset, one_or_none(reset_hx), lengths});
  return {found.output, found.h_n};
}

template <CellKind cell>
Tensors2 h_data(const Tensor& data, const Tensor& batch_sizes, const Tensor& hx,
                at::TensorList params, bool has_biases, int64_t num_layers, double dropout,
                bool train, bool bidirectional, bool recompute, const OptionalTensor& reset,
                const OptionalTensor& reset_hx) {
  const auto found = run_data(data, batch_sizes,
                              {cell, hx, params, has_biases, num_layers, dropout, train,
                               bidirectional, recompute, reset, one_or_none(reset_hx)});
  return {found.output, found.h_n};
}

std::vector<Tensor> layers_from_zeros(const Tensor& input, const OptionalTensor& batch_sizes,
                                      at::TensorList params, bool has_biases, int64_t num_layers,
                                      double dropout, bool train, bool bidirectional,
                                      bool batch_first, c10::string_view cell, bool recompute,
                                      const OptionalTensor& reset, OptionalList reset_hx,
                                      const OptionalTensor& lengths, bool cells) {
  const Layers a{find_cell("layers_from_zeros", cell),
                 /*hx=*/{},
                 params,
                 has_biases,
                 num_layers,
                 dropout,
                 train,
                 bidirectional,
                 recompute,
                 reset,
                 reset_hx.value_or(at::TensorList()),
                 lengths,
                 cells,
                 /*zeros=*/true};
  TORCH_CHECK(!cells || a.has_c(), a.op(), ": cells must be False, got True: this cell has no c");
  TORCH_CHECK(!cells || !is_formula(a.cell), a.op(), ": cells must be False for a Cell, got True");
  const LayersResults found = run_either(input, batch_sizes, batch_first, a);
  std::vector<Tensor> results{found.output, found.h_n};
  if (a.has_c()) results.push_back(found.c_n);
  if (cells) results.push_back(found.cells);
  return results;
}

std::vector<Tensor> recurrent_layers(const Tensor& input, const OptionalTensor& batch_sizes,
                                     at::TensorList hx, at::TensorList params, bool has_biases,
                                     int64_t num_layers, double dropout, bool train,
                                     bool bidirectional, bool batch_first, c10::string_view cell,
                                     bool recompute, const OptionalTensor& reset,
                                     OptionalList reset_hx, const OptionalTensor& lengths) {
  Layers a{find_cell("recurrent_layers", cell),
           hx,
           params,
           has_biases,
           num_layers,
           dropout,
           train,
           bidirectional,
           recompute,
           reset,
           reset_hx.value_or(at::TensorList()),
           lengths};
  a.zeros = hx.empty();
  const LayersResults found = run_either(input, batch_sizes, batch_first, a);
  std::vector<Tensor> results{found.output, found.h_n};
  if (a.has_c()) results.push_back(found.c_n);
  return results;
}

template <CellKind cell>
void register_pair(torch::Library& m, const std::string& name) {
  m.impl((name + ".input").c_str(), pair_input<cell, false>);
  m.impl((name + ".data").c_str(), pair_data<cell, false>);
  m.impl((name + ".input_cells").c_str(), pair_input<cell, true>);
  m.impl((name + ".data_cells").c_str(), pair_data<cell, true>);
}

template <CellKind cell>
void register_of_h(torch::Library& m, const std::string& name) {
  m.impl((name + ".input").c_str(), h_input<cell>);
  m.impl((name + ".data").c_str(), h_data<cell>);
}

void register_layers(torch::Library& m) {
  register_pair<CellKind::kLltm>(m, "lltm");
  register_pair<CellKind::kLstm>(m, "lstm");
  register_of_h<CellKind::kGru>(m, "gru");
  register_of_h<CellKind::kRnnTanh>(m, "rnn_tanh");
  register_of_h<CellKind::kRnnRelu>(m, "rnn_relu");
  m.impl("layers_from_zeros", layers_from_zeros);
  m.impl("recurrent_layers", recurrent_layers);
}

}  // namespace

TORCH_LIBRARY_IMPL(treadle, CompositeImplicitAutograd, m) { register_layers(m); }

// vmap decomposes the ops only if they are registered for this key.
TORCH_LIBRARY_IMPL(treadle, FuncTorchBatchedDecomposition, m) { register_layers(m); }

}  // namespace treadle
