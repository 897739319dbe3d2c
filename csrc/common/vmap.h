// Batching rules for any op, registered with one line each, and building blocks for an op's own
// rule. A rule turns a call with batched arguments into a call without them: the batch becomes a
// leading dimension, or is folded into rows that are independent of each other.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/dispatch.h"

namespace treadle {

// For elementwise ops: moves the batch to the front and aligns the ranks, so that the arguments
// broadcast. In an in-place call, the argument that is written must be batched if any argument is.
void elementwise_batch_rule(const OperatorHandle& op, Stack* stack);

// For ops whose tensors have rank `rank`, or one more for N independent problems. Bit i of `rows`
// is set if the first dimension of argument i consists of independent rows. If only such arguments
// are batched, the batch is folded into the rows; otherwise every tensor gets a leading N.
void batch_problems(const OperatorHandle& op, Stack* stack, uint64_t rows, int64_t rank);
template <uint64_t rows, int64_t rank>
void cell_batch_rule(const OperatorHandle& op, Stack* stack) {
  batch_problems(op, stack, rows, rank);
}

// For a linear layer: `weight` is the index of the weight, [O, I], or [N, O, I] for N layers.
// Arguments with a bit in `rows` may have any leading dimensions. If only such arguments are
// batched, the batch becomes another leading dimension; otherwise every tensor gets a leading N,
// and the batch becomes N layers.
void batch_linear(const OperatorHandle& op, Stack* stack, uint64_t rows, size_t weight);
template <uint64_t rows, size_t weight>
void linear_batch_rule(const OperatorHandle& op, Stack* stack) {
  batch_linear(op, stack, rows, weight);
}

// A call with batched arguments, popped from the stack. vmap's dispatch key is disabled during the
// lifetime of this object. Bit i of `rows` is set if the batch can be folded into rows of
// argument i.
class BatchedCall {
 public:
  struct Argument {  // a defined tensor
    size_t position;
    Tensor value;                  // without this level's wrapper
    std::optional<int64_t> batch;  // the batch dimension of `value`
    bool written;

    int64_t rank() const { return value.dim() - (batch ? 1 : 0); }
    c10::SymDimVector shape() const;  // the shape of one sample
  };

  BatchedCall(const OperatorHandle& op, Stack* stack, uint64_t rows);

  const std::vector<Argument>& tensors() const { return tensors_; }
  const Argument* find(size_t position) const;
  const c10::IValue& value(size_t position) const { return arguments_[position]; }

  bool any() const { return any_; }              // whether any argument is batched
  bool only_rows() const { return only_rows_; }  // whether only arguments with rows are batched
  bool has_rows(const Argument& a) const { return (rows_ >> a.position & 1) != 0; }
  const c10::SymInt& size() const { return size_; }  // the batch size

  std::string op_name() const;
  // Raises if the op would write a batched result into an argument that is not batched.
  void check_written() const;
  const std::string& name(const Argument& a) const {
    return op_.schema().arguments()[a.position].name();
  }

  // The value with the batch as dimension `dim`; an argument without a batch is expanded.
  Tensor with_batch(const Argument& a, int64_t dim) const;
  // The value with the batch folded into dimension `dim` of a sample. If `dim` is counted from the
  // front, the batch is the outer index of the folded dimension. If it is counted from the end
  // (negative), the batch is the inner index, so that the samples of a row are adjacent.
  Tensor folded(const Argument& a, int64_t dim) const;

  // Runs the op with change(argument) in place of every tensor argument, and returns the results.
  template <class F>
  Stack run(const F& change) const {
    Stack stack(arguments_);
    for (const auto& a : tensors_) stack[a.position] = change(a);
    op_.callBoxed(&stack);
    return stack;
  }

  // Runs the op once per sample and pushes the results, stacked along a leading batch dimension.
  // The result with index `same` is the same for all samples and is pushed without a batch.
  void run_each(std::optional<size_t> same = std::nullopt) const;

  // Runs the op on the arguments, none of which is batched, and pushes the results.
  void run_unbatched() const;

  // Pushes a result onto the stack, without a batch or with the batch in dimension `dim`.
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
