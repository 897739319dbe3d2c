#include "common/vmap.h"

#include <ATen/Functions.h>
#include <ATen/functorch/PlumbingHelper.h>
#include <ATen/native/TypeProperties.h>

#include <algorithm>

#include "common/rules.h"

namespace treadle {

namespace functorch = at::functorch;

// ---- a call

c10::SymDimVector BatchedCall::Argument::shape() const {
  c10::SymDimVector found(value.sym_sizes().begin(), value.sym_sizes().end());
  if (batch) found.erase(found.begin() + *batch);
  return found;
}

static int64_t current_level() {
  const auto layer = functorch::maybeCurrentDynamicLayer();
  TORCH_INTERNAL_ASSERT(layer.has_value());
  return layer->layerId();
}

BatchedCall::BatchedCall(const OperatorHandle& op, Stack* stack, uint64_t rows)
    : op_(op),
      stack_(stack),
      rows_(rows),
      level_(current_level()),
      arguments_(torch::jit::pop(*stack, op.schema().arguments().size())),
      only_rows_(rows != 0) {
  for (size_t i = 0; i < arguments_.size(); ++i) {
    if (!arguments_[i].isTensor() || !arguments_[i].toTensor().defined()) continue;
    auto [value, batch] = functorch::unwrapTensorAtLevel(arguments_[i].toTensor(), level_);
    const auto* alias = op.schema().arguments()[i].alias_info();
    tensors_.push_back({i, value, batch, alias != nullptr && alias->isWrite()});
    if (!batch) continue;
    any_ = true;
    only_rows_ &= has_rows(tensors_.back());
    size_ = value.sym_size(*batch);
  }
}

const BatchedCall::Argument* BatchedCall::find(size_t position) const {
  for (const auto& a : tensors_) {
    if (a.position == position) return &a;
  }
  return nullptr;
}

std::string BatchedCall::op_name() const { return public_name(op_); }

void BatchedCall::check_written() const {
  for (const auto& a : tensors_) {
    TORCH_CHECK(!any_ || !a.written || a.batch, op_name(),
                ": the argument written in place must be batched by vmap if another is, got one "
                "that is not");
  }
}

Tensor BatchedCall::with_batch(const Argument& a, int64_t dim) const {
  if (a.batch) return a.value.movedim(*a.batch, dim);
  const Tensor t = a.value.unsqueeze(dim);
  c10::SymDimVector shape(t.sym_sizes().begin(), t.sym_sizes().end());
  shape[dim < 0 ? shape.size() + dim : dim] = size_;
  return t.expand_symint(shape);
}

Tensor BatchedCall::folded(const Argument& a, int64_t dim) const {
  const Tensor t = with_batch(a, dim);
  return dim < 0 ? t.flatten(dim - 1, dim) : t.flatten(dim, dim + 1);
}

void BatchedCall::give(const Tensor& t, int64_t dim) const {
  stack_->emplace_back(t.defined() ? functorch::makeBatched(t, dim, level_) : t);
}

void BatchedCall::run_each(std::optional<size_t> same) const {
  const int64_t count = size_.guard_int(__FILE__, __LINE__);
  std::vector<Stack> samples;
  // For an empty batch, one run on zeros gives the shapes of the results.
  for (int64_t n = 0; n < std::max<int64_t>(count, 1); ++n) {
    samples.push_back(run([&](const Argument& a) {
      if (!a.batch) return a.value;
      if (count > 0) return a.value.select(*a.batch, n);
      return at::zeros_symint(a.shape(), a.value.options());
    }));
  }
  for (size_t i = 0; i < samples[0].size(); ++i) {
    std::vector<Tensor> parts;
    for (const auto& results : samples) parts.push_back(results[i].toTensor());
    if (!parts[0].defined() || i == same) {
      give(parts[0]);
    } else {
      give(at::stack(parts).narrow(0, 0, count), 0);
    }
  }
}

void BatchedCall::run_unbatched() const {
  for (const auto& result : run([](const Argument& a) { return a.value; })) {
    give(result.toTensor());
  }
}

// ---- elementwise ops

using Argument = BatchedCall::Argument;

// The result dtype of a sample. A 0-dim sample must not promote tensors with dimensions, even if
// the batch made it 1-dim.
static ScalarType promoted(const std::vector<Argument>& arguments) {
  at::native::ResultTypeState state;
  for (const auto& argument : arguments) {
    const std::vector<int64_t> shape(argument.rank() == 0 ? 0 : 1, 1);
    state = at::native::update_result_type_state(
        at::empty(shape, argument.value.options().device(at::kMeta)), state);
  }
  return at::native::result_type(state);
}

void elementwise_batch_rule(const OperatorHandle& op, Stack* stack) {
  const BatchedCall call(op, stack, /*rows=*/0);
  call.check_written();
  int64_t rank = 0;
  bool scalar_among_tensors = false;
  const Tensor* batched = nullptr;
  for (const auto& argument : call.tensors()) {
    rank = std::max(rank, argument.rank());
    if (argument.batch) batched = &argument.value;
  }
  for (const auto& argument : call.tensors()) {
    scalar_among_tensors |= argument.batch && argument.rank() == 0 && rank > 0;
  }
  const auto common = scalar_among_tensors ? promoted(call.tensors()) : ScalarType::Undefined;
  const Stack results = call.run([&](const Argument& argument) {
    if (!argument.batch) {
      // If all samples are 0-dim, arguments without a batch must promote like batched ones.
      const bool as_tensor =
          batched != nullptr && rank == 0 && argument.value.device() == batched->device();
      return as_tensor ? argument.value.unsqueeze(0) : argument.value;
    }
    Tensor t = call.with_batch(argument, 0);
    if (argument.written) return t;
    if (scalar_among_tensors && argument.rank() == 0) t = t.to(common);
    for (int64_t r = argument.rank(); r < rank; ++r) t = t.unsqueeze(1);
    return t;
  });
  for (const auto& result : results) {
    if (call.any()) {
      call.give(result.toTensor(), 0);
    } else {
      call.give(result.toTensor());
    }
  }
}

// ---- problems and layers

// Runs the op after moving the batch to the front of every argument for which takes() is true. With
// `fold`, the batch is folded into the leading dimension (problems, or independent rows).
template <class Takes>
static void run_in_front(const BatchedCall& call, bool fold, const Takes& takes) {
  c10::SymInt inner;
  const Stack results = call.run([&](const Argument& a) {
    if (!call.any() || !takes(a)) return a.value;
    if (!fold) return call.with_batch(a, 0);
    const Tensor t = call.folded(a, 0);
    inner = a.shape()[0];
    return t;
  });
  for (const auto& result : results) {
    Tensor t = result.toTensor();
    if (!call.any()) {
      call.give(t);
      continue;
    }
    if (fold && t.defined()) t = t.unflatten_symint(0, {call.size(), inner});
    call.give(t, 0);
  }
}

void batch_problems(const OperatorHandle& op, Stack* stack, uint64_t rows, int64_t rank) {
  const BatchedCall call(op, stack, rows);
  bool problems = false;
  for (const auto& argument : call.tensors()) problems |= argument.rank() > rank;
  // Fold into a leading N if there is one; otherwise into rows, if only arguments with rows are
  // batched.
  const bool by_rows = call.only_rows() && !problems;
  run_in_front(call, by_rows || problems,
               [&](const Argument& a) { return !by_rows || call.has_rows(a); });
}

void batch_linear(const OperatorHandle& op, Stack* stack, uint64_t rows, size_t weight) {
  const BatchedCall call(op, stack, rows);
  bool many = false;
  for (const auto& argument : call.tensors()) {
    const bool is_weight = argument.position == weight;
    // With a batch in front, arguments of lower rank would look like layers or rows.
    const bool fits =
        is_weight ? argument.rank() >= 2 : argument.rank() >= 1 || !call.has_rows(argument);
    TORCH_CHECK(fits, call.op_name(), ": ", call.name(argument), " must have shape ",
                is_weight ? "[O, I]" : "[..., I]", ", got ", argument.shape());
    many |= is_weight && argument.rank() == 3;
  }
  const bool all = many || !call.only_rows();
  run_in_front(call, many, [&](const Argument& a) { return all || call.has_rows(a); });
}

}  // namespace treadle
