// Boxed kernels that serve any op: vmap, autocast, version counters, a device without a kernel.
// An op takes each with one registration line.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace treadle {

using OperatorHandle = c10::OperatorHandle;
using Stack = torch::jit::Stack;

// vmap of an elementwise op: the batch goes first and ranks are aligned, so that broadcasting
// does the rest. In place, the written argument must be batched if any argument is.
void elementwise_batch_rule(const OperatorHandle& op, Stack* stack);

// vmap of an op whose tensors have rank `rank`, or one more with N independent problems in front.
// Bit i of `rows`: argument i has rows first, and rows are independent of each other. Where only
// such arguments are batched the batch folds into the rows; otherwise every tensor gets N in front.
void batch_problems(const OperatorHandle& op, Stack* stack, uint64_t rows, int64_t rank);
template <uint64_t rows, int64_t rank>
void cell_batch_rule(const OperatorHandle& op, Stack* stack) {
  batch_problems(op, stack, rows, rank);
}

// vmap of a linear layer: argument `weight` is [O, I], or [N, O, I] for N layers, and arguments
// with a bit in `rows` have any leading dimensions. Where only such arguments are batched the batch
// is one more of these; otherwise every tensor gets N in front, and N layers take the batch in.
void batch_linear(const OperatorHandle& op, Stack* stack, uint64_t rows, size_t weight);
template <uint64_t rows, size_t weight>
void linear_batch_rule(const OperatorHandle& op, Stack* stack) {
  batch_linear(op, stack, rows, weight);
}

// After an op that writes into arguments: autograd notices that saved values have changed.
void version_counter_rule(const OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack);

// The kernel of every backend that has none.
void no_backend_rule(const OperatorHandle& op, Stack* stack);

// Casts the floating-point tensors of a call to autocast's dtype; argument `keep` stays if float32.
inline constexpr size_t kNoneKept = 64;
void autocast_arguments(const OperatorHandle& op, Stack* stack, c10::DeviceType device,
                        size_t keep);
template <c10::DeviceType device, size_t keep>
void autocast_rule(const OperatorHandle& op, Stack* stack) {
  autocast_arguments(op, stack, device, keep);
}

#define TREADLE_RULE(...) torch::CppFunction::makeFromBoxedFunction<&__VA_ARGS__>()

}  // namespace treadle
