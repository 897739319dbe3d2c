#include "rules.h"

#include <ATen/autocast_mode.h>
#include <ATen/functorch/PlumbingHelper.h>
#include <ATen/native/TypeProperties.h>
#include <torch/csrc/autograd/function.h>

#include "check.h"
#include "dispatch.h"
#include "elementwise.h"

namespace treadle {
namespace {

namespace functorch = at::functorch;

struct Argument {
  size_t index;
  Tensor value;  // without this level's batch, which is dimension `batch` of it
  std::optional<int64_t> batch;
  bool written;
  int64_t rank() const { return value.dim() - (batch ? 1 : 0); }
  c10::SymDimVector shape() const {
    c10::SymDimVector found(value.sym_sizes().begin(), value.sym_sizes().end());
    if (batch) found.erase(found.begin() + *batch);
    return found;
  }
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

c10::SymDimVector with_front(const c10::SymInt& size, c10::SymIntArrayRef rest) {
  c10::SymDimVector shape{size};
  shape.append(rest.begin(), rest.end());
  return shape;
}

}  // namespace

void elementwise_batch_rule(const OperatorHandle& op, Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::FuncTorchBatched);
  const auto layer = functorch::maybeCurrentDynamicLayer();
  TORCH_INTERNAL_ASSERT(layer.has_value());
  const int64_t level = layer->layerId();
  auto arguments = tensor_arguments(op, *stack, level);
  int64_t rank = 0;
  bool scalar_among_tensors = false;
  const Tensor* batched = nullptr;
  for (const auto& argument : arguments) {
    rank = std::max(rank, argument.rank());
    if (argument.batch) batched = &argument.value;
  }
  for (const auto& argument : arguments) {
    scalar_among_tensors |= argument.batch && argument.rank() == 0 && rank > 0;
  }
  const auto common = scalar_among_tensors ? promoted(arguments) : ScalarType::Undefined;
  for (auto& argument : arguments) {
    if (!argument.batch) {
      TORCH_CHECK(!(argument.written && batched != nullptr), op.schema().name(),
                  ": the argument written in place must be batched by vmap if another is, got "
                  "one that is not");
      // Where all are 0-dim, one without a batch promotes like one that has a batch.
      const bool as_tensor =
          batched != nullptr && rank == 0 && argument.value.device() == batched->device();
      (*stack)[argument.index] = as_tensor ? argument.value.unsqueeze(0) : argument.value;
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
  if (batched == nullptr) return;
  for (size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); ++i) {
    (*stack)[i] = functorch::makeBatched((*stack)[i].toTensor(), 0, level);
  }
}

namespace {

// A call with batched arguments, of which `rows` has the bits of those that take a batch in by
// their rows.
struct BatchedCall {
  const OperatorHandle& op;
  Stack* stack;
  uint64_t rows;
  c10::impl::ExcludeDispatchKeyGuard guard{c10::DispatchKey::FuncTorchBatched};
  int64_t level = current_level();
  size_t base = stack->size() - op.schema().arguments().size();
  std::vector<Argument> arguments = tensor_arguments(op, *stack, level);
  bool any = false, only_rows = rows != 0;
  c10::SymInt size;  // of the batch

  BatchedCall(const OperatorHandle& op, Stack* stack, uint64_t rows)
      : op(op), stack(stack), rows(rows) {
    for (const auto& argument : arguments) {
      if (!argument.batch) continue;
      any = true;
      only_rows &= by_rows(argument);
      size = argument.value.sym_size(*argument.batch);
    }
  }

  static int64_t current_level() {
    const auto layer = functorch::maybeCurrentDynamicLayer();
    TORCH_INTERNAL_ASSERT(layer.has_value());
    return layer->layerId();
  }

  size_t position(const Argument& a) const { return a.index - base; }
  const std::string& name(const Argument& a) const {
    return op.schema().arguments()[position(a)].name();
  }
  std::string op_name() const {  // without the namespace
    const std::string& whole = op.schema().name();
    return whole.substr(whole.rfind(':') + 1);
  }
  bool by_rows(const Argument& a) const { return (rows >> position(a) & 1) != 0; }

  // With the batch in front of those arguments that `takes` names; folded into what is there, where
  // that is problems or rows of their own.
  template <class Takes>
  void run(bool fold, const Takes& takes) {
    c10::SymInt folded;
    for (const auto& argument : arguments) {
      Tensor t = argument.value;
      if (any && takes(argument)) {
        t = argument.batch ? t.movedim(*argument.batch, 0)
                           : t.unsqueeze(0).expand_symint(with_front(size, t.sym_sizes()));
        if (fold) {
          folded = t.sym_size(1);
          t = t.flatten(0, 1);
        }
      }
      (*stack)[argument.index] = t;
    }
    op.callBoxed(stack);
    if (!any) return;
    for (size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); ++i) {
      Tensor t = (*stack)[i].toTensor();
      if (!t.defined()) continue;
      if (fold) t = t.unflatten_symint(0, {size, folded});
      (*stack)[i] = functorch::makeBatched(t, 0, level);
    }
  }
};

}  // namespace

void batch_problems(const OperatorHandle& op, Stack* stack, uint64_t rows, int64_t rank) {
  BatchedCall call(op, stack, rows);
  bool problems = false;
  for (const auto& argument : call.arguments) problems |= argument.rank() > rank;
  // Problems that are there already take the batch in; rows do if nothing else is batched.
  const bool by_rows = call.only_rows && !problems;
  call.run(by_rows || problems, [&](const Argument& a) { return !by_rows || call.by_rows(a); });
}

void batch_linear(const OperatorHandle& op, Stack* stack, uint64_t rows, size_t weight) {
  BatchedCall call(op, stack, rows);
  bool many = false;
  for (const auto& argument : call.arguments) {
    // With a batch in front they would pass for layers, and for rows.
    const bool fits = call.position(argument) == weight
                          ? argument.rank() >= 2
                          : argument.rank() >= 1 || !call.by_rows(argument);
    TORCH_CHECK(fits, call.op_name(), ": ", call.name(argument), " must have shape ",
                call.position(argument) == weight ? "[O, I]" : "[..., I]", ", got ",
                argument.shape());
    many |= call.position(argument) == weight && argument.rank() == 3;
  }
  const bool all = many || !call.only_rows;
  call.run(many, [&](const Argument& a) { return all || call.by_rows(a); });
}

void autocast_arguments(const OperatorHandle& op, Stack* stack, c10::DeviceType device,
                        size_t keep) {
  c10::impl::ExcludeDispatchKeyGuard guard(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  const auto dtype = at::autocast::get_autocast_dtype(device);
  const size_t base = stack->size() - op.schema().arguments().size();
  for (size_t i = base; i < stack->size(); ++i) {
    if (!(*stack)[i].isTensor() || !(*stack)[i].toTensor().defined()) continue;
    const Tensor& t = (*stack)[i].toTensor();
    if (i == base + keep && t.scalar_type() == at::kFloat) continue;
    (*stack)[i] = at::autocast::cached_cast(dtype, t, device);
  }
  op.callBoxed(stack);
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

// "lltm_cell" of "treadle::lltm_cell" and of its "treadle::lltm_cell_forward".
static std::string public_name(const OperatorHandle& op) {
  const std::string& name = op.schema().name();
  const size_t begin = name.find("::") + 2;
  return name.substr(begin, name.rfind("_forward") - begin);
}

void no_backend_rule(const OperatorHandle& op, Stack* stack) {
  for (const auto& value : torch::jit::last(*stack, op.schema().arguments().size())) {
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const auto& t = value.toTensor();
    const bool fits = t.layout() == c10::kStrided && !t.is_quantized() && !t.is_nested() &&
                      (t.is_cpu() || t.is_cuda() || t.is_meta());
    TORCH_CHECK_NOT_IMPLEMENTED(
        fits, public_name(op), ": tensors must be dense and on a CPU or CUDA device, got a ",
        t.layout(), " tensor of ", dtype_name(t.scalar_type()), " on ", t.device());
  }
  TORCH_CHECK_NOT_IMPLEMENTED(false, public_name(op),
                              ": there are no kernels for this kind of tensor");
}

}  // namespace treadle
