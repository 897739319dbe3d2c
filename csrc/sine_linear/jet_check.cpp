// Checks the arguments of sine_linear_jet's ops.
#include <c10/util/Exception.h>

#include <cmath>

#include "common/check.h"
#include "sine_linear/jet.h"

namespace treadle {

static JetSecond second_of(const char* op, std::string_view name) {
  if (name == "none") return JetSecond::kNone;
  if (name == "laplacian") return JetSecond::kLaplacian;
  TORCH_CHECK(name == "hessian_diagonal", op,
              ": second must be none, laplacian or hessian_diagonal, got ", name);
  return JetSecond::kDiagonal;
}

// Checks omega as the kernels use it: in float32, a double may round to 0 or inf.
static bool usable(double omega, ScalarType dtype) {
  const double taken = dtype == at::kDouble ? omega : static_cast<float>(omega);
  return std::isfinite(taken) && taken != 0;
}

JetLayer check_jet(const char* op, const Tensor& jet, const Tensor& weight, const Tensor& bias,
                   double omega, int64_t coordinates, std::string_view second) {
  TORCH_CHECK(is_floating_dtype(jet.scalar_type()), op,
              ": jet must have dtype float16, bfloat16, float32 or float64, got ",
              dtype_name(jet.scalar_type()));
  TORCH_CHECK(coordinates >= 1, op, ": coordinates must be 1 or more, got ", coordinates);
  const JetParts parts{coordinates, second_of(op, second)};
  TORCH_CHECK(jet.dim() >= 2 && jet.sym_size(0) == parts.total(), op,
              ": jet must have shape [P, ..., I] with P = ", parts.total(),
              " for coordinates = ", coordinates, " and second = ", second, ", got ",
              jet.sym_sizes());
  check_like(op, "weight", weight, "jet", jet);
  if (bias.defined()) check_like(op, "bias", bias, "jet", jet);
  TORCH_CHECK(weight.dim() == 2 && weight.sym_size(1) == jet.sym_size(-1), op,
              ": weight must have shape [O, I] with I = ", jet.sym_size(-1), ", got ",
              weight.sym_sizes());
  if (bias.defined()) {
    check_shape(op, "bias", "[O]", bias, c10::SymDimVector{weight.sym_size(0)});
  }
  TORCH_CHECK(usable(omega, jet.scalar_type()), op, ": omega must be finite and not 0",
              jet.scalar_type() == at::kDouble ? "" : " in float32", ", got ", omega);
  return {jet, weight, bias, omega, parts};
}

c10::SymDimVector phase_shape(const Tensor& jet, const Tensor& weight) {
  auto shape = output_shape(jet, weight);
  shape.erase(shape.begin());
  return shape;
}

void check_jet_backward(const char* op, const JetLayer& layer, const Tensor& grad,
                        const Tensor& output, const Tensor& phase) {
  const auto shape = output_shape(layer.jet, layer.weight);
  for (const auto& [name, t] : {NamedTensor{"grad", grad}, NamedTensor{"output", output}}) {
    check_like(op, name, t, "jet", layer.jet);
    check_shape(op, name, "[P, ..., O]", t, shape);
  }
  check_phase(op, phase, "jet", layer.jet, phase_shape(layer.jet, layer.weight));
}

}  // namespace treadle
