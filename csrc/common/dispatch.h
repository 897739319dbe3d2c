// Helpers with which ops of this library call each other and register their kernels.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <utility>

namespace treadle {

using at::Scalar;
using at::ScalarType;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using OperatorHandle = c10::OperatorHandle;
using Stack = torch::jit::Stack;

// Keep the result in a function-local static: the look-up takes a lock.
template <class Signature>
c10::TypedOperatorHandle<Signature> find_op(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).typed<Signature>();
}

namespace detail {
template <const auto& first, auto f>
struct Bound;
template <const auto& first, class Result, class First, class... Rest,
          Result (*f)(const First&, Rest...)>
struct Bound<first, f> {
  static Result call(Rest... rest) { return f(first, std::forward<Rest>(rest)...); }
};
}  // namespace detail

// f(backend, ...) with its first argument bound, as a kernel for m.impl().
template <const auto& backend, auto f>
inline constexpr auto bind = &detail::Bound<backend, f>::call;

// A boxed kernel for m.impl().
#define TREADLE_RULE(...) torch::CppFunction::makeFromBoxedFunction<&__VA_ARGS__>()

}  // namespace treadle
