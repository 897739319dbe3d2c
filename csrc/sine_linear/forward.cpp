// sine_linear: output [..., O] = sin(omega (input [..., I] weight [O, I]^T + bias [O])). For N
// layers in one call weight is [N, O, I], bias [N, O], and input [N, ..., I].
// Derivatives: sine_linear_slope.cpp, sine_linear_autograd.cpp. Twins: cuda/sine_linear.cpp,
// cpu/sine_linear.cpp.
#include "sine_linear.h"

#include <ATen/Functions.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "check.h"
#include "cpu/sine_linear.h"
#include "rules.h"

namespace treadle {
namespace {

// A product of fewer rows at a time does not pay.
constexpr int64_t kFewestRows = 256;

std::vector<int64_t> sizes_of(const c10::SymDimVector& shape) {
  std::vector<int64_t> sizes;
  for (const auto& size : shape) sizes.push_back(size.expect_int());
  return sizes;
}

// Of N layers everything that omega multiplies is one product.
void forward_of_many(const SineLinearBackend& backend, SineLinearForward args, const Tensor& input,
                     const Tensor& weight, const OptionalTensor& bias) {
  const auto acc = at::toOpMathType(input.scalar_type());
  const Tensor x = rows_of(input, weight).to(acc), w = weight.to(acc).mT();
  const Tensor z = has(bias) ? at::baddbmm(bias->to(acc).unsqueeze(1), x, w) : at::bmm(x, w);
  const Tensor product = z.contiguous();
  args.product = product.const_data_ptr();
  backend.forward(args, input.device());
}

// The kernels' own products, of contiguous weights.
SineLinearForward with_operands(SineLinearForward args, const Tensor& x, const Tensor& weight,
                                const OptionalTensor& bias) {
  args.input = x.const_data_ptr();
  args.row_stride = x.stride(0);
  args.column_stride = x.stride(1);
  args.inputs = x.size(1);
  args.weight = weight.const_data_ptr();
  args.bias = data_if_any(bias);
  return args;
}

void forward_of_rows(const SineLinearBackend& backend, SineLinearForward args, const Tensor& x,
                     const Tensor& weight, const OptionalTensor& bias, const Tensor& output) {
  if (backend.whole != nullptr && weight.is_contiguous() &&
      backend.whole(with_operands(args, x, weight, bias), x.device())) {
    return;
  }
  const auto acc = at::toOpMathType(x.scalar_type());
  const int64_t rows = args.rows, columns = args.columns;
  const int64_t row_bytes = columns * static_cast<int64_t>(c10::elementSize(acc));
  const int64_t together =
      std::min(rows, std::max<int64_t>(backend.product_bytes / row_bytes, kFewestRows));
  const bool in_place = acc == x.scalar_type();
  const Tensor products = in_place ? output.view({rows, columns})
                                   : at::empty({together, columns}, x.options().dtype(acc));
  const Tensor w = backend.operand(weight);
  const int64_t phase_size = acc == at::kDouble ? 8 : 2;
  char* const first = static_cast<char*>(args.output);
  char* const first_phase = static_cast<char*>(args.phase);
  args.bias = data_if_any(bias);
  for (int64_t row = 0; row < rows; row += together) {
    args.rows = std::min(together, rows - row);
    const Tensor product = products.narrow(0, in_place ? row : 0, args.rows);
    const bool whole = args.rows == rows;
    backend.product(product, backend.operand(whole ? x : x.narrow(0, row, args.rows)), w);
    args.product = product.const_data_ptr();
    args.output = first + row * columns * output.element_size();
    if (first_phase != nullptr) args.phase = first_phase + row * columns * phase_size;
    backend.forward(args, x.device());
  }
}

}  // namespace

// A view where it can be. Not flatten, which torch's older vmap, that of gradcheck, does not know.
Tensor rows_of(const Tensor& t, const Tensor& weight) {
  const int64_t front = weight.dim() - 2;
  if (t.dim() == front + 2) return t;
  c10::SymDimVector shape;
  if (front == 1) shape.push_back(t.sym_size(0));
  shape.push_back(1);
  for (int64_t d = front; d < t.dim() - 1; ++d) shape.back() = shape.back() * t.sym_size(d);
  shape.push_back(t.sym_size(-1));
  return t.reshape_symint(shape);
}

OutputAndPhase sine_linear_with(const SineLinearBackend& backend, const Tensor& input,
                                const Tensor& weight, const OptionalTensor& bias, double omega,
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
    forward_of_many(backend, args, input, weight, bias);
    return {output, phase};
  }
  const Tensor x = rows_of(input, weight);
  const OptionalTensor own_bias = contiguous_if_any(bias);
  if (x.size(1) <= kMostCoordinates) {
    const Tensor own_weight = weight.contiguous();
    backend.forward(with_operands(args, x, own_weight, own_bias), x.device());
  } else {
    forward_of_rows(backend, args, x, weight, own_bias, output);
  }
  return {output, phase};
}

// ---- meta

static Tensor sine_linear_meta(const Tensor& input, const Tensor& weight,
                               const OptionalTensor& bias, double) {
  check_sine_linear("sine_linear", input, weight, bias);
  return at::empty_symint(output_shape(input, weight), input.options());
}

static OutputAndPhase sine_linear_forward_meta(const Tensor& input, const Tensor& weight,
                                               const OptionalTensor& bias, double omega) {
  const Tensor output = sine_linear_meta(input, weight, bias, omega);
  return {output, at::empty_symint(output.sym_sizes(),
                                   input.options().dtype(phase_dtype(input.scalar_type())))};
}

// ---- CPU

// Elements a task does at least: about 20 us of work.
static constexpr int64_t kGrain = 8192;

static Tensor operand_cpu(const Tensor& t) { return t.to(at::toOpMathType(t.scalar_type())); }

static void product_cpu(const Tensor& out, const Tensor& x, const Tensor& weight) {
  Tensor z = out;
  at::mm_out(z, x, weight.t());
}

static void forward_cpu(const SineLinearForward& args, at::Device) {
  at::parallel_for(0, args.rows * args.columns, kGrain,
                   [&](int64_t begin, int64_t end) { cpu::sine_linear_forward(args, begin, end); });
}

// ---- registration

static constexpr SineLinearBackend kCpuBackend{operand_cpu, product_cpu, forward_cpu,
                                               /*whole=*/nullptr,
                                               /*product_bytes=*/int64_t{1} << 23};

TORCH_LIBRARY_IMPL(treadle, CPU, m) { register_sine_linear<kCpuBackend>(m); }

TORCH_LIBRARY_IMPL(treadle, Meta, m) {
  m.impl("sine_linear", sine_linear_meta);
  m.impl("sine_linear_forward", sine_linear_forward_meta);
}

// Leading dimensions take a batch in.
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
