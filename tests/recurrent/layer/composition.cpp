// Defines an op that calls LayerComposition for any cell. test_composition.py compiles it.
#include "recurrent/layer/composition.h"

namespace treadle {
namespace {

using Tensors = std::vector<Tensor>;
using Given = c10::List<OptionalTensor>;

Tensor at(const Given& given, size_t k) { return value_or_undefined(given.get(k)); }

// `given` contains input, h0, c0, weight_ih, weight_hh, bias_ih and bias_hh.
LayerArguments arguments(const Given& given, const OptionalTensor& batch_sizes = {}) {
  LayerArguments found;
  found.input = at(given, 0);
  found.h0 = at(given, 1);
  found.c0 = at(given, 2);
  found.weight_ih = at(given, 3);
  found.weight_hh = at(given, 4);
  found.bias_ih = at(given, 5);
  found.bias_hh = at(given, 6);
  found.batch_sizes = value_or_undefined(batch_sizes);
  return found;
}

LayerOutputs outputs(const Given& given) {
  return {at(given, 0), at(given, 1), at(given, 2), Tensor()};
}

Given optionals(const Tensors& found) {
  Given result;
  for (const auto& t : found) result.push_back(optional(t));
  return result;
}

// The tangents of output, h_n and c_n, then those of the arguments' gradients. An undefined tensor
// becomes None.
Given derivatives(std::string_view cell, const Given& given, const OptionalTensor& batch_sizes,
                  const Given& tangents, const Given& grads, const Given& grad_tangents) {
  int kind = 0;
  while (cell != kCells[kind].name) ++kind;
  LayerArguments of = arguments(given, batch_sizes);
  of.cell = static_cast<CellKind>(kind);
  LayerComposition layer("derivatives", of);
  const auto moved = layer.jvp(arguments(tangents));
  const auto found = layer.vjp_tangent(outputs(grads), outputs(grad_tangents));
  return optionals({moved.output, moved.h_n, moved.c_n, found.input, found.h0, found.c0,
                    found.weight_ih, found.weight_hh, found.bias_ih, found.bias_hh});
}

}  // namespace

TORCH_LIBRARY(treadle_composition, m) {
  m.def(
      "derivatives(str cell, Tensor?[] arguments, Tensor? batch_sizes, Tensor?[] tangents, "
      "Tensor?[] grads, Tensor?[] grad_tangents) -> Tensor?[]",
      derivatives);
}

// Under vmap, the ops that `derivatives` calls have their own batching rules.
TORCH_LIBRARY_IMPL(treadle_composition, FuncTorchBatched, m) { m.impl("derivatives", derivatives); }

}  // namespace treadle
