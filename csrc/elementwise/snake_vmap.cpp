// vmap of snake. In the forward pass the batch is folded into N if only x is batched, and otherwise
// into C. In the backward pass it is always folded into C, because the gradients of alpha and beta
// differ between samples.
#include "common/vmap.h"
#include "elementwise/snake.h"
#include "treadle/ops.h"

namespace treadle {
namespace {

using Argument = BatchedCall::Argument;

// The number of channels of a sample of x. Also checks the shapes of the parameters' samples,
// because a batched 0-dim parameter would otherwise look like a vector of channels.
c10::SymInt checked_channels(const BatchedCall& call, size_t x) {
  const c10::SymDimVector shape = call.find(x)->shape();
  const c10::SymInt channels = snake_channels(shape);
  for (size_t i = x + 1; i <= x + 2; ++i) {
    const Argument* parameter = call.find(i);
    if (parameter == nullptr) continue;
    check_snake_parameter(call.op_name().c_str(), call.name(*parameter).c_str(), parameter->shape(),
                          channels);
  }
  return channels;
}

// Reshapes x or grad to [N, B C, ...] if its samples are [N, C, ...], or to [1, B, ...] if its
// samples have fewer dimensions.
Tensor into_channels(const BatchedCall& call, const Argument& a) {
  if (a.rank() < 2) return call.with_batch(a, 0).unsqueeze(0);
  return call.with_batch(a, 1).flatten(1, 2);
}

void give_channels(const BatchedCall& call, const Tensor& t, int64_t rank,
                   const c10::SymInt& channels) {
  if (!t.defined()) return call.give(t);
  if (rank < 2) return call.give(t.squeeze(0), 0);
  call.give(t.unflatten_symint(1, {call.size(), channels}), 1);
}

// A parameter as [B C].
Tensor parameter_channels(const BatchedCall& call, const Argument& a, const c10::SymInt& channels) {
  return call.with_batch(a, 0).expand_symint({call.size(), channels}).flatten();
}

void give_parameter(const BatchedCall& call, const Tensor& grad, const Argument* parameter,
                    const c10::SymInt& channels) {
  if (!grad.defined()) return call.give(grad);
  Tensor t = grad.view_symint({call.size(), channels});
  if (parameter->shape()[0] != channels) t = t.sum(1, /*keepdim=*/true);
  call.give(t, 0);
}

void snake_batch_rule(const OperatorHandle& op, Stack* stack) {
  const BatchedCall call(op, stack, /*rows=*/0b1);
  if (!call.any()) return call.run_unbatched();
  const c10::SymInt channels = checked_channels(call, 0);
  const Argument& x = *call.find(0);
  if (call.only_rows() && x.rank() >= 2) {
    const Stack results =
        call.run([&](const Argument& a) { return a.position == 0 ? call.folded(a, 0) : a.value; });
    return call.give(results[0].toTensor().unflatten_symint(0, {call.size(), x.shape()[0]}), 0);
  }
  const Stack results = call.run([&](const Argument& a) {
    return a.position == 0 ? into_channels(call, a) : parameter_channels(call, a, channels);
  });
  give_channels(call, results[0].toTensor(), x.rank(), channels);
}

void snake_backward_batch_rule(const OperatorHandle& op, Stack* stack) {
  const BatchedCall call(op, stack, /*rows=*/0);
  if (!call.any()) return call.run_unbatched();
  const c10::SymInt channels = checked_channels(call, 1);
  const Stack results = call.run([&](const Argument& a) {
    return a.position < 2 ? into_channels(call, a) : parameter_channels(call, a, channels);
  });
  give_channels(call, results[0].toTensor(), call.find(1)->rank(), channels);
  for (size_t i = 1; i <= 2; ++i) {
    give_parameter(call, results[i].toTensor(), call.find(i + 1), channels);
  }
}

// Copies the result of the functional op into x.
void snake_inplace_batch_rule(const OperatorHandle& op, Stack* stack) {
  Stack arguments(stack->end() - 5, stack->end());
  {
    const BatchedCall call(op, stack, /*rows=*/0);
    if (!call.any()) {
      call.run([](const Argument& a) { return a.value; });
      return;
    }
    call.check_written();
  }
  Tensor x = arguments[0].toTensor();
  const OptionalTensor beta = arguments[2].toOptional<Tensor>();
  x.copy_(SnakeOp::call(x, arguments[1].toTensor(), beta, arguments[3].toOptional<double>(),
                        arguments[4].toBool()));
}

}  // namespace

TORCH_LIBRARY_IMPL(treadle, FuncTorchBatched, m) {
  m.impl("snake", TREADLE_RULE(snake_batch_rule));
  m.impl("snake_", TREADLE_RULE(snake_inplace_batch_rule));
  m.impl("snake_backward", TREADLE_RULE(snake_backward_batch_rule));
}

}  // namespace treadle
