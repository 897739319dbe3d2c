// sine_linear_slope: grad times factor times the order-th derivative of sin(omega z) by z = input
// weight^T + bias, made of output and phase without another product (kernels/math/sine_linear.h).
// sine_linear_slope_sums: the first one and its sums over the rows, the gradient by the bias.
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

SlopeAndSums sine_linear_slope_sums_with(const SineLinearSlopes& backend, const Tensor& grad,
                                         const Tensor& input, const Tensor& weight,
                                         const OptionalTensor& bias, const OptionalTensor& output,
                                         const Tensor& phase, double omega) {
  constexpr const char* op = "sine_linear_slope_sums";
  check_sine_linear_slope(op, grad, std::nullopt, input, weight, bias, output, phase, 1);
  check_storages(op, grad, std::nullopt, output, phase);
  if (backend.slope_sums == nullptr || weight.dim() == 3 || grad.numel() == 0) {
    const Tensor slope = sine_linear_slope_with(backend, grad, std::nullopt, input, weight, bias,
                                                output, phase, omega, 1);
    return {slope, rows_of(slope, weight).sum(-2)};
  }
  const Tensor slope = at::empty(grad.sizes(), grad.options());
  const Tensor sums = at::empty({weight.size(0)}, grad.options());
  with_slope(grad, std::nullopt, output, phase, omega, 1, slope, [&](const SineLinearSlope& args) {
    backend.slope_sums(args, rows_of(slope, weight), sums);
  });
  return {slope, sums};
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

static SlopeAndSums sine_linear_slope_sums_meta(const Tensor& grad, const Tensor& input,
                                                const Tensor& weight, const OptionalTensor& bias,
                                                const OptionalTensor& output, const Tensor& phase,
                                                double) {
  check_sine_linear_slope("sine_linear_slope_sums", grad, std::nullopt, input, weight, bias, output,
                          phase, 1);
  // One for each row of each weight.
  const auto sizes = weight.sym_sizes();
  return {at::empty_symint(grad.sym_sizes(), grad.options()),
          at::empty_symint(sizes.slice(0, sizes.size() - 1), grad.options())};
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
                                             /*slope_sums=*/nullptr};

TORCH_LIBRARY_IMPL(treadle, CPU, m) { register_sine_linear_slopes<kCpuSlopes>(m); }

TORCH_LIBRARY_IMPL(treadle, Meta, m) {
  m.impl("sine_linear_slope", sine_linear_slope_meta);
  m.impl("sine_linear_slope_sums", sine_linear_slope_sums_meta);
  m.impl("sine_linear_slope_backward", sine_linear_slope_backward_meta);
}

// Leading dimensions take a batch in: of v, grad, factor, input, output and phase. Sums are over
// them, so a batch of sums is N layers.
TORCH_LIBRARY_IMPL(treadle, FuncTorchBatched, m) {
  m.impl("sine_linear_slope", TREADLE_RULE(linear_batch_rule<0b1100111, /*weight=*/3>));
  m.impl("sine_linear_slope_sums", TREADLE_RULE(linear_batch_rule<0, /*weight=*/2>));
  m.impl("sine_linear_slope_backward", TREADLE_RULE(linear_batch_rule<0b11001111, /*weight=*/4>));
}

}  // namespace treadle
