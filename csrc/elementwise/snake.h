// snake: x + sin(alpha x)^2 / (beta + eps), x [N, C, ...], alpha and beta [C] or [1]; without beta
// it is alpha, and without eps as well the limit form of kernels/math/snake.h. What its CPU and
// CUDA kernels share. Each backend brings a loop and a backward pass.
#pragma once

#include <torch/library.h>

#include <array>

#include "common/tensors.h"
#include "elementwise/loop.h"
#include "kernels/elementwise/snake_args.h"

namespace treadle {

// alpha and beta as they broadcast with x, and the dtype of the result.
struct SnakeOperands {
  Tensor alpha, beta;
  ScalarType compute;
};

inline SnakeForm snake_form(bool has_beta, std::optional<double> eps, bool logscale) {
  return {eps.value_or(0), /*limit=*/!has_beta && !eps, logscale};
}

// Channels of a shape; without a dimension 1 there is one, as in torch.prelu.
c10::SymInt snake_channels(c10::SymIntArrayRef x);
void check_snake_parameter(const char* op, const char* argument, c10::SymIntArrayRef shape,
                           const c10::SymInt& channels);

// A parameter as it broadcasts with x.
Tensor along_channels(const Tensor& parameter, const Tensor& x);

// `out` is undefined, or the tensor that is written.
SnakeOperands check_snake(const char* op, const Tensor& x, const Tensor& alpha,
                          const OptionalTensor& beta, const Tensor& out);
SnakeOperands check_snake_backward(const Tensor& grad, const Tensor& x, const Tensor& alpha,
                                   const OptionalTensor& beta);

struct SnakeBackend {
  void (*run)(ElementwiseLoop& loop, const SnakeForm& form);
  // The chunks of work that a backward pass is divided into, and the pass.
  int64_t (*chunks)(const SnakeBackwardArgs& args);
  void (*backward)(const SnakeBackwardArgs& args, at::Device device);
  bool short_rows;  // whether rows of a few elements are its own to deal with
};

// Gradients of x, alpha and beta, those that the mask names. Without beta alpha's has both parts.
Tensors3 run_snake_backward(const SnakeBackend& backend, const Tensor& grad, const Tensor& x,
                            const Tensor& alpha, const OptionalTensor& beta,
                            std::optional<double> eps, std::array<bool, 3> mask, bool logscale);

template <const SnakeBackend& backend>
struct SnakeKernels {
  static Tensor functional(const Tensor& x, const Tensor& alpha, const OptionalTensor& beta,
                           std::optional<double> eps, bool logscale) {
    const auto [a, b, compute] = check_snake("snake", x, alpha, beta, Tensor());
    ElementwiseLoop loop("snake", Tensor(), x, a, b, compute);
    backend.run(loop, snake_form(has(beta), eps, logscale));
    return loop.output;
  }
  static void out(const Tensor& x, const Tensor& alpha, const OptionalTensor& beta,
                  std::optional<double> eps, bool logscale, Tensor& out) {
    const auto [a, b, compute] = check_snake("snake", x, alpha, beta, out);
    ElementwiseLoop loop("snake", out, x, a, b, compute);
    backend.run(loop, snake_form(has(beta), eps, logscale));
  }
  static void inplace(Tensor& x, const Tensor& alpha, const OptionalTensor& beta,
                      std::optional<double> eps, bool logscale) {
    const auto [a, b, compute] = check_snake("snake_", x, alpha, beta, x);
    ElementwiseLoop loop("snake_", x, x, a, b, compute);
    backend.run(loop, snake_form(has(beta), eps, logscale));
  }
};

template <const SnakeBackend& backend>
void register_snake(torch::Library& m) {
  m.impl("snake", SnakeKernels<backend>::functional);
  m.impl("snake.out", SnakeKernels<backend>::out);
  m.impl("snake_", SnakeKernels<backend>::inplace);
  m.impl("snake_backward", bind<backend, run_snake_backward>);
}

// ---- dispatcher calls

inline const auto& snake_op() {
  static const auto op = find_op<Tensor(const Tensor&, const Tensor&, const OptionalTensor&,
                                        std::optional<double>, bool)>("treadle::snake");
  return op;
}

inline const auto& snake_out_op() {
  static const auto op =
      find_op<void(const Tensor&, const Tensor&, const OptionalTensor&, std::optional<double>, bool,
                   Tensor&)>("treadle::snake", "out");
  return op;
}

inline const auto& snake_inplace_op() {
  static const auto op =
      find_op<void(Tensor&, const Tensor&, const OptionalTensor&, std::optional<double>, bool)>(
          "treadle::snake_");
  return op;
}

inline const auto& snake_backward_op() {
  static const auto op =
      find_op<Tensors3(const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&,
                       std::optional<double>, std::array<bool, 3>, bool)>(
          "treadle::snake_backward");
  return op;
}

}  // namespace treadle
