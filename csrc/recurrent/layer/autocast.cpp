// recurrent_layer under autocast. It runs in the lower precision, like a matrix product, but a
// float32 cell state c stays float32. On a CPU it uses the same precision as torch's layers. If
// oneDNN does not run a layer, torch composes it of ATen ops: products use the lower precision, and
// a float32 state promotes all later results to float32. In this case recurrent_layer casts all
// arguments to float32, including the input.
#include "recurrent/layer/autocast.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>

#include "common/rules.h"
#include "recurrent/layer/check.h"

namespace treadle {

static bool promotes(CellKind cell, bool packed) {
  if (cell == CellKind::kGru) return true;
  // A step of torch's RNN consists of products and an activation, which keep the lower precision.
  if (cell != CellKind::kLstm) return false;
  // Among torch's layers, oneDNN runs only the LSTM, and only for dense batches.
  return packed || !at::globalContext().userEnabledMkldnn();
}

std::optional<ScalarType> autocast_dtype(CellKind cell, bool packed, const Tensor& state) {
  const auto device = state.device().type();
  if (!at::autocast::is_autocast_available(device) || !at::autocast::is_autocast_enabled(device)) {
    return std::nullopt;
  }
  const auto lower = at::autocast::get_autocast_dtype(device);
  const bool wide = state.device().is_cpu() && promotes(cell, packed) &&
                    at::promote_types(lower, state.scalar_type()) == at::kFloat;
  return wide ? at::kFloat : lower;
}

static constexpr std::string_view kC[] = {"c0", "reset_c"};

template <c10::DeviceType device>
static void layer_autocast_rule(const OperatorHandle& op, Stack* stack) {
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  // The order of LayerSignature: input, batch_sizes, h0, c0, two weights, two biases, cell.
  const CellKind cell = find_cell(layer_op_name(), arguments[8].toStringRef());
  const Tensor& state = arguments[has_c(cell) ? 3 : 2].toTensor();
  const auto lower = at::autocast::get_autocast_dtype(device);
  const auto dtype = autocast_dtype(cell, !arguments[1].isNone(), state).value_or(lower);
  autocast_arguments(op, stack, device, kC, dtype);
}

TORCH_LIBRARY_IMPL(treadle, AutocastCPU, m) {
  m.impl("recurrent_layer", TREADLE_RULE(layer_autocast_rule<c10::DeviceType::CPU>));
}
TORCH_LIBRARY_IMPL(treadle, AutocastCUDA, m) {
  m.impl("recurrent_layer", TREADLE_RULE(layer_autocast_rule<c10::DeviceType::CUDA>));
}

}  // namespace treadle
