// lltm: layers of LLTM cells, called as aten::lstm is. Unpacks the lists, drops out between layers,
// and leaves the rest to lltm_layer; so it has every device and derivative that lltm_layer has.
#include <ATen/Functions.h>
#include <torch/library.h>

#include "lltm_layer_check.h"
#include "treadle/ops.h"

namespace treadle {
namespace {

const auto& layer_op() {
  static const auto op = find_op<LayerSignature>("treadle::lltm_layer");
  return op;
}

// Tensors k, k + each, ... of a layer's: one of each direction, stacked.
Tensor of_directions(at::TensorList params, int64_t each, int64_t k) {
  if (static_cast<int64_t>(params.size()) == each) return params[k].unsqueeze(0);
  return at::stack({params[k], params[each + k]});
}

LayerResults run(const Tensor& input, const OptionalTensor& batch_sizes, at::TensorList hx,
                 at::TensorList params, bool has_biases, int64_t num_layers, double dropout,
                 bool train, bool bidirectional, bool recompute) {
  check_lltm_lists(hx, params, has_biases, num_layers, bidirectional);
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
        has_biases ? OptionalTensor(of_directions(own, each, 2)) : std::nullopt, recompute, "auto");
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

// torch.vmap takes an op apart only if it is told to.
TORCH_LIBRARY_IMPL(treadle, FuncTorchBatchedDecomposition, m) {
  m.impl("lltm.input", lltm_input);
  m.impl("lltm.data", lltm_data);
}

}  // namespace treadle
