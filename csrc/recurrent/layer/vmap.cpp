// recurrent_layer under vmap.
//
// Rows are independent. If only arguments with rows are batched, the batch is folded into the rows:
// N samples of [..., B, X] become [..., B * N, X] with the samples of a row adjacent. So a packed
// batch stays sorted by length, and batch_sizes is multiplied by N. Gradients of weights are sums
// over rows; if they are needed, or weights are batched, the op runs N times in a loop.
#include "common/vmap.h"

namespace treadle {
namespace {

using Argument = BatchedCall::Argument;

// Arguments that have rows, in their second-to-last dimension.
constexpr const char* kWithRows[] = {"input",    "h0",       "c0",     "grad_output",
                                     "grad_h_n", "grad_c_n", "output", "gates",
                                     "reset",    "reset_h",  "reset_c"};

// Positions in the schema of an op.
struct Layout {
  size_t input, batch_sizes, h0, recompute;
  std::optional<size_t> mask;   // argument of a backward op
  std::optional<size_t> gates;  // result of a forward op; its shape is [0] with `recompute`
  uint64_t rows = 0;            // bit i: argument i has rows

  explicit Layout(const c10::FunctionSchema& schema)
      : input(*schema.argumentIndexWithName("input")),
        batch_sizes(*schema.argumentIndexWithName("batch_sizes")),
        h0(*schema.argumentIndexWithName("h0")),
        recompute(*schema.argumentIndexWithName("recompute")),
        mask(schema.argumentIndexWithName("mask")) {
    for (const char* name : kWithRows) {
      if (const auto at = schema.argumentIndexWithName(name)) rows |= uint64_t{1} << *at;
    }
    if (schema.returns().back().name() == "gates") gates = schema.returns().size() - 1;
  }
};

// Where weights and biases, and reset_h and reset_c, begin in the backward op's mask and results.
constexpr size_t kWeights = 3, kResets = 7;

// Results 1 and 2 have the rows of h0, the others those of input.
bool of_state(size_t result) { return result == 1 || result == 2; }

void fold(const BatchedCall& call, const Layout& layout) {
  const auto rows = [&](size_t position) {
    const auto shape = call.find(position)->shape();
    return shape.size() < 2 ? c10::SymInt(0) : shape[shape.size() - 2];  // 0 makes the op raise
  };
  const c10::SymInt input_rows = rows(layout.input), state_rows = rows(layout.h0);
  const Stack results = call.run([&](const Argument& a) {
    if (a.position == layout.batch_sizes) return a.value.mul(Scalar(call.size()));
    if (!call.has_rows(a)) return a.value;
    // With `recompute`, gates has shape [0], without rows.
    if (a.rank() < 2) return a.batch ? a.value.new_empty({0}) : a.value;
    return call.folded(a, -2);
  });
  for (size_t i = 0; i < results.size(); ++i) {
    const Tensor& t = results[i].toTensor();
    if (!t.defined() || t.dim() < 2) {
      call.give(t);
      continue;
    }
    // Gradients of reset_h and reset_c can have the rows of h0 or those of input.
    const c10::SymInt own = i >= kResets  ? t.sym_size(-2) / call.size()
                            : of_state(i) ? state_rows
                                          : input_rows;
    call.give(t.unflatten_symint(-2, {own, call.size()}), t.dim() - 1);
  }
}

void layer_batch_rule(const OperatorHandle& op, Stack* stack) {
  const Layout layout(op.schema());
  const BatchedCall call(op, stack, layout.rows);
  const Argument* batch_sizes = call.find(layout.batch_sizes);
  TORCH_CHECK(batch_sizes == nullptr || !batch_sizes->batch, call.op_name(),
              ": batch_sizes must be the same for every sample of vmap, got a batch of them");
  if (!call.any()) return call.run_unbatched();
  bool by_rows = call.only_rows() && call.size() != 0;
  if (layout.mask) {
    const auto mask = call.value(*layout.mask).toBoolList();
    for (size_t i = kWeights; i < kResets; ++i) by_rows &= !mask[i];
  }
  if (by_rows) return fold(call, layout);
  const bool no_gates = layout.gates && call.value(layout.recompute).toBool();
  call.run_each(no_gates ? layout.gates : std::nullopt);
}

}  // namespace

TORCH_LIBRARY_IMPL(treadle, FuncTorchBatched, m) {
  m.impl("recurrent_layer", TREADLE_RULE(layer_batch_rule));
  m.impl("recurrent_layer_forward", TREADLE_RULE(layer_batch_rule));
  m.impl("recurrent_layer_backward", TREADLE_RULE(layer_batch_rule));
}

}  // namespace treadle
