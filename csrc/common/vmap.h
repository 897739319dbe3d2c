// Rules for vmap that serve any op with one registration line, and building blocks for an op's own
// rule. A rule turns a call with batched arguments into a call without them: the batch becomes a
// leading dimension, or folds into rows that are independent of each other.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/dispatch.h"

namespace treadle {

// Elementwise ops: the batch goes first and ranks are aligned, so that broadcasting does the rest.
// In place, the written argument must be batched if any argument is.
void elementwise_batch_rule(const OperatorHandle& op, Stack* stack);

// Ops whose tensors have rank `rank`, or one more with N independent problems in front. Bit i of
// `rows`: argument i has rows first, and rows are independent of each other. Where only such
// arguments are batched the batch folds into the rows; otherwise every tensor gets N in front.
void batch_problems(const OperatorHandle& op, Stack* stack, uint64_t rows, int64_t rank);
template <uint64_t rows, int64_t rank>
void cell_batch_rule(const OperatorHandle& op, Stack* stack) {
  batch_problems(op, stack, rows, rank);
}

// A linear layer: argument `weight` is [O, I], or [N, O, I] for N layers, and arguments with a bit
// in `rows` have any leading dimensions. If only such arguments are batched, the batch becomes one
// more of these; otherwise every tensor gets N in front, and the batch becomes N layers.
void batch_linear(const OperatorHandle& op, Stack* stack, uint64_t rows, size_t weight);
template <uint64_t rows, size_t weight>
void linear_batch_rule(const OperatorHandle& op, Stack* stack) {
  batch_linear(op, stack, rows, weight);
}

// A call with batched arguments, taken off the stack. vmap's dispatch key is disabled during its
// lifetime. Bit i of `rows`: argument i has rows that can take the batch in.
class BatchedCall {
 public:
  struct Argument {  // a defined tensor
    size_t position;
    Tensor value;                  // without this level's batch,
    std::optional<int64_t> batch;  // which is this dimension of it
    bool written;

    int64_t rank() const { return value.dim() - (batch ? 1 : 0); }
    c10::SymDimVector shape() const;  // of one sample
  };

  BatchedCall(const OperatorHandle& op, Stack* stack, uint64_t rows);

  const std::vector<Argument>& tensors() const { return tensors_; }
  const Argument* find(size_t position) const;
  const c10::IValue& value(size_t position) const { return arguments_[position]; }

  bool any() const { return any_; }              // whether any argument is batched
  bool only_rows() const { return only_rows_; }  // whether only arguments with rows are batched
  bool has_rows(const Argument& a) const { return (rows_ >> a.position & 1) != 0; }
  const c10::SymInt& size() const { return size_; }  // of the batch

  std::string op_name() const;
  // Refuses to write what has a batch into an argument that has none.
  void check_written() const;
  const std::string& name(const Argument& a) const {
    return op_.schema().arguments()[a.position].name();
  }

  // The value with the batch as dimension `dim`; an argument without a batch is expanded.
  Tensor with_batch(const Argument& a, int64_t dim) const;
  // The batch folded into dimension `dim` of a sample: before it if `dim` is counted from the
  // front, after it if `dim` is counted from the end, so that the samples of a row are adjacent.
  Tensor folded(const Argument& a, int64_t dim) const;

  // The results of the op for change(argument) in place of every tensor argument.
  template <class F>
  Stack run(const F& change) const {
    Stack stack(arguments_);
    for (const auto& a : tensors_) stack[a.position] = change(a);
    op_.callBoxed(&stack);
    return stack;
  }

  // Runs the op sample by sample and returns the results with the samples in front; the result at
  // `same`, which the samples share, is returned as it is.
  void run_each(std::optional<size_t> same = std::nullopt) const;

  // Runs the op on the arguments as they are, none of which has a batch, and returns the results.
  void run_unbatched() const;

  // Returns a result, without a batch or with the batch in dimension `dim`.
  void give(const Tensor& t) const { stack_->emplace_back(t); }
  void give(const Tensor& t, int64_t dim) const;

 private:
  const OperatorHandle& op_;
  Stack* stack_;
  uint64_t rows_;
  c10::impl::ExcludeDispatchKeyGuard guard_{c10::DispatchKey::FuncTorchBatched};
  int64_t level_;
  Stack arguments_;
  std::vector<Argument> tensors_;
  bool any_ = false, only_rows_;
  c10::SymInt size_;
};

}  // namespace treadle
