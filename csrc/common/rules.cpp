#include "common/rules.h"

#include <ATen/native/Resize.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>

#include "common/check.h"

namespace treadle {

void autocast_arguments(const OperatorHandle& op, Stack* stack, c10::DeviceType device,
                        at::ArrayRef<std::string_view> keep, ScalarType dtype) {
  c10::impl::ExcludeDispatchKeyGuard guard(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  const auto& arguments = op.schema().arguments();
  const size_t base = stack->size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue& value = (*stack)[base + i];
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const Tensor& t = value.toTensor();
    const bool kept = std::find(keep.begin(), keep.end(), arguments[i].name()) != keep.end();
    if (t.scalar_type() == at::kFloat && kept) continue;
    value = at::autocast::cached_cast(dtype, t, device);
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

void lazy_bits_rule(const OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  std::vector<std::pair<Tensor, Tensor>> written;  // a tensor and its replacement
  const auto& arguments = op.schema().arguments();
  const size_t base = stack->size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue& value = (*stack)[base + i];
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const Tensor t = value.toTensor();
    if (!t.is_neg() && !t.is_conj()) continue;
    value = t.resolve_neg().resolve_conj();
    const auto* alias = arguments[i].alias_info();
    if (alias != nullptr && alias->isWrite()) written.emplace_back(t, value.toTensor());
  }
  constexpr c10::DispatchKeySet kBits({c10::DispatchKey::Negative, c10::DispatchKey::Conjugate});
  op.redispatchBoxed(
      (keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::Negative)) -
          kBits,
      stack);
  for (const auto& [t, plain] : written) {
    at::native::resize_output(t, plain.sizes());
    t.copy_(plain);
  }
}

std::string public_name(const OperatorHandle& op) {
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
