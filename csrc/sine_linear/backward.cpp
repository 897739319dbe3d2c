// sine_linear_slope: grad * factor * d^order sin(omega z) / dz^order with z = input weight^T +
// bias, from output and phase, without another GEMM (kernels/math/sine_linear.h).
// sine_linear_backward: gradients of input, weight and bias, and grad_z, which is the slope of
// order 1. sine_linear_backward_: overwrites grad with grad_z and returns grad_bias.
// sine_linear_slope_backward: the VJP of a slope with respect to grad, factor and z, in one pass.
// Derivatives: autograd.cpp. Backends: cpu.cpp, cuda/sine_linear.cpp.
#include <ATen/Functions.h>

#include <cmath>

#include "common/check.h"
#include "common/vmap.h"
#include "sine_linear/sine_linear.h"

namespace treadle {

static void check_storages(const char* op, const Tensor& grad, const Tensor& factor,
                           const SineLayer& layer) {
  check_storage(op, "grad", grad);
  check_storage_if_any(op, "factor", factor);
  check_storage_if_any(op, "output", layer.output);
  check_storage(op, "phase", layer.phase);
}

// omega^order with the sign of the order-th derivative of sin: sin, cos, -sin, -cos.
static double scale_of(double omega, int64_t order) {
  return std::pow(omega, static_cast<double>(order)) * ((order & 2) != 0 ? -1 : 1);
}

// Calls run(args) with the arguments of a slope written to `result`, which is not empty and may be
// grad.
template <class Run>
static void with_slope(const SineLayer& layer, const Tensor& grad, const Tensor& factor,
                       int64_t order, const Tensor& result, const Run& run) {
  const Tensor g = grad.contiguous(), f = contiguous(factor);
  const Tensor y = contiguous(layer.output), phase = layer.phase.contiguous();
  run(SineLinearSlope{to_dtype(grad.scalar_type()), result.numel(), scale_of(layer.omega, order),
                      (order & 1) != 0, g.const_data_ptr(), const_data_of(f), const_data_of(y),
                      phase.const_data_ptr(), data_of(result)});
}

Tensor sine_linear_slope_kernel(const SineLinearBackend& backend, const Tensor& grad,
                                const OptionalTensor& factor, const Tensor& input,
                                const Tensor& weight, const OptionalTensor& bias,
                                const OptionalTensor& output, const Tensor& phase, double omega,
                                int64_t order) {
  constexpr const char* op = "sine_linear_slope";
  const Tensor f = value_or_undefined(factor), b = value_or_undefined(bias);
  const Tensor y = value_or_undefined(output);
  const SineLayer layer{input, weight, b, y, phase, omega};
  check_sine_linear_slope(op, layer, grad, f, order);
  check_storages(op, grad, f, layer);
  const Tensor result = at::empty(grad.sizes(), grad.options());
  if (result.numel() == 0) return result;
  with_slope(layer, grad, f, order, result,
             [&](const SineLinearSlope& args) { backend.slope(args, grad.device()); });
  return result;
}

Tensor product_like(const Tensor& a, const Tensor& b) {
  return at::matmul(a, b).to(a.scalar_type());
}

Tensors3 gradients_from_z(const Tensor& grad_z, const Tensor& input, const Tensor& weight,
                          std::array<bool, 3> mask) {
  // GEMMs keep the dtype of the results even under autocast.
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
  const Tensor g = rows_of(grad_z, weight);
  Tensor grad_input, grad_weight, grad_bias;
  if (mask[0]) grad_input = product_like(g, weight).reshape_symint(input.sym_sizes());
  if (mask[1]) grad_weight = product_like(g.mT(), rows_of(input, weight));
  if (mask[2]) grad_bias = g.sum(-2);
  return {grad_input, grad_weight, grad_bias};
}

// Computes all gradients in one kernel. Does nothing if the backend does not support these
// arguments. grad, output and phase are contiguous.
static std::optional<Tensors3> try_fused_backward(const SineLinearBackend& backend,
                                                  const SineLayer& layer, const Tensor& grad,
                                                  std::array<bool, 4> mask) {
  const auto& [input, weight, bias, output, phase, omega] = layer;
  const bool elements = grad.numel() > 0 && input.numel() > 0;
  if (backend.fused_backward == nullptr || weight.dim() == 3 || !elements || mask[3]) {
    return std::nullopt;
  }
  Tensor x = rows_of(input, weight);
  if (x.stride(1) != 1) x = x.contiguous();
  const Tensor w = weight.contiguous();
  const auto empty_if = [&](bool wanted, at::IntArrayRef sizes) {
    return wanted ? at::empty(sizes, grad.options()) : Tensor();
  };
  Tensors3 grads{empty_if(mask[0], input.sizes()), empty_if(mask[1], weight.sizes()),
                 empty_if(mask[2], weight.sizes().slice(0, 1))};
  const auto& [grad_input, grad_weight, grad_bias] = grads;
  const bool done = backend.fused_backward(
      {to_dtype(grad.scalar_type()), x.size(0), w.size(0), x.size(1), scale_of(omega, 1),
       grad.const_data_ptr(), const_data_of(output), phase.const_data_ptr(), x.const_data_ptr(),
       x.stride(0), w.const_data_ptr(), data_of(grad_input), data_of(grad_weight),
       data_of(grad_bias)},
      grad.device());
  return done ? std::optional(grads) : std::nullopt;
}

// Writes grad_z, which may be grad; returns grad_bias if `sums`, otherwise an undefined tensor.
// grad, output, phase and grad_z are contiguous.
static Tensor write_grad_z(const SineLinearBackend& backend, const SineLayer& layer,
                           const Tensor& grad, bool sums, const Tensor& grad_z) {
  const Tensor& weight = layer.weight;
  const bool one_pass =
      sums && backend.backward_bias != nullptr && weight.dim() == 2 && grad.numel() > 0;
  const Tensor grad_bias = one_pass ? at::empty({weight.size(0)}, grad.options()) : Tensor();
  if (grad_z.numel() > 0) {
    with_slope(layer, grad, Tensor(), /*order=*/1, grad_z, [&](const SineLinearSlope& args) {
      if (one_pass) {
        backend.backward_bias(args, rows_of(grad_z, weight), grad_bias);
      } else {
        backend.slope(args, grad.device());
      }
    });
  }
  if (one_pass || !sums) return grad_bias;
  return std::get<2>(gradients_from_z(grad_z, layer.input, weight, {false, false, true}));
}

Tensors4 sine_linear_backward_kernel(const SineLinearBackend& backend, const Tensor& grad,
                                     const Tensor& input, const Tensor& weight,
                                     const OptionalTensor& bias, const OptionalTensor& output,
                                     const Tensor& phase, double omega, std::array<bool, 4> mask) {
  constexpr const char* op = "sine_linear_backward";
  const Tensor b = value_or_undefined(bias), y = value_or_undefined(output);
  const SineLayer layer{input, weight, b, y, phase, omega};
  check_sine_linear_slope(op, layer, grad, Tensor(), 1);
  check_storages(op, grad, Tensor(), layer);
  check_storage(op, "input", input);
  check_storage(op, "weight", weight);
  if (mask == std::array<bool, 4>{}) return {};
  const Tensor own_grad = grad.contiguous(), own_y = contiguous(y), own_phase = phase.contiguous();
  const SineLayer own{input, weight, b, own_y, own_phase, omega};
  const auto fused = try_fused_backward(backend, own, own_grad, mask);
  if (fused) return std::tuple_cat(*fused, std::tuple(Tensor()));
  const Tensor grad_z = at::empty(grad.sizes(), grad.options());
  const Tensor grad_bias = write_grad_z(backend, own, own_grad, mask[2], grad_z);
  const auto [grad_input, grad_weight, none] =
      gradients_from_z(grad_z, input, weight, {mask[0], mask[1], false});
  return {grad_input, grad_weight, grad_bias, mask[3] ? grad_z : Tensor()};
}

static void check_backward_inplace(const SineLayer& layer, const Tensor& grad) {
  constexpr const char* op = "sine_linear_backward_";
  check_sine_linear_slope(op, layer, grad, Tensor(), 1);
  TORCH_CHECK(grad.is_contiguous(), op, ": grad must be contiguous, got strides ",
              grad.sym_strides());
  if (layer.output.defined()) check_memory(op, "grad", grad, "output", layer.output);
  check_memory(op, "grad", grad, "phase", layer.phase);
}

Tensor sine_linear_backward_inplace_kernel(const SineLinearBackend& backend, Tensor& grad,
                                           const Tensor& input, const Tensor& weight,
                                           const OptionalTensor& bias, const OptionalTensor& output,
                                           const Tensor& phase, double omega, bool sums) {
  const Tensor b = value_or_undefined(bias), y = value_or_undefined(output);
  const SineLayer layer{input, weight, b, y, phase, omega};
  check_backward_inplace(layer, grad);
  check_storages("sine_linear_backward_", grad, Tensor(), layer);
  const Tensor own_y = contiguous(y), own_phase = phase.contiguous();
  return write_grad_z(backend, {input, weight, b, own_y, own_phase, omega}, grad, sums, grad);
}

static void check_slope_backward(const SineLayer& layer, const Tensor& v, const Tensor& grad,
                                 const Tensor& factor, int64_t order) {
  constexpr const char* op = "sine_linear_slope_backward";
  check_sine_linear_slope(op, layer, grad, factor, order);
  check_output_like(op, "v", v, layer.input, output_shape(layer.input, layer.weight));
}

Tensors3 sine_linear_slope_backward_kernel(const SineLinearBackend& backend, const Tensor& v,
                                           const Tensor& grad, const OptionalTensor& factor,
                                           const Tensor& input, const Tensor& weight,
                                           const OptionalTensor& bias, const OptionalTensor& output,
                                           const Tensor& phase, double omega, int64_t order,
                                           std::array<bool, 3> mask) {
  constexpr const char* op = "sine_linear_slope_backward";
  const Tensor factor_or = value_or_undefined(factor), b = value_or_undefined(bias);
  const Tensor output_or = value_or_undefined(output);
  const SineLayer layer{input, weight, b, output_or, phase, omega};
  check_slope_backward(layer, v, grad, factor_or, order);
  check_storage(op, "v", v);
  check_storages(op, grad, factor_or, layer);
  std::array<Tensor, 3> results;
  for (size_t i = 0; i < 3; ++i) {
    if (mask[i]) results[i] = at::empty(grad.sizes(), grad.options());
  }
  if (grad.numel() > 0) {
    const Tensor own_v = v.contiguous(), g = grad.contiguous(), f = contiguous(factor_or);
    const Tensor y = contiguous(output_or), p = phase.contiguous();
    backend.slope_backward(
        {to_dtype(grad.scalar_type()), grad.numel(), scale_of(omega, order),
         scale_of(omega, order + 1), (order & 1) != 0, own_v.const_data_ptr(), g.const_data_ptr(),
         const_data_of(f), const_data_of(y), p.const_data_ptr(), data_of(results[0]),
         data_of(results[1]), data_of(results[2])},
        grad.device());
  }
  return {results[0], results[1], results[2]};
}

// ---- meta

static Tensor sine_linear_slope_meta(const Tensor& grad, const OptionalTensor& factor,
                                     const Tensor& input, const Tensor& weight,
                                     const OptionalTensor& bias, const OptionalTensor& output,
                                     const Tensor& phase, double omega, int64_t order) {
  const Tensor b = value_or_undefined(bias), y = value_or_undefined(output);
  const SineLayer layer{input, weight, b, y, phase, omega};
  check_sine_linear_slope("sine_linear_slope", layer, grad, value_or_undefined(factor), order);
  return empty_like_if(true, grad);
}

static Tensor empty_like_bias(bool wanted, const Tensor& grad, const Tensor& weight) {
  const auto sizes = weight.sym_sizes();
  return wanted ? at::empty_symint(sizes.slice(0, sizes.size() - 1), grad.options()) : Tensor();
}

static Tensors4 sine_linear_backward_meta(const Tensor& grad, const Tensor& input,
                                          const Tensor& weight, const OptionalTensor& bias,
                                          const OptionalTensor& output, const Tensor& phase,
                                          double omega, std::array<bool, 4> mask) {
  const Tensor b = value_or_undefined(bias), y = value_or_undefined(output);
  const SineLayer layer{input, weight, b, y, phase, omega};
  check_sine_linear_slope("sine_linear_backward", layer, grad, Tensor(), 1);
  return {empty_like_if(mask[0], input), empty_like_if(mask[1], weight),
          empty_like_bias(mask[2], grad, weight), empty_like_if(mask[3], grad)};
}

static Tensor sine_linear_backward_inplace_meta(Tensor& grad, const Tensor& input,
                                                const Tensor& weight, const OptionalTensor& bias,
                                                const OptionalTensor& output, const Tensor& phase,
                                                double omega, bool sums) {
  const Tensor b = value_or_undefined(bias), y = value_or_undefined(output);
  check_backward_inplace({input, weight, b, y, phase, omega}, grad);
  return empty_like_bias(sums, grad, weight);
}

static Tensors3 sine_linear_slope_backward_meta(const Tensor& v, const Tensor& grad,
                                                const OptionalTensor& factor, const Tensor& input,
                                                const Tensor& weight, const OptionalTensor& bias,
                                                const OptionalTensor& output, const Tensor& phase,
                                                double omega, int64_t order,
                                                std::array<bool, 3> mask) {
  const Tensor b = value_or_undefined(bias), y = value_or_undefined(output);
  check_slope_backward({input, weight, b, y, phase, omega}, v, grad, value_or_undefined(factor),
                       order);
  return {empty_like_if(mask[0], grad), empty_like_if(mask[1], grad), empty_like_if(mask[2], grad)};
}

// ---- registration

TORCH_LIBRARY_IMPL(treadle, Meta, m) {
  m.impl("sine_linear_slope", sine_linear_slope_meta);
  m.impl("sine_linear_backward", sine_linear_backward_meta);
  m.impl("sine_linear_backward_", sine_linear_backward_inplace_meta);
  m.impl("sine_linear_slope_backward", sine_linear_slope_backward_meta);
}

// Gradients of weight and bias are sums over the rows, so if they are needed, the batch becomes N
// layers. Otherwise it can be folded into the rows of grad, input, output and phase, whose bits are
// set.
static void backward_batch_rule(const OperatorHandle& op, Stack* stack) {
  const auto mask = stack->back().toBoolList();
  const bool sums = mask[1] || mask[2];
  batch_linear(op, stack, sums ? 0 : 0b110011, /*weight=*/2);
}

// The arguments v, grad, factor, input, output and phase have rows.
TORCH_LIBRARY_IMPL(treadle, FuncTorchBatched, m) {
  m.impl("sine_linear_slope", TREADLE_RULE(linear_batch_rule<0b1100111, /*weight=*/3>));
  m.impl("sine_linear_backward", TREADLE_RULE(backward_batch_rule));
  m.impl("sine_linear_slope_backward", TREADLE_RULE(linear_batch_rule<0b11001111, /*weight=*/4>));
}

}  // namespace treadle
