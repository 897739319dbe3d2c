// lltm_layer under vmap and under autocast.
//
// Rows are independent. Where only arguments with rows are batched, the batch folds into them: N
// samples of [..., B, X] become [..., B * N, X] with the samples of a row side by side. So a packed
// batch stays sorted by length, and each of batch_sizes counts N times. Gradients of weights are
// sums over rows; where these are needed, or weights are batched, the op runs N times in a loop.
#include "common/vmap.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "common/rules.h"

namespace treadle {
namespace {

using Argument = BatchedCall::Argument;

// Positions in the schema of an op.
struct Layout {
  size_t input, batch_sizes, h0;
  uint64_t rows;                    // bit i: argument i has rows, in its last dimension but one
  uint64_t state_results;           // bit i: result i has the rows of h0, else those of input
  std::optional<size_t> recompute;  // result 3 is then [0], without a batch
  std::optional<size_t> mask;       // of a backward op
};

constexpr Layout kLayer{0, 1, 2, 0b1101, 0b110, std::nullopt, std::nullopt};
constexpr Layout kForward{0, 1, 2, 0b1101, 0b110, 7, std::nullopt};
constexpr Layout kBackward{3, 4, 5, 0b110001101111, 0b110, std::nullopt, 14};

void fold(const BatchedCall& call, const Layout& layout) {
  const auto rows = [&](size_t position) {
    const auto shape = call.find(position)->shape();
    return shape.size() < 2 ? c10::SymInt(0) : shape[shape.size() - 2];  // the op refuses the first
  };
  const c10::SymInt input_rows = rows(layout.input), state_rows = rows(layout.h0);
  const Stack results = call.run([&](const Argument& a) {
    if (a.position == layout.batch_sizes) return a.value.mul(Scalar(call.size()));
    if (!call.has_rows(a)) return a.value;
    // With `recompute` gates are [0]: they have no rows.
    if (a.rank() < 2) return a.batch ? a.value.new_empty({0}) : a.value;
    return call.folded(a, -2);
  });
  for (size_t i = 0; i < results.size(); ++i) {
    const Tensor& t = results[i].toTensor();
    if (!t.defined() || t.dim() < 2) {
      call.give(t);
      continue;
    }
    const bool of_state = (layout.state_results >> i & 1) != 0;
    const c10::SymInt& own = of_state ? state_rows : input_rows;
    call.give(t.unflatten_symint(-2, {own, call.size()}), t.dim() - 1);
  }
}

void loop(const BatchedCall& call, const Layout& layout) {
  const int64_t count = call.size().guard_int(__FILE__, __LINE__);
  std::vector<Stack> samples;
  // Empty batch: one run on zeros gives the shapes of the results.
  for (int64_t n = 0; n < std::max<int64_t>(count, 1); ++n) {
    samples.push_back(call.run([&](const Argument& a) {
      if (!a.batch) return a.value;
      if (count > 0) return a.value.select(*a.batch, n);
      return at::zeros_symint(a.shape(), a.value.options());
    }));
  }
  const bool no_gates = layout.recompute && call.value(*layout.recompute).toBool();
  for (size_t i = 0; i < samples[0].size(); ++i) {
    std::vector<Tensor> parts;
    for (const auto& results : samples) parts.push_back(results[i].toTensor());
    if (!parts[0].defined() || (no_gates && i == 3)) {
      call.give(parts[0]);
    } else {
      call.give(at::stack(parts).narrow(0, 0, count), 0);
    }
  }
}

void layer_batches(const OperatorHandle& op, Stack* stack, const Layout& layout) {
  const BatchedCall call(op, stack, layout.rows);
  const Argument* batch_sizes = call.find(layout.batch_sizes);
  TORCH_CHECK(batch_sizes == nullptr || !batch_sizes->batch, call.op_name(),
              ": batch_sizes must be the same for every sample of vmap, got a batch of them");
  if (!call.any()) {
    for (const auto& result : call.run([](const Argument& a) { return a.value; })) {
      call.give(result.toTensor());
    }
    return;
  }
  bool by_rows = call.only_rows() && call.size() != 0;
  if (layout.mask) {
    const auto mask = call.value(*layout.mask).toBoolList();
    by_rows &= !mask[3] && !mask[4] && !mask[5];
  }
  return by_rows ? fold(call, layout) : loop(call, layout);
}

template <const Layout& layout>
void layer_batch_rule(const OperatorHandle& op, Stack* stack) {
  layer_batches(op, stack, layout);
}

}  // namespace

TORCH_LIBRARY_IMPL(treadle, FuncTorchBatched, m) {
  m.impl("lltm_layer", TREADLE_RULE(layer_batch_rule<kLayer>));
  m.impl("lltm_layer_forward", TREADLE_RULE(layer_batch_rule<kForward>));
  m.impl("lltm_layer_backward", TREADLE_RULE(layer_batch_rule<kBackward>));
}

// lltm_layer runs in autocast's dtype, as a matrix product does; c0 (3) keeps float32.
TORCH_LIBRARY_IMPL(treadle, AutocastCPU, m) {
  m.impl("lltm_layer", TREADLE_RULE(autocast_rule<c10::DeviceType::CPU, 3>));
}
TORCH_LIBRARY_IMPL(treadle, AutocastCUDA, m) {
  m.impl("lltm_layer", TREADLE_RULE(autocast_rule<c10::DeviceType::CUDA, 3>));
}

}  // namespace treadle
