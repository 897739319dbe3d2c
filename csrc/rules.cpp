#include "rules.h"

#include <ATen/functorch/PlumbingHelper.h>
#include <ATen/native/TypeProperties.h>
#include <torch/csrc/autograd/function.h>

#include "dispatch.h"
#include "elementwise.h"

namespace treadle {
namespace {

namespace functorch = at::functorch;

struct Argument {
  size_t index;
  Tensor value;                 // without this level's batch, which is dimension `batch` of it
  std::optional<int64_t> batch;
  bool written;
  int64_t rank() const { return value.dim() - (batch ? 1 : 0); }
};

std::vector<Argument> tensor_arguments(const OperatorHandle& op, const Stack& stack,
                                       int64_t level) {
  std::vector<Argument> found;
  const auto& arguments = op.schema().arguments();
  const size_t base = stack.size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto& value = stack[base + i];
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    auto [tensor, batch] = functorch::unwrapTensorAtLevel(value.toTensor(), level);
    const auto* alias = arguments[i].alias_info();
    found.push_back({base + i, tensor, batch, alias != nullptr && alias->isWrite()});
  }
  return found;
}

// A 0-dim tensor must not promote the others, also when its batch has made it 1-dim.
ScalarType promoted(const std::vector<Argument>& arguments) {
  at::native::ResultTypeState state;
  for (const auto& argument : arguments) {
    const std::vector<int64_t> shape(argument.rank() == 0 ? 0 : 1, 1);
    state = at::native::update_result_type_state(
        at::empty(shape, argument.value.options().device(at::kMeta)), state);
  }
  return at::native::result_type(state);
}

}  // namespace

void elementwise_batch_rule(const OperatorHandle& op, Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::FuncTorchBatched);
  const auto layer = functorch::maybeCurrentDynamicLayer();
  TORCH_INTERNAL_ASSERT(layer.has_value());
  const int64_t level = layer->layerId();
  auto arguments = tensor_arguments(op, *stack, level);
  int64_t rank = 0;
  bool any_batched = false, scalar_among_tensors = false;
  for (const auto& argument : arguments) {
    rank = std::max(rank, argument.rank());
    any_batched |= argument.batch.has_value();
  }
  for (const auto& argument : arguments) {
    scalar_among_tensors |= argument.batch && argument.rank() == 0 && rank > 0;
  }
  const auto common = scalar_among_tensors ? promoted(arguments) : ScalarType::Undefined;
  for (auto& argument : arguments) {
    if (!argument.batch) {
      TORCH_CHECK(!(argument.written && any_batched), op.schema().name(),
                  ": the argument written in place must be batched by vmap if another is, got "
                  "one that is not");
      (*stack)[argument.index] = argument.value;
      continue;
    }
    Tensor t = argument.value.movedim(*argument.batch, 0);
    if (!argument.written) {
      if (scalar_among_tensors && argument.rank() == 0) t = t.to(common);
      for (int64_t r = argument.rank(); r < rank; ++r) t = t.unsqueeze(1);
    }
    (*stack)[argument.index] = t;
  }
  op.callBoxed(stack);
  if (!any_batched) return;
  for (size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); ++i) {
    (*stack)[i] = functorch::makeBatched((*stack)[i].toTensor(), 0, level);
  }
}

void version_counter_rule(const OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  std::vector<Tensor> written;
  const auto& arguments = op.schema().arguments();
  const size_t base = stack->size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = arguments[i].alias_info();
    if (alias != nullptr && alias->isWrite()) written.push_back((*stack)[base + i].toTensor());
  }
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    op.redispatchBoxed(keys & c10::after_ADInplaceOrView_keyset, stack);
  }
  for (const auto& t : written) torch::autograd::impl::bump_version(t);
}

void no_backend_rule(const OperatorHandle& op, Stack* stack) {
  for (const auto& value : torch::jit::last(*stack, op.schema().arguments().size())) {
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const auto& t = value.toTensor();
    TORCH_CHECK_NOT_IMPLEMENTED(false, op.schema().name().substr(9),
                                ": tensors must be dense and on a CPU or CUDA device, got a ",
                                t.layout(), " tensor on ", t.device());
  }
  TORCH_CHECK_NOT_IMPLEMENTED(false, op.schema().name(), ": a tensor is needed to pick a device");
}

}  // namespace treadle
