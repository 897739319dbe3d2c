// Boxed kernels that serve any op with one registration line: autocast, version counters, and a
// backend without kernels. vmap: common/vmap.h.
#pragma once

#include <ATen/autocast_mode.h>

#include <array>
#include <string>
#include <string_view>

#include "common/dispatch.h"

namespace treadle {

// The public name of an op: "lltm_cell" for "treadle::lltm_cell" and for its forward pass.
std::string public_name(const OperatorHandle& op);

// After an op that writes into arguments: autograd notices that saved values have changed.
void version_counter_rule(const OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack);

// For ops that write into arguments, if a tensor is lazily negative or conjugate. torch's own rule
// would copy from the results, and such ops have none.
void lazy_bits_rule(const OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack);

// The kernel for every backend without one.
void no_backend_rule(const OperatorHandle& op, Stack* stack);

// Casts the floating-point tensors of a call to `dtype`, except float64 ones, and float32 arguments
// named in `keep`.
void autocast_arguments(const OperatorHandle& op, Stack* stack, c10::DeviceType device,
                        at::ArrayRef<std::string_view> keep, ScalarType dtype);

// Casts the arguments to autocast's dtype.
inline constexpr std::array<std::string_view, 0> kNoneKept = {};
template <c10::DeviceType device, const auto& keep>
void autocast_rule(const OperatorHandle& op, Stack* stack) {
  autocast_arguments(op, stack, device, keep, at::autocast::get_autocast_dtype(device));
}

}  // namespace treadle
