// sine_linear_jet: propagates a jet [P, ..., I] through a layer to an output [P, ..., O]. The P
// parts of a jet are the value, its derivatives with respect to d coordinates, and the second
// derivatives: none, the Laplacian, or the d elements of the Hessian's diagonal.
// sine_linear_jet_backward: gradients of jet, weight and bias. Formula: kernels/math/sine_jet.h.
// Derivatives: jet_autograd.cpp. Backends: cpu.cpp, cuda/sine_linear.cpp.
#include "sine_linear/jet.h"

#include <ATen/Functions.h>
#include <ATen/OpMathType.h>

#include <algorithm>

#include "common/check.h"
#include "common/rules.h"
#include "common/tf32.h"

namespace treadle {

// The minimum number of points of a chunk; smaller GEMMs are inefficient.
static constexpr int64_t kMinPoints = 256;

// ---- forward

namespace {

struct Forward {
  const SineJetBackend& backend;
  SineJetForward args;
  Tensor x, output;  // [P, N, I] and [P, N, O]
  Tensor weight;

  int64_t parts() const { return x.size(0); }
  int64_t points() const { return x.size(1); }

  // product [k, n, O] = x [k, n, I] weight^T, in float32 for half types. Runs one GEMM if product
  // and x are contiguous, otherwise one per part.
  void multiply(const Tensor& product, const Tensor& x, const Tensor& operand) const {
    const auto run = [&](const Tensor& out, const Tensor& rows) {
      backend.layer.gemm(out, backend.layer.gemm_operand(rows), operand);
    };
    if (product.is_contiguous() && x.is_contiguous()) {
      run(all_rows_of(product), all_rows_of(x));
      return;
    }
    for (int64_t p = 0; p < x.size(0); ++p) run(product.select(0, p), x.select(0, p));
  }

  // Sets the operands for kernels that compute the product themselves.
  void take_operands() {
    args.input = x.const_data_ptr();
    args.input_part_stride = x.stride(0);
    args.row_stride = x.stride(1);
    args.column_stride = x.stride(2);
    args.inputs = x.size(2);
    args.weight = weight.const_data_ptr();
  }

  // Writes rounded products of all parts except the value to output, where the kernel reads them.
  void multiply_rest() const {
    Tensor rest = all_rows_of(output.narrow(0, 1, parts() - 1));
    at::mm_out(rest, all_rows_of(x.narrow(0, 1, parts() - 1)), weight.t());
  }

  // Runs the GEMMs and the kernel: once for all points if in place, otherwise for each chunk.
  void run() {
    take_operands();
    if (backend.multiplies && x.size(2) <= kMaxCoordinates) {
      return backend.forward(args, x.device());
    }
    if (backend.fused_forward != nullptr && backend.fused_forward(args, x.device())) return;
    const auto acc = at::toOpMathType(x.scalar_type());
    const bool in_place = acc == x.scalar_type();
    const bool rounded = backend.rounds_rest && !in_place;
    const int64_t columns = args.columns, wide = rounded ? 1 : parts();
    const int64_t row_bytes = columns * static_cast<int64_t>(c10::elementSize(acc));
    const int64_t most = in_place ? points() : backend.layer.gemm_bytes / row_bytes;
    const int64_t chunk = std::min(points(), std::max(most, kMinPoints));
    const Tensor products =
        in_place ? output : at::empty({wide, chunk, columns}, x.options().dtype(acc));
    const Tensor operand = backend.layer.gemm_operand(weight);
    if (rounded) multiply_rest();
    const int64_t size = output.element_size(), phase_size = acc == at::kDouble ? 8 : 2;
    const auto all = args;
    for (int64_t point = 0; point < all.rows; point += chunk) {
      args.rows = std::min(chunk, all.rows - point);
      const Tensor product = products.narrow(1, in_place ? point : 0, args.rows);
      multiply(product, x.narrow(0, 0, wide).narrow(1, point, args.rows), operand);
      args.value = product.const_data_ptr();
      args.output = static_cast<char*>(all.output) + point * columns * size;
      const Tensor& rest = rounded ? output : products;
      args.rest_stride = rest.stride(0);
      args.rest = static_cast<const char*>(rounded ? args.output : args.value) +
                  args.rest_stride * rest.element_size();
      if (all.phase != nullptr) {
        args.phase = static_cast<char*>(all.phase) + point * columns * phase_size;
      }
      backend.forward(args, x.device());
    }
  }
};

// phase is undefined unless `save`.
OutputAndPhase run_jet_forward(const SineJetBackend& backend, const Tensor& jet,
                               const Tensor& weight, const Tensor& bias, double omega,
                               int64_t coordinates, std::string_view second, bool save) {
  constexpr const char* op = "sine_linear_jet";
  const JetParts parts = check_jet(op, jet, weight, bias, omega, coordinates, second).parts;
  check_storages(op, {{"jet", jet}, {"weight", weight}, {"bias", bias}});
  std::vector<int64_t> shape(jet.sizes().begin(), jet.sizes().end());
  shape.back() = weight.size(0);
  const Tensor output = at::empty(shape, jet.options());
  const auto kept = at::IntArrayRef(shape).slice(1);
  const Tensor phase =
      save ? at::empty(kept, jet.options().dtype(phase_dtype(jet.scalar_type()))) : Tensor();
  if (output.numel() == 0) return {output, phase};
  Tensor x = points_of(jet), own_weight = weight.contiguous();
  const Tensor own_bias = contiguous(bias);
  if (x.size(2) == 0) {  // no features: the product is the same as with one feature of zeros
    x = x.new_zeros({1, 1, 1}).expand({x.size(0), x.size(1), 1});
    own_weight = weight.new_zeros({shape.back(), 1});
  }
  Forward run{backend, {}, x, output.view({x.size(0), x.size(1), shape.back()}), own_weight};
  run.args.dtype = to_dtype(jet.scalar_type());
  run.args.parts = parts;
  run.args.rows = x.size(1);
  run.args.columns = shape.back();
  run.args.omega = omega;
  run.args.bias = const_data_of(own_bias);
  run.args.output = output.mutable_data_ptr();
  run.args.part_stride = run.output.stride(0);
  run.args.phase = data_of(phase);
  run.run();
  return {output, phase};
}

}  // namespace

Tensor sine_linear_jet_kernel(const SineJetBackend& backend, const Tensor& jet,
                              const Tensor& weight, const OptionalTensor& bias, double omega,
                              int64_t coordinates, std::string_view second) {
  return std::get<0>(run_jet_forward(backend, jet, weight, value_or_undefined(bias), omega,
                                     coordinates, second, /*save=*/false));
}

OutputAndPhase sine_linear_jet_forward_kernel(const SineJetBackend& backend, const Tensor& jet,
                                              const Tensor& weight, const OptionalTensor& bias,
                                              double omega, int64_t coordinates,
                                              std::string_view second) {
  return run_jet_forward(backend, jet, weight, value_or_undefined(bias), omega, coordinates, second,
                         /*save=*/true);
}

// ---- backward

// Returns grad_z [P, N, O]. If grad_bias is defined, writes the sums of the value part of grad_z to
// it.
static Tensor jet_grad_z(const SineJetBackend& backend, const JetLayer& layer, const Tensor& grad,
                         const Tensor& output, const Tensor& phase, const Tensor& grad_bias) {
  const Tensor x = points_of(layer.jet), g = grad.contiguous();
  const Tensor y = output.contiguous(), kept = phase.contiguous();
  const int64_t columns = layer.weight.size(0), seconds = layer.parts.seconds();
  const Tensor grad_z = at::empty({x.size(0), x.size(1), columns}, grad.options());
  if (grad_z.numel() == 0) {
    if (grad_bias.defined()) grad_bias.zero_();
    return grad_z;
  }
  if (seconds > 0) {
    const int64_t first = x.size(0) - seconds;
    Tensor second = all_rows_of(grad_z.narrow(0, first, seconds));
    at::mm_out(second, all_rows_of(x.narrow(0, first, seconds)), layer.weight.t());
  }
  backend.backward({to_dtype(grad.scalar_type()), layer.parts, x.size(1), columns, layer.omega,
                    g.const_data_ptr(), y.const_data_ptr(), kept.const_data_ptr(),
                    grad_z.mutable_data_ptr(), data_of(grad_bias), nullptr},
                   grad_z, grad_bias);
  return grad_z;
}

// weight in the layout that is fastest in cuBLAS. For TF32 this must be dense along the dimension
// over which the product sums, as in the forward pass.
static Tensor dense_along_sum(const Tensor& weight) {
  const bool tf32 = weight.is_cuda() && weight.scalar_type() == at::kFloat && tf32_allowed();
  return tf32 ? weight.t().contiguous().t() : weight;
}

Tensors3 sine_linear_jet_backward_kernel(const SineJetBackend& backend, const Tensor& grad,
                                         const Tensor& jet, const Tensor& weight,
                                         const OptionalTensor& bias, const Tensor& output,
                                         const Tensor& phase, double omega, int64_t coordinates,
                                         std::string_view second, std::array<bool, 3> mask) {
  constexpr const char* op = "sine_linear_jet_backward";
  const Tensor b = value_or_undefined(bias);
  const JetLayer layer = check_jet(op, jet, weight, b, omega, coordinates, second);
  check_jet_backward(op, layer, grad, output, phase);
  check_storages(
      op, {{"grad", grad}, {"jet", jet}, {"weight", weight}, {"output", output}, {"phase", phase}});
  if (mask == std::array<bool, 3>{}) return {};
  const Tensor grad_bias = mask[2] ? at::empty({weight.size(0)}, grad.options()) : Tensor();
  const Tensor grad_z = jet_grad_z(backend, layer, grad, output, phase, grad_bias);
  const auto [grad_jet, grad_weight, none] = gradients_from_z(
      all_rows_of(grad_z), jet, dense_along_sum(weight), {mask[0], mask[1], false});
  return {grad_jet, grad_weight, grad_bias};
}

// ---- meta

static Tensor sine_linear_jet_meta(const Tensor& jet, const Tensor& weight,
                                   const OptionalTensor& bias, double omega, int64_t coordinates,
                                   std::string_view second) {
  const Tensor b = value_or_undefined(bias);
  check_jet("sine_linear_jet", jet, weight, b, omega, coordinates, second);
  return at::empty_symint(output_shape(jet, weight), jet.options());
}

static OutputAndPhase sine_linear_jet_forward_meta(const Tensor& jet, const Tensor& weight,
                                                   const OptionalTensor& bias, double omega,
                                                   int64_t coordinates, std::string_view second) {
  const Tensor output = sine_linear_jet_meta(jet, weight, bias, omega, coordinates, second);
  return {output, at::empty_symint(phase_shape(jet, weight),
                                   jet.options().dtype(phase_dtype(jet.scalar_type())))};
}

static Tensors3 sine_linear_jet_backward_meta(const Tensor& grad, const Tensor& jet,
                                              const Tensor& weight, const OptionalTensor& bias,
                                              const Tensor& output, const Tensor& phase,
                                              double omega, int64_t coordinates,
                                              std::string_view second, std::array<bool, 3> mask) {
  constexpr const char* op = "sine_linear_jet_backward";
  const Tensor b = value_or_undefined(bias);
  const JetLayer layer = check_jet(op, jet, weight, b, omega, coordinates, second);
  check_jet_backward(op, layer, grad, output, phase);
  const auto sizes = weight.sym_sizes();
  return {empty_like_if(mask[0], jet), empty_like_if(mask[1], weight),
          mask[2] ? at::empty_symint(sizes.slice(0, 1), grad.options()) : Tensor()};
}

TORCH_LIBRARY_IMPL(treadle, Meta, m) {
  m.impl("sine_linear_jet", sine_linear_jet_meta);
  m.impl("sine_linear_jet_forward", sine_linear_jet_forward_meta);
  m.impl("sine_linear_jet_backward", sine_linear_jet_backward_meta);
}

TORCH_LIBRARY_IMPL(treadle, AutocastCPU, m) {
  m.impl("sine_linear_jet", TREADLE_RULE(autocast_rule<c10::DeviceType::CPU, kNoneKept>));
}
TORCH_LIBRARY_IMPL(treadle, AutocastCUDA, m) {
  m.impl("sine_linear_jet", TREADLE_RULE(autocast_rule<c10::DeviceType::CUDA, kNoneKept>));
}

}  // namespace treadle
