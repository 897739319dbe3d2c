// vmap of sine_linear_jet: a batch of jets becomes another dimension of points, after P. For a
// batch of weights or of their gradients, which are sums over the points, the op runs once per
// sample.
#include "common/vmap.h"
#include "sine_linear/jet.h"

namespace treadle {

using Argument = BatchedCall::Argument;

static void check_rank(const BatchedCall& call, const Argument& a, bool is_jet, bool is_weight) {
  // With the batch dimension, a tensor of lower rank would look like a jet.
  TORCH_CHECK(!is_jet || a.rank() >= 2, call.op_name(), ": ", call.name(a),
              " must have shape [P, ..., I], got ", a.shape());
  TORCH_CHECK(!is_weight || a.rank() == 2, call.op_name(), ": ", call.name(a),
              " must have shape [O, I], got ", a.shape());
}

// Bit i of `jets` is set if argument i has shape [P, ..., C], and bit i of `phases` if it has shape
// [..., C]. The first result has the batch after P; any others have it in front.
static void batch_jet(const OperatorHandle& op, Stack* stack, uint64_t jets, uint64_t phases,
                      size_t weight, bool sums) {
  const BatchedCall call(op, stack, jets | phases);
  const auto is_jet = [&](size_t position) { return (jets >> position & 1) != 0; };
  for (const auto& a : call.tensors()) {
    check_rank(call, a, is_jet(a.position), a.position == weight);
  }
  if (!call.any()) return call.run_unbatched();
  if (sums || !call.only_rows()) return call.run_each();
  const Stack found = call.run([&](const Argument& a) {
    return call.has_rows(a) ? call.with_batch(a, is_jet(a.position) ? 1 : 0) : a.value;
  });
  call.give(found[0].toTensor(), 1);
  for (size_t r = 1; r < found.size(); ++r) call.give(found[r].toTensor(), 0);
}

static void forward_batch_rule(const OperatorHandle& op, Stack* stack) {
  batch_jet(op, stack, /*jets=*/0b1, /*phases=*/0, /*weight=*/1, /*sums=*/false);
}

static void jet_backward_batch_rule(const OperatorHandle& op, Stack* stack) {
  const auto mask = stack->back().toBoolList();
  batch_jet(op, stack, /*jets=*/0b10011, /*phases=*/0b100000, /*weight=*/2, mask[1] || mask[2]);
}

TORCH_LIBRARY_IMPL(treadle, FuncTorchBatched, m) {
  m.impl("sine_linear_jet", TREADLE_RULE(forward_batch_rule));
  m.impl("sine_linear_jet_forward", TREADLE_RULE(forward_batch_rule));
  m.impl("sine_linear_jet_backward", TREADLE_RULE(jet_backward_batch_rule));
}

}  // namespace treadle
