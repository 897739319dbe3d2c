// sine_linear_slope: grad times factor times the order-th derivative of sin(omega z) by z = input
// weight^T + bias, made of output and phase without another product (kernels/math/sine_linear.h).
// sine_linear_backward: gradients of input, weight and bias, which are products of the first one.
// sine_linear_backward_: the first one alone, in the memory of grad, and the gradient of bias.
// sine_linear_slope_backward: what it hands on by grad, by factor and by z, in one pass.
// Derivatives: sine_linear_autograd.cpp. Twins: cuda/sine_linear.cpp, cpu/sine_linear.cpp.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include <cmath>

#include "check.h"
#include "cpu/sine_linear.h"
#include "rules.h"
#include "sine_linear.h"

namespace treadle {

static void check_storages(const char* op, const Tensor& grad, const OptionalTensor& factor,
                           const OptionalTensor& output, const Tensor& phase) {
  check_storage(op, "grad", grad);
  check_storage_if_any(op, "factor", factor);
  check_storage_if_any(op, "output", output);
  check_storage(op, "phase", phase);
}

// omega^order with the sign of sin, cos, -sin, -cos.
static double scale_of(double omega, int64_t order) {
  return std::pow(omega, static_cast<double>(order)) * ((order & 2) != 0 ? -1 : 1);
}

// Calls run(args) for a slope into `result`, which has elements.
template <class Run>
static void with_slope(const Tensor& grad, const OptionalTensor& factor,
                       const OptionalTensor& output, const Tensor& phase, double omega,
                       int64_t order, const Tensor& result, const Run& run) {
  const Tensor own_grad = grad.contiguous(), own_phase = phase.contiguous();
  const OptionalTensor own_factor = contiguous_if_any(factor);
  const OptionalTensor own_output = contiguous_if_any(output);
  run(SineLinearSlope{to_dtype(grad.scalar_type()), result.numel(), scale_of(omega, order),
                      (order & 1) != 0, own_grad.const_data_ptr(), data_if_any(own_factor),
                      data_if_any(own_output), own_phase.const_data_ptr(), data_of(result)});
}

Tensor sine_linear_slope_with(const SineLinearSlopes& backend, const Tensor& grad,
                              const OptionalTensor& factor, const Tensor& input,
                              const Tensor& weight, const OptionalTensor& bias,
                              const OptionalTensor& output, const Tensor& phase, double omega,
                              int64_t order) {
  constexpr const char* op = "sine_linear_slope";
  check_sine_linear_slope(op, grad, factor, input, weight, bias, output, phase, order);
  check_storages(op, grad, factor, output, phase);
  const Tensor result = at::empty(grad.sizes(), grad.options());
  if (result.numel() == 0) return result;
  with_slope(grad, factor, output, phase, omega, order, result,
             [&](const SineLinearSlope& args) { backend.slope(args, grad.device()); });
  return result;
}

Tensor product_like(const Tensor& a, const Tensor& b) {
  return at::matmul(a, b).to(a.scalar_type());
}

ThreeTensors gradients_of_sum(const Tensor& by_sum, const Tensor& input, const Tensor& weight,
                              std::array<bool, 3> mask) {
  // Within autocast the products, too, are of the dtype that the results have.
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
  const Tensor w = rows_of(by_sum, weight);
  Tensor by_input, by_weight, by_bias;
  if (mask[0]) by_input = product_like(w, weight).reshape_symint(input.sym_sizes());
  if (mask[1]) by_weight = product_like(w.mT(), rows_of(input, weight));
  if (mask[2]) by_bias = w.sum(-2);
  return {by_input, by_weight, by_bias};
}

// Everything in one go, or nothing where the backend has not got that for these. `grad`, `output`
// and `phase` are contiguous.
static std::optional<ThreeTensors> backward_at_once(
    const SineLinearSlopes& backend, const Tensor& grad, const Tensor& input, const Tensor& weight,
    const OptionalTensor& output, const Tensor& phase, double omega, std::array<bool, 4> mask) {
  const bool elements = grad.numel() > 0 && input.numel() > 0;
  if (backend.backward == nullptr || weight.dim() == 3 || !elements || mask[3]) return std::nullopt;
  Tensor x = rows_of(input, weight);
  if (x.stride(1) != 1) x = x.contiguous();
  const Tensor own_weight = weight.contiguous();
  const auto like = [&](bool wanted, at::IntArrayRef sizes) {
    return wanted ? at::empty(sizes, grad.options()) : Tensor();
  };
  ThreeTensors found{like(mask[0], input.sizes()), like(mask[1], weight.sizes()),
                     like(mask[2], weight.sizes().slice(0, 1))};
  const auto& [by_input, by_weight, by_bias] = found;
  const bool done = backend.backward(
      {to_dtype(grad.scalar_type()), x.size(0), weight.size(0), x.size(1), scale_of(omega, 1),
       grad.const_data_ptr(), data_if_any(output), phase.const_data_ptr(), x.const_data_ptr(),
       x.stride(0), own_weight.const_data_ptr(), data_of(by_input), data_of(by_weight),
       data_of(by_bias)},
      grad.device());
  return done ? std::optional(found) : std::nullopt;
}

// The first slope into `result`, which may be `grad`; gives its sums over the rows, if wanted. All
// but input and weight are contiguous.
static Tensor slope_and_sums(const SineLinearSlopes& backend, const Tensor& grad,
                             const Tensor& input, const Tensor& weight,
                             const OptionalTensor& output, const Tensor& phase, double omega,
                             bool sums, const Tensor& result) {
  const bool in_one =
      sums && backend.slope_sums != nullptr && weight.dim() == 2 && grad.numel() > 0;
  const Tensor by_bias = in_one ? at::empty({weight.size(0)}, grad.options()) : Tensor();
  if (result.numel() > 0) {
    with_slope(grad, std::nullopt, output, phase, omega, 1, result,
               [&](const SineLinearSlope& args) {
                 if (in_one) {
                   backend.slope_sums(args, rows_of(result, weight), by_bias);
                 } else {
                   backend.slope(args, grad.device());
                 }
               });
  }
  if (in_one || !sums) return by_bias;
  return std::get<2>(gradients_of_sum(result, input, weight, {false, false, true}));
}

FourTensors sine_linear_backward_with(const SineLinearSlopes& backend, const Tensor& grad,
                                      const Tensor& input, const Tensor& weight,
                                      const OptionalTensor& bias, const OptionalTensor& output,
                                      const Tensor& phase, double omega, std::array<bool, 4> mask) {
  constexpr const char* op = "sine_linear_backward";
  check_sine_linear_slope(op, grad, std::nullopt, input, weight, bias, output, phase, 1);
  check_storages(op, grad, std::nullopt, output, phase);
  check_storage(op, "input", input);
  check_storage(op, "weight", weight);
  if (mask == std::array<bool, 4>{}) return {};
  const Tensor own_grad = grad.contiguous(), own_phase = phase.contiguous();
  const OptionalTensor own_output = contiguous_if_any(output);
  const auto found =
      backward_at_once(backend, own_grad, input, weight, own_output, own_phase, omega, mask);
  if (found) return std::tuple_cat(*found, std::tuple(Tensor()));
  const Tensor slope = at::empty(grad.sizes(), grad.options());
  const Tensor by_bias = slope_and_sums(backend, own_grad, input, weight, own_output, own_phase,
                                        omega, mask[2], slope);
  const auto [by_input, by_weight, none] =
      gradients_of_sum(slope, input, weight, {mask[0], mask[1], false});
  return {by_input, by_weight, by_bias, mask[3] ? slope : Tensor()};
}

static void check_backward_inplace(const Tensor& grad, const Tensor& input, const Tensor& weight,
                                   const OptionalTensor& bias, const OptionalTensor& output,
                                   const Tensor& phase) {
  constexpr const char* op = "sine_linear_backward_";
  check_sine_linear_slope(op, grad, std::nullopt, input, weight, bias, output, phase, 1);
  TORCH_CHECK(grad.is_contiguous(), op, ": grad must be contiguous, got strides ",
              grad.sym_strides());
  if (has(output)) check_memory(op, "grad", grad, "output", *output);
  check_memory(op, "grad", grad, "phase", phase);
}

Tensor sine_linear_backward_inplace_with(const SineLinearSlopes& backend, const Tensor& grad,
                                         const Tensor& input, const Tensor& weight,
                                         const OptionalTensor& bias, const OptionalTensor& output,
                                         const Tensor& phase, double omega, bool sums) {
  check_backward_inplace(grad, input, weight, bias, output, phase);
  check_storages("sine_linear_backward_", grad, std::nullopt, output, phase);
  return slope_and_sums(backend, grad, input, weight, contiguous_if_any(output), phase.contiguous(),
                        omega, sums, grad);
}

ThreeTensors sine_linear_slope_backward_with(const SineLinearSlopes& backend, const Tensor& v,
                                             const Tensor& grad, const OptionalTensor& factor,
                                             const Tensor& input, const Tensor& weight,
                                             const OptionalTensor& bias,
                                             const OptionalTensor& output, const Tensor& phase,
                                             double omega, int64_t order,
                                             std::array<bool, 3> mask) {
  check_sine_linear_slope_backward(v, grad, factor, input, weight, bias, output, phase, order);
  constexpr const char* op = "sine_linear_slope_backward";
  check_storage(op, "v", v);
  check_storages(op, grad, factor, output, phase);
  std::array<Tensor, 3> results;
  for (size_t i = 0; i < 3; ++i) {
    if (mask[i]) results[i] = at::empty(grad.sizes(), grad.options());
  }
  if (grad.numel() > 0) {
    const Tensor own_v = v.contiguous(), own_grad = grad.contiguous();
    const Tensor own_phase = phase.contiguous();
    const OptionalTensor own_factor = contiguous_if_any(factor);
    const OptionalTensor own_output = contiguous_if_any(output);
    backend.slope_backward(
        {to_dtype(grad.scalar_type()), grad.numel(), scale_of(omega, order),
         scale_of(omega, order + 1), (order & 1) != 0, own_v.const_data_ptr(),
         own_grad.const_data_ptr(), data_if_any(own_factor), data_if_any(own_output),
         own_phase.const_data_ptr(), data_of(results[0]), data_of(results[1]), data_of(results[2])},
        grad.device());
  }
  return {results[0], results[1], results[2]};
}

// ---- meta

static Tensor sine_linear_slope_meta(const Tensor& grad, const OptionalTensor& factor,
                                     const Tensor& input, const Tensor& weight,
                                     const OptionalTensor& bias, const OptionalTensor& output,
                                     const Tensor& phase, double, int64_t order) {
  check_sine_linear_slope("sine_linear_slope", grad, factor, input, weight, bias, output, phase,
                          order);
  return at::empty_symint(grad.sym_sizes(), grad.options());
}

static FourTensors sine_linear_backward_meta(const Tensor& grad, const Tensor& input,
                                             const Tensor& weight, const OptionalTensor& bias,
                                             const OptionalTensor& output, const Tensor& phase,
                                             double, std::array<bool, 4> mask) {
  check_sine_linear_slope("sine_linear_backward", grad, std::nullopt, input, weight, bias, output,
                          phase, 1);
  const auto like = [&](bool wanted, c10::SymIntArrayRef sizes) {
    return wanted ? at::empty_symint(sizes, grad.options()) : Tensor();
  };
  const auto sizes = weight.sym_sizes();
  return {like(mask[0], input.sym_sizes()), like(mask[1], sizes),
          like(mask[2], sizes.slice(0, sizes.size() - 1)), like(mask[3], grad.sym_sizes())};
}

static Tensor sine_linear_backward_inplace_meta(Tensor& grad, const Tensor& input,
                                                const Tensor& weight, const OptionalTensor& bias,
                                                const OptionalTensor& output, const Tensor& phase,
                                                double, bool sums) {
  check_backward_inplace(grad, input, weight, bias, output, phase);
  const auto sizes = weight.sym_sizes();
  return sums ? at::empty_symint(sizes.slice(0, sizes.size() - 1), grad.options()) : Tensor();
}

static ThreeTensors sine_linear_slope_backward_meta(
    const Tensor& v, const Tensor& grad, const OptionalTensor& factor, const Tensor& input,
    const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& output,
    const Tensor& phase, double, int64_t order, std::array<bool, 3> mask) {
  check_sine_linear_slope_backward(v, grad, factor, input, weight, bias, output, phase, order);
  const auto like = [&](bool wanted) {
    return wanted ? at::empty_symint(grad.sym_sizes(), grad.options()) : Tensor();
  };
  return {like(mask[0]), like(mask[1]), like(mask[2])};
}

// ---- CPU

// Elements a task does at least: about 10 us of work.
static constexpr int64_t kGrain = 8192;

static void slope_cpu(const SineLinearSlope& args, at::Device) {
  at::parallel_for(0, args.numel, kGrain,
                   [&](int64_t begin, int64_t end) { cpu::sine_linear_slope(args, begin, end); });
}

static void slope_backward_cpu(const SineLinearSlopeBackward& args, at::Device) {
  at::parallel_for(0, args.numel, kGrain, [&](int64_t begin, int64_t end) {
    cpu::sine_linear_slope_backward(args, begin, end);
  });
}

// ---- registration

static constexpr SineLinearSlopes kCpuSlopes{slope_cpu, slope_backward_cpu,
                                             /*slope_sums=*/nullptr, /*backward=*/nullptr};

TORCH_LIBRARY_IMPL(treadle, CPU, m) { register_sine_linear_slopes<kCpuSlopes>(m); }

TORCH_LIBRARY_IMPL(treadle, Meta, m) {
  m.impl("sine_linear_slope", sine_linear_slope_meta);
  m.impl("sine_linear_backward", sine_linear_backward_meta);
  m.impl("sine_linear_backward_", sine_linear_backward_inplace_meta);
  m.impl("sine_linear_slope_backward", sine_linear_slope_backward_meta);
}

// Gradients of weight and bias are sums over the rows, so a batch of them is N layers. The others
// have rows that take a batch in: of grad, input, output and phase.
static void backward_batch_rule(const c10::OperatorHandle& op, Stack* stack) {
  const auto mask = stack->back().toBoolList();
  const bool sums = mask[1] || mask[2];
  batch_linear(op, stack, sums ? 0 : 0b110011, /*weight=*/2);
}

// Leading dimensions take a batch in: of v, grad, factor, input, output and phase.
TORCH_LIBRARY_IMPL(treadle, FuncTorchBatched, m) {
  m.impl("sine_linear_slope", TREADLE_RULE(linear_batch_rule<0b1100111, /*weight=*/3>));
  m.impl("sine_linear_backward", TREADLE_RULE(backward_batch_rule));
  m.impl("sine_linear_slope_backward", TREADLE_RULE(linear_batch_rule<0b11001111, /*weight=*/4>));
}

}  // namespace treadle
