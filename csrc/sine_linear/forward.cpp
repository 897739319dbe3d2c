// sine_linear: output [..., O] = sin(omega (input [..., I] weight [O, I]^T + bias [O])). For N
// layers in one call, weight is [N, O, I], bias [N, O] and input [N, ..., I].
// Derivatives: backward.cpp, autograd.cpp. Backends: cpu.cpp, cuda/sine_linear.cpp.
#include <ATen/Functions.h>
#include <ATen/OpMathType.h>

#include <algorithm>

#include "common/check.h"
#include "common/rules.h"
#include "common/vmap.h"
#include "sine_linear/sine_linear.h"

namespace treadle {
namespace {

// The minimum number of rows of a chunk; smaller GEMMs are inefficient.
constexpr int64_t kMinRows = 256;

std::vector<int64_t> sizes_of(const c10::SymDimVector& shape) {
  std::vector<int64_t> sizes;
  for (const auto& size : shape) sizes.push_back(size.expect_int());
  return sizes;
}

// N layers: one batched GEMM computes the product and adds the bias.
void forward_layers(const SineLinearBackend& backend, SineLinearForward args, const Tensor& input,
                    const Tensor& weight, const Tensor& bias) {
  const auto acc = at::toOpMathType(input.scalar_type());
  const Tensor x = rows_of(input, weight).to(acc), w = weight.to(acc).mT();
  const Tensor z = bias.defined() ? at::baddbmm(bias.to(acc).unsqueeze(1), x, w) : at::bmm(x, w);
  const Tensor product = z.contiguous();
  args.product = product.const_data_ptr();
  backend.forward(args, input.device());
}

// Adds the operands for kernels that compute the product themselves. weight is contiguous.
SineLinearForward with_operands(SineLinearForward args, const Tensor& x, const Tensor& weight,
                                const Tensor& bias) {
  args.input = x.const_data_ptr();
  args.row_stride = x.stride(0);
  args.column_stride = x.stride(1);
  args.inputs = x.size(1);
  args.weight = weight.const_data_ptr();
  args.bias = const_data_of(bias);
  return args;
}

// One layer with x [R, I]: a fused kernel, or a GEMM and the pointwise kernel for each chunk of
// rows.
void forward_rows(const SineLinearBackend& backend, SineLinearForward args, const Tensor& x,
                  const Tensor& weight, const Tensor& bias, const Tensor& output) {
  if (backend.fused_forward != nullptr && weight.is_contiguous() &&
      backend.fused_forward(with_operands(args, x, weight, bias), x.device())) {
    return;
  }
  const auto acc = at::toOpMathType(x.scalar_type());
  const int64_t rows = args.rows, columns = args.columns;
  const int64_t row_bytes = columns * static_cast<int64_t>(c10::elementSize(acc));
  const int64_t chunk = std::min(rows, std::max<int64_t>(backend.gemm_bytes / row_bytes, kMinRows));
  const bool in_place = acc == x.scalar_type();
  const Tensor products =
      in_place ? output.view({rows, columns}) : at::empty({chunk, columns}, x.options().dtype(acc));
  const Tensor w = backend.gemm_operand(weight);
  const int64_t phase_size = acc == at::kDouble ? 8 : 2;
  char* const first = static_cast<char*>(args.output);
  char* const first_phase = static_cast<char*>(args.phase);
  args.bias = const_data_of(bias);
  for (int64_t row = 0; row < rows; row += chunk) {
    args.rows = std::min(chunk, rows - row);
    const Tensor product = products.narrow(0, in_place ? row : 0, args.rows);
    const bool whole = args.rows == rows;
    backend.gemm(product, backend.gemm_operand(whole ? x : x.narrow(0, row, args.rows)), w);
    args.product = product.const_data_ptr();
    args.output = first + row * columns * output.element_size();
    if (first_phase != nullptr) args.phase = first_phase + row * columns * phase_size;
    backend.forward(args, x.device());
  }
}

}  // namespace

// Returns a view if possible. Does not call flatten, because gradcheck uses an older implementation
// of vmap, which has no rule for it.
Tensor rows_of(const Tensor& t, int64_t front) {
  if (t.dim() == front + 2) return t;
  c10::SymDimVector shape;
  if (front == 1) shape.push_back(t.sym_size(0));
  shape.push_back(1);
  for (int64_t d = front; d < t.dim() - 1; ++d) shape.back() = shape.back() * t.sym_size(d);
  shape.push_back(t.sym_size(-1));
  return t.reshape_symint(shape);
}

// phase is undefined unless `save`.
static OutputAndPhase run_forward(const SineLinearBackend& backend, const Tensor& input,
                                  const Tensor& weight, const Tensor& bias, double omega,
                                  bool save) {
  check_sine_linear("sine_linear", input, weight, bias);
  check_storage("sine_linear", "input", input);
  check_storage("sine_linear", "weight", weight);
  check_storage_if_any("sine_linear", "bias", bias);
  const auto shape = sizes_of(output_shape(input, weight));
  const Tensor output = at::empty(shape, input.options());
  const Tensor phase =
      save ? at::empty(shape, input.options().dtype(phase_dtype(input.scalar_type()))) : Tensor();
  if (output.numel() == 0) return {output, phase};
  SineLinearForward args{};
  args.dtype = to_dtype(input.scalar_type());
  args.columns = shape.back();
  args.rows = output.numel() / args.columns;
  args.omega = omega;
  args.output = data_of(output);
  args.phase = data_of(phase);
  if (weight.dim() == 3) {
    forward_layers(backend, args, input, weight, bias);
    return {output, phase};
  }
  const Tensor x = rows_of(input, weight);
  const Tensor own_bias = contiguous(bias);
  if (x.size(1) <= kMaxCoordinates) {
    const Tensor own_weight = weight.contiguous();
    backend.forward(with_operands(args, x, own_weight, own_bias), x.device());
  } else {
    forward_rows(backend, args, x, weight, own_bias, output);
  }
  return {output, phase};
}

Tensor sine_linear_kernel(const SineLinearBackend& backend, const Tensor& input,
                          const Tensor& weight, const OptionalTensor& bias, double omega) {
  return std::get<0>(
      run_forward(backend, input, weight, value_or_undefined(bias), omega, /*save=*/false));
}

OutputAndPhase sine_linear_forward_kernel(const SineLinearBackend& backend, const Tensor& input,
                                          const Tensor& weight, const OptionalTensor& bias,
                                          double omega) {
  return run_forward(backend, input, weight, value_or_undefined(bias), omega, /*save=*/true);
}

// ---- meta

static Tensor sine_linear_meta(const Tensor& input, const Tensor& weight,
                               const OptionalTensor& bias, double) {
  check_sine_linear("sine_linear", input, weight, value_or_undefined(bias));
  return at::empty_symint(output_shape(input, weight), input.options());
}

static OutputAndPhase sine_linear_forward_meta(const Tensor& input, const Tensor& weight,
                                               const OptionalTensor& bias, double omega) {
  const Tensor output = sine_linear_meta(input, weight, bias, omega);
  return {output, at::empty_symint(output.sym_sizes(),
                                   input.options().dtype(phase_dtype(input.scalar_type())))};
}

// ---- registration

TORCH_LIBRARY_IMPL(treadle, Meta, m) {
  m.impl("sine_linear", sine_linear_meta);
  m.impl("sine_linear_forward", sine_linear_forward_meta);
}

// vmap: the batch becomes a leading dimension of input.
TORCH_LIBRARY_IMPL(treadle, FuncTorchBatched, m) {
  m.impl("sine_linear", TREADLE_RULE(linear_batch_rule<0b0001, /*weight=*/1>));
  m.impl("sine_linear_forward", TREADLE_RULE(linear_batch_rule<0b0001, /*weight=*/1>));
}

TORCH_LIBRARY_IMPL(treadle, AutocastCPU, m) {
  m.impl("sine_linear", TREADLE_RULE(autocast_rule<c10::DeviceType::CPU, kNoneKept>));
}
TORCH_LIBRARY_IMPL(treadle, AutocastCUDA, m) {
  m.impl("sine_linear", TREADLE_RULE(autocast_rule<c10::DeviceType::CUDA, kNoneKept>));
}

}  // namespace treadle
