// Boxed kernels for any op, registered with one line each: autocast, version counters, lazy
// negation and conjugation, and the error for backends without kernels. The rules for vmap are in
// common/vmap.h.
#pragma once

#include <ATen/autocast_mode.h>

#include <array>
#include <string>
#include <string_view>

#include "common/dispatch.h"

namespace treadle {

// The public name of an op: "lltm_cell" for treadle::lltm_cell and treadle::lltm_cell_forward.
std::string public_name(const OperatorHandle& op);

// Calls an op that writes into arguments and then increments their version counters, so that
// autograd detects changes of saved tensors.
void version_counter_rule(const OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack);

// Handles lazily negated or conjugated tensors in ops that write into arguments. torch's own rule
// would copy from the results, but these ops return none.
void lazy_bits_rule(const OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack);

// Raises an error for backends without kernels.
void no_backend_rule(const OperatorHandle& op, Stack* stack);

// Casts the floating-point arguments to `dtype`, except float64 tensors and those float32 arguments
// whose names are in `keep`, and calls the op.
void autocast_arguments(const OperatorHandle& op, Stack* stack, c10::DeviceType device,
                        at::ArrayRef<std::string_view> keep, ScalarType dtype);

// autocast_arguments with the dtype that autocast is set to.
inline constexpr std::array<std::string_view, 0> kNoneKept = {};
template <c10::DeviceType device, const auto& keep>
void autocast_rule(const OperatorHandle& op, Stack* stack) {
  autocast_arguments(op, stack, device, keep, at::autocast::get_autocast_dtype(device));
}

}  // namespace treadle
