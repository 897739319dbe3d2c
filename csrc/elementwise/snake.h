// snake: x + sin(alpha x)^2 / (beta + eps), for x [N, C, ...], alpha and beta [C] or [1]. Without
// beta, the divisor is alpha + eps. Without beta and eps, the op computes the limit form of
// kernels/math/snake.h. Each backend has a kernel and a backward pass.
#pragma once

#include <array>

#include "common/tensors.h"
#include "elementwise/op.h"
#include "kernels/elementwise/snake_args.h"

namespace treadle {

// alpha and beta in shapes that broadcast with x, and the dtype of the result.
struct SnakeOperands {
  Tensor alpha, beta;
  ScalarType compute;
};

inline SnakeForm snake_form(bool has_beta, std::optional<double> eps, bool logscale) {
  return {eps.value_or(0), /*limit=*/!has_beta && !eps, logscale};
}

// The number of channels of a shape: its size along dimension 1, or 1 if it has no such dimension,
// as in torch.prelu.
c10::SymInt snake_channels(c10::SymIntArrayRef x);
void check_snake_parameter(const char* op, const char* argument, c10::SymIntArrayRef shape,
                           const c10::SymInt& channels);

// Reshapes a parameter so that it broadcasts with x.
Tensor along_channels(const Tensor& parameter, const Tensor& x);

// `out` is the output, or undefined.
SnakeOperands check_snake(const char* op, const Tensor& x, const Tensor& alpha,
                          const OptionalTensor& beta, const Tensor& out);
SnakeOperands check_snake_backward(const Tensor& grad, const Tensor& x, const Tensor& alpha,
                                   const OptionalTensor& beta);

// The backward pass of a backend.
struct SnakeBackend {
  // The number of chunks into which backward() divides its work.
  int64_t (*chunks)(const SnakeBackwardArgs& args);
  void (*backward)(const SnakeBackwardArgs& args, at::Device device);
  bool short_rows;  // whether backward() is efficient for rows of few elements
};

// Gradients of x, alpha and beta where `mask` is true. Without beta, alpha is also used as beta,
// and its gradient includes that of beta.
Tensors3 run_snake_backward(const SnakeBackend& backend, const Tensor& grad, const Tensor& x,
                            const Tensor& alpha, const OptionalTensor& beta,
                            std::optional<double> eps, std::array<bool, 3> mask, bool logscale);

struct SnakeOp
    : ElementwiseOp<SnakeOp, const Tensor&, const OptionalTensor&, std::optional<double>, bool> {
  static constexpr const char* kName = "snake";
  static constexpr unsigned kForms = kFunctional | kOut | kInPlace;  // vmap: snake_vmap.cpp
  static constexpr bool kAtX = true;

  static SnakeOperands check(const char* op, const Tensor& x, const Tensor& alpha,
                             const OptionalTensor& beta, std::optional<double>, bool,
                             const Tensor& out) {
    return check_snake(op, x, alpha, beta, out);
  }

  static ElementwiseLoop loop(const char* op, const Tensor& out, const Tensor& x,
                              const Tensor& alpha, const OptionalTensor& beta,
                              std::optional<double>, bool) {
    const auto [a, b, compute] = check_snake(op, x, alpha, beta, out);
    return ElementwiseLoop(op, out, x, a, b, compute);
  }

  static auto parameters(const Tensor&, const OptionalTensor& beta, std::optional<double> eps,
                         bool logscale) {
    return std::tuple(snake_form(has(beta), eps, logscale));
  }

  static Tensor twin(const Tensor& x, const Tensor& alpha, const OptionalTensor& beta,
                     std::optional<double>, bool) {
    const auto [a, b, compute] = check_snake("snake", x, alpha, beta, Tensor());
    return at::mul(at::sin(at::mul(x, a)), b);
  }

  struct Backward : OpNode<Backward, Tensor, Tensor, Tensor, std::optional<double>, bool> {
    static constexpr const char* kName = "SnakeBackward";
    static variable_list backward(const variable_list& grads, const Need& need, const Tensor& x,
                                  const Tensor& alpha, const Tensor& beta,
                                  std::optional<double> eps, bool logscale);
  };
  static auto saved(const Tensor& x, const Tensor& alpha, const OptionalTensor& beta,
                    std::optional<double> eps, bool logscale) {
    return std::tuple(x, alpha, value_or_undefined(beta), eps, logscale);
  }

  static Tensor jvp(const Tangents& t, const Tensor& x, const Tensor& alpha,
                    const OptionalTensor& beta, std::optional<double> eps, bool logscale,
                    const Tensor& result);
};

inline const auto& snake_backward_op() {
  static const auto op =
      find_op<Tensors3(const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&,
                       std::optional<double>, std::array<bool, 3>, bool)>(
          "treadle::snake_backward");
  return op;
}

}  // namespace treadle
