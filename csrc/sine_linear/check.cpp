// Checks the arguments of sine_linear's ops.
#include "common/check.h"

#include <c10/util/Exception.h>

#include "sine_linear/sine_linear.h"

namespace treadle {

c10::SymDimVector output_shape(const Tensor& input, const Tensor& weight) {
  c10::SymDimVector shape(input.sym_sizes().begin(), input.sym_sizes().end());
  shape.back() = weight.sym_size(-2);
  return shape;
}

ScalarType phase_dtype(ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kShort; }

void check_output_like(const char* op, const char* name, const Tensor& t, const Tensor& input,
                       c10::SymIntArrayRef shape) {
  check_like(op, name, t, "input", input);
  check_shape(op, name, "[..., O]", t, shape);
}

void check_phase(const char* op, const Tensor& phase, const char* name, const Tensor& input,
                 c10::SymIntArrayRef shape) {
  TORCH_CHECK(phase.device() == input.device(), op, ": phase must be on the device of ", name, ", ",
              input.device(), ", got ", phase.device());
  const auto dtype = phase_dtype(input.scalar_type());
  TORCH_CHECK(phase.scalar_type() == dtype, op, ": phase must have dtype ", dtype_name(dtype),
              ", got ", dtype_name(phase.scalar_type()));
  check_shape(op, "phase", "[..., O]", phase, shape);
}

static void check_weight(const char* op, const Tensor& input, const Tensor& weight) {
  const auto features = input.sym_size(-1);
  if (weight.dim() != 3) {
    TORCH_CHECK(weight.dim() == 2 && weight.sym_size(1) == features, op,
                ": weight must have shape [O, I] with I = ", features, ", got ",
                weight.sym_sizes());
    return;
  }
  TORCH_CHECK(input.dim() >= 2, op, ": input must have shape [N, ..., I] for N layers, got ",
              input.sym_sizes());
  TORCH_CHECK(weight.sym_size(0) == input.sym_size(0) && weight.sym_size(2) == features, op,
              ": weight must have shape [O, I], or [N, O, I] for N layers, with N = ",
              input.sym_size(0), " and I = ", features, ", got ", weight.sym_sizes());
}

void check_sine_linear(const char* op, const Tensor& input, const Tensor& weight,
                       const Tensor& bias) {
  TORCH_CHECK(input.dim() >= 1, op, ": input must have shape [..., I], got ", input.sym_sizes());
  TORCH_CHECK(is_floating_dtype(input.scalar_type()), op,
              ": input must have dtype float16, bfloat16, float32 or float64, got ",
              dtype_name(input.scalar_type()));
  check_like(op, "weight", weight, "input", input);
  if (bias.defined()) check_like(op, "bias", bias, "input", input);
  check_weight(op, input, weight);
  if (!bias.defined()) return;
  c10::SymDimVector shape{weight.sym_size(-2)};
  if (weight.dim() == 3) shape.insert(shape.begin(), weight.sym_size(0));
  check_shape(op, "bias", weight.dim() == 3 ? "[N, O]" : "[O]", bias, shape);
}

void check_sine_linear_slope(const char* op, const SineLayer& layer, const Tensor& grad,
                             const Tensor& factor, int64_t order) {
  const auto& [input, weight, bias, output, phase, omega] = layer;
  check_sine_linear(op, input, weight, bias);
  const auto shape = output_shape(input, weight);
  check_output_like(op, "grad", grad, input, shape);
  if (factor.defined()) check_output_like(op, "factor", factor, input, shape);
  if (output.defined()) check_output_like(op, "output", output, input, shape);
  TORCH_CHECK(output.defined() || !reads_output(input.scalar_type()), op,
              ": output must be given for float32, got none");
  check_phase(op, phase, "input", input, shape);
  TORCH_CHECK(order >= 1, op, ": order must be 1 or more, got ", order);
}

}  // namespace treadle
