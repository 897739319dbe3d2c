// snake: checks, Meta and CPU kernels, and the host code of its backward pass. Derivatives:
// snake_autograd.cpp; vmap: snake_vmap.cpp. CUDA: cuda/snake.cpp. Kernels:
// kernels/elementwise/snake.cu, snake_backward.cu, cpu/snake.cpp.
#include "elementwise/snake.h"

#include <ATen/ExpandUtils.h>
#include <ATen/OpMathType.h>
#include <ATen/native/TypeProperties.h>

#include "treadle/ops.h"

namespace treadle {

// ---- C++ interface

Tensor snake(const Tensor& x, const Tensor& alpha, const OptionalTensor& beta,
             std::optional<double> eps, bool logscale) {
  return SnakeOp::call(x, alpha, beta, eps, logscale);
}

Tensor& snake_out(Tensor& out, const Tensor& x, const Tensor& alpha, const OptionalTensor& beta,
                  std::optional<double> eps, bool logscale) {
  return SnakeOp::call_out(out, x, alpha, beta, eps, logscale);
}

Tensor& snake_(Tensor& x, const Tensor& alpha, const OptionalTensor& beta,
               std::optional<double> eps, bool logscale) {
  return SnakeOp::call_inplace(x, alpha, beta, eps, logscale);
}

// ---- checks

c10::SymInt snake_channels(c10::SymIntArrayRef x) { return x.size() < 2 ? c10::SymInt(1) : x[1]; }

void check_snake_parameter(const char* op, const char* argument, c10::SymIntArrayRef shape,
                           const c10::SymInt& channels) {
  TORCH_CHECK(shape.size() == 1 && (shape[0] == channels || shape[0] == 1), op, ": ", argument,
              " must have shape [C] = [", channels, "] or [1], got ", shape);
}

Tensor along_channels(const Tensor& parameter, const Tensor& x) {
  if (x.dim() == 1) return parameter;
  c10::SymDimVector shape;
  if (x.dim() > 1) shape.assign(x.dim() - 1, 1), shape[0] = parameter.sym_size(0);
  return parameter.view_symint(shape);
}

static void check_parameter(const char* op, const char* argument, const Tensor& parameter,
                            const Tensor& x) {
  TORCH_CHECK(is_number_dtype(parameter.scalar_type()), op, ": ", argument,
              " must have an integer or floating-point dtype, got ",
              dtype_name(parameter.scalar_type()));
  TORCH_CHECK(parameter.device() == x.device(), op, ": ", argument, " must be on the device of x, ",
              x.device(), ", got ", parameter.device());
  check_snake_parameter(op, argument, parameter.sym_sizes(), snake_channels(x.sym_sizes()));
}

// If all dtypes are integers, the result has the default floating-point dtype, as in sine.
static ScalarType promote_snake(const Tensor& x, const Tensor& alpha, const Tensor& beta) {
  if (is_floating_dtype(x.scalar_type()) && x.scalar_type() == alpha.scalar_type() &&
      x.scalar_type() == beta.scalar_type()) {
    return x.scalar_type();
  }
  auto state = at::native::update_result_type_state(x, {});
  state = at::native::update_result_type_state(alpha, state);
  const auto found = at::native::result_type(at::native::update_result_type_state(beta, state));
  return c10::isIntegralType(found, /*includeBool=*/true) ? c10::get_default_dtype_as_scalartype()
                                                          : found;
}

SnakeOperands check_snake(const char* op, const Tensor& x, const Tensor& alpha,
                          const OptionalTensor& beta, const Tensor& out) {
  const Tensor& b = has(beta) ? *beta : alpha;
  // The dtype of x is checked before promotion, because torch's promotion raises its own error for
  // float8.
  if (x.scalar_type() != at::kBool) check_compute_dtype(op, "x", x.scalar_type());
  check_parameter(op, "alpha", alpha, x);
  check_parameter(op, "beta", b, x);
  const Tensor along = along_channels(alpha, x);
  const Tensor other = has(beta) ? along_channels(b, x) : along;
  const SnakeOperands found{along, other, promote_snake(x, along, other)};
  check_unary_output(op, x, found.compute, out);
  if (!out.defined()) return found;
  const char* written = out.is_same(x) ? "x" : "out";
  check_memory(op, written, out, "alpha", found.alpha);
  if (has(beta)) check_memory(op, written, out, "beta", found.beta);
  return found;
}

SnakeOperands check_snake_backward(const Tensor& grad, const Tensor& x, const Tensor& alpha,
                                   const OptionalTensor& beta) {
  const char* op = "snake_backward";
  const SnakeOperands found = check_snake(op, x, alpha, beta, Tensor());
  TORCH_CHECK(grad.device() == x.device(), op, ": grad must be on the device of x, ", x.device(),
              ", got ", grad.device());
  TORCH_CHECK(grad.scalar_type() == found.compute, op, ": grad must have the dtype of the result, ",
              dtype_name(found.compute), ", got ", dtype_name(grad.scalar_type()));
  TORCH_CHECK(grad.sym_sizes().equals(x.sym_sizes()), op, ": grad must have the shape of x, ",
              x.sym_sizes(), ", got ", grad.sym_sizes());
  return found;
}

// ---- the backward pass

// t as a dense [N, C, L] tensor or, with `turn`, as [1, C, N L].
static Tensor rows_of(const Tensor& t, ScalarType dtype, int64_t n, int64_t c, bool turn) {
  Tensor rows = t.to(dtype);
  if (turn) {
    rows = rows.reshape({n, c, -1}).transpose(0, 1);
    return rows.contiguous().view({1, c, -1});
  }
  return rows.contiguous().view({n, c, -1});
}

// The gradient of a parameter, computed from the gradients of all channels.
static Tensor of_parameter(const Tensor& grad, const Tensor& parameter) {
  if (!grad.defined()) return grad;
  return cast(at::sum_to(grad, parameter.sizes()), parameter.scalar_type());
}

// If a backend is inefficient for short rows, and rows have fewer elements than this, the backward
// pass rearranges them so that each channel has a single row of N L elements.
static constexpr int64_t kShortRow = 64;

Tensors3 run_snake_backward(const SnakeBackend& backend, const Tensor& grad, const Tensor& x,
                            const Tensor& alpha, const OptionalTensor& beta,
                            std::optional<double> eps, std::array<bool, 3> mask, bool logscale) {
  const ScalarType compute = check_snake_backward(grad, x, alpha, beta).compute;
  const Tensor given_beta = has(beta) ? *beta : alpha;
  check_storages("snake_backward",
                 {{"grad", grad}, {"x", x}, {"alpha", alpha}, {"beta", given_beta}});
  const auto empty_if = [](bool wanted, at::IntArrayRef sizes, const Tensor& like) {
    return wanted ? at::empty(sizes, like.options()) : Tensor();
  };
  const bool of_beta = mask[2] && has(beta);
  if (x.numel() == 0) {
    const auto zeros = [](bool wanted, const Tensor& like) {
      return wanted ? at::zeros(like.sizes(), like.options()) : Tensor();
    };
    return {empty_if(mask[0], x.sizes(), x), zeros(mask[1], alpha), zeros(of_beta, given_beta)};
  }
  // If both parameters have one element, x is treated as one channel.
  const bool one = alpha.numel() == 1 && given_beta.numel() == 1;
  const int64_t c = one ? 1 : x.size(1);
  const int64_t n = one ? 1 : x.size(0), l = x.numel() / (n * c);
  const bool turn = !backend.short_rows && n > 1 && l < kShortRow;
  const auto channels = [&](const Tensor& t) { return t.to(compute).expand({c}).contiguous(); };
  const Tensor a = channels(alpha), b = has(beta) ? channels(given_beta) : a;
  const Tensor grad_alpha = empty_if(mask[1], {c}, a), grad_beta = empty_if(of_beta, {c}, a);
  const Tensor g = rows_of(grad, compute, n, c, turn), rows = rows_of(x, compute, n, c, turn);
  Tensor grad_x = empty_if(mask[0], rows.sizes(), rows);
  SnakeBackwardArgs args{to_dtype(compute),
                         rows.size(0),
                         c,
                         rows.size(2),
                         g.const_data_ptr(),
                         rows.const_data_ptr(),
                         a.const_data_ptr(),
                         b.const_data_ptr(),
                         data_of(grad_x),
                         data_of(grad_alpha),
                         data_of(grad_beta),
                         nullptr,
                         !has(beta),
                         snake_form(has(beta), eps, logscale)};
  Tensor partial;
  if (grad_alpha.defined() || grad_beta.defined()) {
    partial = at::empty({backend.chunks(args), 2, c}, a.options().dtype(at::toOpMathType(compute)));
    args.partial = partial.mutable_data_ptr();
  }
  backend.backward(args, x.device());
  if (mask[0]) {
    if (turn) grad_x = grad_x.view({c, n, -1}).transpose(0, 1).contiguous();
    grad_x = cast(grad_x.view(x.sizes()), x.scalar_type());
  }
  return {grad_x, of_parameter(grad_alpha, alpha), of_parameter(grad_beta, given_beta)};
}

// ---- registration

static Tensors3 snake_backward_meta(const Tensor& grad, const Tensor& x, const Tensor& alpha,
                                    const OptionalTensor& beta, std::optional<double>,
                                    std::array<bool, 3> mask, bool) {
  check_snake_backward(grad, x, alpha, beta);
  return {empty_like_if(mask[0], x), empty_like_if(mask[1], alpha),
          has(beta) ? empty_like_if(mask[2], *beta) : Tensor()};
}

static int64_t chunks_cpu(const SnakeBackwardArgs& args) { return SnakeCpuChunks(args).count; }

static void backward_cpu(const SnakeBackwardArgs& args, at::Device) {
  const int64_t pieces = chunks_cpu(args) * args.c;
  const int64_t length = std::min(args.l, SnakeCpuChunks::kLength);
  at::parallel_for(0, pieces, std::max<int64_t>(at::internal::GRAIN_SIZE / 4 / length, 1),
                   [&](int64_t begin, int64_t end) { cpu::snake_backward(args, begin, end); });
  if (args.partial != nullptr) cpu::snake_sums(args);
}

static constexpr SnakeBackend kCpuBackend{chunks_cpu, backward_cpu, /*short_rows=*/false};

TREADLE_REGISTER_ELEMENTWISE(SnakeOp, cpu::snake)

TORCH_LIBRARY_IMPL(treadle, CPU, m) {
  m.impl("snake_backward", bind<kCpuBackend, run_snake_backward>);
}

TORCH_LIBRARY_IMPL(treadle, Meta, m) { m.impl("snake_backward", snake_backward_meta); }

}  // namespace treadle
