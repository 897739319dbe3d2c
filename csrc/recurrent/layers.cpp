// lltm: layers of LLTM cells, with the arguments of aten::lstm. It unpacks the lists, applies
// dropout between layers and calls recurrent_layer, so it has every device and derivative that
// recurrent_layer has.
#include <ATen/Functions.h>

#include "common/check.h"
#include "recurrent/check.h"
#include "treadle/ops.h"

namespace treadle {
namespace {

const auto& layer_op() {
  static const auto op = find_op<LayerSignature>("treadle::recurrent_layer");
  return op;
}

void check_lists(at::TensorList hx, at::TensorList params, bool has_biases, int64_t num_layers,
                 bool bidirectional) {
  TORCH_CHECK(hx.size() == 2, "lltm: hx must be two tensors, h0 and c0, got ", hx.size());
  TORCH_CHECK(num_layers >= 1, "lltm: num_layers must be at least 1, got ", num_layers);
  const int64_t directions = bidirectional ? 2 : 1, each = has_biases ? 3 : 2;
  const int64_t count = num_layers * directions * each;
  TORCH_CHECK(static_cast<int64_t>(params.size()) == count, "lltm: params must be ", each,
              " tensors for each of ", num_layers * directions, " layers and directions, ", count,
              " in all, got ", params.size());
  // The directions are stacked, which would silently promote different dtypes.
  for (int64_t k = 0; k < count; ++k) {
    if (k / each % directions == 0) continue;
    const std::string name = "params[" + std::to_string(k) + "]";
    const std::string first = "params[" + std::to_string(k - each) + "]";
    check_like("lltm", name.c_str(), params[k], first.c_str(), params[k - each]);
    check_shape("lltm", name.c_str(), ("that of " + first).c_str(), params[k],
                params[k - each].sym_sizes());
  }
  const char* names[] = {"h0", "c0"};
  for (int k = 0; k < 2; ++k) {
    TORCH_CHECK(hx[k].dim() == 3 && hx[k].sym_size(0) == num_layers * directions,
                "lltm: ", names[k],
                " must have shape [L*D, B, H] with L*D = ", num_layers * directions, ", got ",
                hx[k].sym_sizes());
  }
}

// All of them: stacking would read those of two directions, and lltm_layer sees one layer's alone.
void check_list_storages(at::TensorList hx, at::TensorList params) {
  check_composite_storage("lltm", "h0", hx[0]);
  check_composite_storage("lltm", "c0", hx[1]);
  for (size_t k = 0; k < params.size(); ++k) {
    const std::string name = "params[" + std::to_string(k) + "]";
    check_composite_storage("lltm", name.c_str(), params[k]);
  }
}

// Tensors k, k + each, ... of a layer's: one of each direction, stacked.
Tensor of_directions(at::TensorList params, int64_t each, int64_t k) {
  if (static_cast<int64_t>(params.size()) == each) return params[k].unsqueeze(0);
  return at::stack({params[k], params[each + k]});
}

LayerResults run(const Tensor& input, const OptionalTensor& batch_sizes, at::TensorList hx,
                 at::TensorList params, bool has_biases, int64_t num_layers, double dropout,
                 bool train, bool bidirectional, bool recompute) {
  const LayerCaller caller("lltm");
  check_lists(hx, params, has_biases, num_layers, bidirectional);
  check_list_storages(hx, params);
  const int64_t directions = bidirectional ? 2 : 1, each = has_biases ? 3 : 2;
  Tensor x = input;
  std::vector<Tensor> h_n, c_n;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    if (layer > 0 && dropout != 0 && train) x = at::dropout(x, dropout, train);
    const int64_t first = layer * directions;
    const auto own = params.slice(first * each, directions * each);
    Tensor h, c;
    std::tie(x, h, c) = layer_op().call(
        x, batch_sizes, hx[0].narrow(0, first, directions), hx[1].narrow(0, first, directions),
        of_directions(own, each, 0), of_directions(own, each, 1),
        has_biases ? OptionalTensor(of_directions(own, each, 2)) : std::nullopt, std::nullopt,
        cell_info(CellKind::kLltm).name, recompute, "auto");
    h_n.push_back(h);
    c_n.push_back(c);
  }
  if (num_layers == 1) return {x, h_n[0], c_n[0]};
  return {x, at::cat(h_n), at::cat(c_n)};
}

LayerResults lltm_input(const Tensor& input, at::TensorList hx, at::TensorList params,
                        bool has_biases, int64_t num_layers, double dropout, bool train,
                        bool bidirectional, bool batch_first, bool recompute) {
  TORCH_CHECK(input.dim() == 3, "lltm: input must have shape ",
              batch_first ? "[B, T, I]" : "[T, B, I]", ", got ", input.sym_sizes());
  auto [output, h_n, c_n] =
      run(batch_first ? input.transpose(0, 1) : input, std::nullopt, hx, params, has_biases,
          num_layers, dropout, train, bidirectional, recompute);
  return {batch_first ? output.transpose(0, 1) : output, h_n, c_n};
}

LayerResults lltm_data(const Tensor& data, const Tensor& batch_sizes, at::TensorList hx,
                       at::TensorList params, bool has_biases, int64_t num_layers, double dropout,
                       bool train, bool bidirectional, bool recompute) {
  return run(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional,
             recompute);
}

const auto& input_op() {
  static const auto op =
      find_op<LayerResults(const Tensor&, at::TensorList, at::TensorList, bool, int64_t, double,
                           bool, bool, bool, bool)>("treadle::lltm", "input");
  return op;
}

const auto& data_op() {
  static const auto op =
      find_op<LayerResults(const Tensor&, const Tensor&, at::TensorList, at::TensorList, bool,
                           int64_t, double, bool, bool, bool)>("treadle::lltm", "data");
  return op;
}

}  // namespace

LayerResults lltm(const Tensor& input, at::TensorList hx, at::TensorList params, bool has_biases,
                  int64_t num_layers, double dropout, bool train, bool bidirectional,
                  bool batch_first, bool recompute) {
  return input_op().call(input, hx, params, has_biases, num_layers, dropout, train, bidirectional,
                         batch_first, recompute);
}

LayerResults lltm(const Tensor& data, const Tensor& batch_sizes, at::TensorList hx,
                  at::TensorList params, bool has_biases, int64_t num_layers, double dropout,
                  bool train, bool bidirectional, bool recompute) {
  return data_op().call(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train,
                        bidirectional, recompute);
}

TORCH_LIBRARY_IMPL(treadle, CompositeImplicitAutograd, m) {
  m.impl("lltm.input", lltm_input);
  m.impl("lltm.data", lltm_data);
}

// Without this vmap does not decompose the op.
TORCH_LIBRARY_IMPL(treadle, FuncTorchBatchedDecomposition, m) {
  m.impl("lltm.input", lltm_input);
  m.impl("lltm.data", lltm_data);
}

}  // namespace treadle
