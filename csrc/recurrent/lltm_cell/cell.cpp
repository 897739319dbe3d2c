// lltm_cell: one step of an LSTM without a forget gate. Sizes: B rows, I inputs, H hidden units.
// All tensors may have a leading dimension N, for N independent cells.
//   gates [B, 3H] = [old_h, input] weights^T; i, o, z = sigmoid, sigmoid, elu of gates + bias
//   new_cell = old_cell + z i; new_h = tanh(new_cell) o
// Derivatives: autograd.cpp. Pointwise part: cell.cu and cpu/cell.cpp in
// kernels/recurrent/lltm_cell.
#include "recurrent/lltm_cell/cell.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include "common/check.h"
#include "common/flush.h"
#include "common/gemm.h"
#include "common/rules.h"
#include "common/vmap.h"
#include "kernels/common/cpu/subnormals.h"
#include "kernels/recurrent/lltm_cell/cpu/cell.h"
#include "recurrent/lltm_cell/check.h"

namespace treadle {

LltmView view(const Tensor& t) {
  const bool many = t.dim() == 3;
  return {t.const_data_ptr(), many ? t.stride(0) : 0, t.stride(-2), t.stride(-1)};
}

namespace {

// ---- matrix products, for one cell or N of them

Tensor product(const Tensor& a, const Tensor& b) {
  return a.dim() == 3 ? a.bmm(b) : mm_few_rows(a, b);
}

int64_t multiplications(const Tensor& input, const Tensor& weights) {
  return input.size(-2) * weights.numel();
}

// Gradients of old_h and input: grad_gates times their columns of weights.
std::pair<Tensor, Tensor> x_gradients(const Tensor& grad_gates, const Tensor& weights,
                                      int64_t hidden, bool need_h, bool need_input) {
  const auto features = weights.size(-1) - hidden;
  if (need_h && need_input && has_few_rows(grad_gates)) {
    const Tensor both = weights.t().mm(grad_gates.t());
    const auto copy = [](const Tensor& t) { return t.clone(at::MemoryFormat::Contiguous); };
    return {copy(both.narrow(0, 0, hidden).t()), copy(both.narrow(0, hidden, features).t())};
  }
  return {need_h ? product(grad_gates, weights.narrow(-1, 0, hidden)) : Tensor(),
          need_input ? product(grad_gates, weights.narrow(-1, hidden, features)) : Tensor()};
}

// Up to these sizes, a kernel that includes the products is faster: separate GEMMs would have few
// blocks, and each would need a launch.
constexpr int64_t kFewRows = 32, kFewUnits = 8192, kFewColumns = 2048;

bool columns_adjacent(const Tensor& t) { return t.stride(-1) == 1 || t.size(-1) <= 1; }

bool takes_few_rows(const Tensor& input, const Tensor& weights, const Tensor& old_h) {
  const int64_t rows = old_h.size(-2);
  return input.scalar_type() != at::kDouble && rows <= kFewRows &&
         rows * old_h.size(-1) <= kFewUnits && weights.size(-1) <= kFewColumns &&
         (input.dim() == 2 || input.size(0) < 65536) && columns_adjacent(input) &&
         columns_adjacent(weights) && columns_adjacent(old_h);
}

// ---- views for the kernels

LltmView view_if_any(const OptionalTensor& t) { return has(t) ? view(*t) : LltmView{}; }

// A bias is [3H] or [1, 3H] for one cell, and [N, 3H] or [N, 1, 3H] for N cells.
LltmView bias_view(const OptionalTensor& bias, int64_t rank) {
  if (!has(bias)) return {};
  return {bias->const_data_ptr(), rank == 3 ? bias->stride(0) : 0, 0, bias->stride(-1)};
}

LltmShape shape_of(const Tensor& gates, const Tensor& cell) {
  return {to_dtype(gates.scalar_type()), to_dtype(cell.scalar_type()),
          cell.dim() == 3 ? cell.size(0) : 1, cell.size(-2), cell.size(-1)};
}

}  // namespace

Tensors3 lltm_cell_forward_kernel(const LltmBackend& backend, const Tensor& input,
                                  const Tensor& weights, const OptionalTensor& bias,
                                  const Tensor& old_h, const Tensor& old_cell) {
  constexpr const char* op = "lltm_cell";
  check_lltm_cell(op, input, weights, bias, old_h, old_cell);
  check_storages(op, {{"input", input},
                      {"weights", weights},
                      {"bias", value_or_undefined(bias)},
                      {"old_h", old_h},
                      {"old_cell", old_cell}});
  const FlushInProducts flush(input, multiplications(input, weights));
  const Tensor new_h = at::empty(old_h.sizes(), old_h.options());
  const Tensor new_cell = at::empty(old_cell.sizes(), old_cell.options());
  if (backend.few_forward != nullptr && new_h.numel() > 0 &&
      takes_few_rows(input, weights, old_h)) {
    auto shape = old_h.sizes().vec();
    shape.back() *= 3;
    const Tensor gates = at::empty(shape, input.options());
    backend.few_forward({{shape_of(gates, new_cell),
                          {},
                          bias_view(bias, input.dim()),
                          view(old_cell),
                          new_h.mutable_data_ptr(),
                          new_cell.mutable_data_ptr()},
                         view(weights),
                         view(old_h),
                         view(input),
                         input.size(-1),
                         gates.mutable_data_ptr()},
                        input.device());
    return {new_h, new_cell, gates};
  }
  const Tensor gates = product(backend.pack(old_h, input), weights.mT());
  if (new_h.numel() > 0) {
    backend.forward({shape_of(gates, new_cell), view(gates), bias_view(bias, input.dim()),
                     view(old_cell), new_h.mutable_data_ptr(), new_cell.mutable_data_ptr()},
                    input.device());
  }
  return {new_h, new_cell, gates};
}

Tensors2 lltm_cell_kernel(const LltmBackend& backend, const Tensor& input, const Tensor& weights,
                          const OptionalTensor& bias, const Tensor& old_h, const Tensor& old_cell) {
  auto [new_h, new_cell, gates] =
      lltm_cell_forward_kernel(backend, input, weights, bias, old_h, old_cell);
  return {new_h, new_cell};
}

Tensors5 lltm_cell_backward_kernel(const LltmBackend& backend, const OptionalTensor& grad_h,
                                   const OptionalTensor& grad_cell, const Tensor& input,
                                   const Tensor& weights, const OptionalTensor& bias,
                                   const Tensor& old_h, const Tensor& old_cell,
                                   const Tensor& new_cell, const Tensor& gates, GradMask mask) {
  check_lltm_cell_backward(grad_h, grad_cell, input, weights, bias, old_h, old_cell, new_cell,
                           gates);
  check_storages("lltm_cell_backward", {{"input", input},
                                        {"weights", weights},
                                        {"bias", value_or_undefined(bias)},
                                        {"old_h", old_h},
                                        {"new_cell", new_cell},
                                        {"gates", gates},
                                        {"grad_h", value_or_undefined(grad_h)},
                                        {"grad_cell", value_or_undefined(grad_cell)}});
  // Autocast must not change the dtype of the products, which is that of the forward pass.
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
  const FlushInProducts flush(input, multiplications(input, weights));
  const Tensor grad_gates = at::empty(gates.sizes(), gates.options());
  Tensor grad_input, grad_weights, grad_bias, grad_old_h, grad_old_cell;
  if (mask[4]) grad_old_cell = at::empty(new_cell.sizes(), new_cell.options());
  if (new_cell.numel() > 0) {
    backend.backward(
        {shape_of(gates, new_cell), view(gates), bias_view(bias, input.dim()), view(new_cell),
         view_if_any(grad_h), view_if_any(grad_cell), grad_gates.mutable_data_ptr(),
         mask[4] ? grad_old_cell.mutable_data_ptr() : nullptr},
        input.device());
  }
  const bool few = backend.few_gradients != nullptr && new_cell.numel() > 0;
  if (few && takes_few_rows(input, weights, old_h)) {
    const auto make = [&](bool needed, const Tensor& like) {
      return needed ? at::empty(like.sizes(), like.options()) : Tensor();
    };
    grad_input = make(mask[0], input);
    grad_weights = make(mask[1], weights);
    if (mask[2]) {
      const auto flat = weights.sizes().slice(0, weights.dim() - 1);
      grad_bias = at::empty(has(bias) ? bias->sizes() : flat, weights.options());
    }
    grad_old_h = make(mask[3], old_h);
    backend.few_gradients({shape_of(gates, new_cell), input.size(-1), grad_gates.const_data_ptr(),
                           view(weights), view(old_h), view(input), data_of(grad_input),
                           data_of(grad_weights), data_of(grad_bias), data_of(grad_old_h)},
                          input.device());
    return {grad_input, grad_weights, grad_bias, grad_old_h, grad_old_cell};
  }
  if (mask[1]) grad_weights = product(grad_gates.mT(), backend.pack(old_h, input));
  if (mask[2]) grad_bias = backend.bias_grad(grad_gates);
  if (mask[2] && has(bias)) grad_bias = grad_bias.view(bias->sizes());
  std::tie(grad_old_h, grad_input) =
      x_gradients(grad_gates, weights, old_h.size(-1), mask[3], mask[0]);
  return {grad_input, grad_weights, grad_bias, grad_old_h, grad_old_cell};
}

// ---- meta

static Tensors3 lltm_cell_forward_meta(const Tensor& input, const Tensor& weights,
                                       const OptionalTensor& bias, const Tensor& old_h,
                                       const Tensor& old_cell) {
  check_lltm_cell("lltm_cell", input, weights, bias, old_h, old_cell);
  c10::SymDimVector shape(old_h.sym_sizes().begin(), old_h.sym_sizes().end());
  shape.back() = shape.back() * 3;
  return {at::empty_symint(old_h.sym_sizes(), old_h.options()),
          at::empty_symint(old_cell.sym_sizes(), old_cell.options()),
          at::empty_symint(shape, input.options())};
}

static Tensors2 lltm_cell_meta(const Tensor& input, const Tensor& weights,
                               const OptionalTensor& bias, const Tensor& old_h,
                               const Tensor& old_cell) {
  auto [new_h, new_cell, gates] = lltm_cell_forward_meta(input, weights, bias, old_h, old_cell);
  return {new_h, new_cell};
}

static Tensors5 lltm_cell_backward_meta(const OptionalTensor& grad_h,
                                        const OptionalTensor& grad_cell, const Tensor& input,
                                        const Tensor& weights, const OptionalTensor& bias,
                                        const Tensor& old_h, const Tensor& old_cell,
                                        const Tensor& new_cell, const Tensor& gates,
                                        GradMask mask) {
  check_lltm_cell_backward(grad_h, grad_cell, input, weights, bias, old_h, old_cell, new_cell,
                           gates);
  Tensor grad_bias;
  if (mask[2]) {
    const auto flat = weights.sym_sizes().slice(0, weights.dim() - 1);
    grad_bias = at::empty_symint(has(bias) ? bias->sym_sizes() : flat, weights.options());
  }
  return {empty_like_if(mask[0], input), empty_like_if(mask[1], weights), grad_bias,
          empty_like_if(mask[3], old_h), empty_like_if(mask[4], old_cell)};
}

// ---- CPU

// Each task computes at least this many units, about 20 us of work.
static constexpr int64_t kGrain = 4096;

static void lltm_forward_cpu(const LltmForward& args, at::Device) {
  const auto& s = args.shape;
  at::parallel_for(0, s.problems * s.rows_per_problem * s.hidden, kGrain,
                   [&](int64_t begin, int64_t end) {
                     const cpu::FlushSubnormals flush;
                     cpu::lltm_cell_forward(args, begin, end);
                   });
}

static void lltm_backward_cpu(const LltmBackward& args, at::Device) {
  const auto& s = args.shape;
  at::parallel_for(0, s.problems * s.rows_per_problem * s.hidden, kGrain,
                   [&](int64_t begin, int64_t end) {
                     const cpu::FlushSubnormals flush;
                     cpu::lltm_cell_backward(args, begin, end);
                   });
}

static Tensor pack_cpu(const Tensor& old_h, const Tensor& input) {
  return at::cat({old_h, input}, -1);
}

static Tensor bias_grad_cpu(const Tensor& grad_gates) { return grad_gates.sum(-2); }

// ---- registration

static constexpr LltmBackend kCpuBackend{lltm_forward_cpu, lltm_backward_cpu, pack_cpu,
                                         bias_grad_cpu};

TORCH_LIBRARY_IMPL(treadle, CPU, m) { register_lltm_cell<kCpuBackend>(m); }

TORCH_LIBRARY_IMPL(treadle, Meta, m) {
  m.impl("lltm_cell", lltm_cell_meta);
  m.impl("lltm_cell_forward", lltm_cell_forward_meta);
  m.impl("lltm_cell_backward", lltm_cell_backward_meta);
}

// Rows are independent: if only input, old_h and old_cell (0, 3, 4) are batched, the batch is
// folded into the rows. The backward op sums over rows for gradients of weights, so its batch is
// never folded.
TORCH_LIBRARY_IMPL(treadle, FuncTorchBatched, m) {
  m.impl("lltm_cell", TREADLE_RULE(cell_batch_rule<0b11001, /*rank=*/2>));
  m.impl("lltm_cell_forward", TREADLE_RULE(cell_batch_rule<0b11001, /*rank=*/2>));
  m.impl("lltm_cell_backward", TREADLE_RULE(cell_batch_rule<0, /*rank=*/2>));
}

// lltm_cell runs in autocast's dtype, like a matrix product, but a float32 old_cell stays float32.
static constexpr std::string_view kOldCell[] = {"old_cell"};
TORCH_LIBRARY_IMPL(treadle, AutocastCPU, m) {
  m.impl("lltm_cell", TREADLE_RULE(autocast_rule<c10::DeviceType::CPU, kOldCell>));
}
TORCH_LIBRARY_IMPL(treadle, AutocastCUDA, m) {
  m.impl("lltm_cell", TREADLE_RULE(autocast_rule<c10::DeviceType::CUDA, kOldCell>));
}

}  // namespace treadle
