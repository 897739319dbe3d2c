// How ops of this library call each other and are told apart.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace treadle {

using at::Scalar;
using at::ScalarType;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// Keep the result in a function-local static: the look-up takes a lock.
template <class Signature>
c10::TypedOperatorHandle<Signature> find_op(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).typed<Signature>();
}

}  // namespace treadle
