// lltm_cell: one step of an LSTM that never forgets. Shapes: B batch, I inputs, H hidden; every
// tensor may carry a leading N, for N independent cells.
//   gates [B, 3H] = [old_h, input] weights^T; i, o, z = sigmoid, sigmoid, elu of gates + bias
//   new_cell = old_cell + z i; new_h = tanh(new_cell) o
// Derivatives: lltm_autograd.cpp. Twins: cuda/lltm_cell.cpp, cpu/lltm_cell.cpp,
// kernels/lltm_cell.cu.
#include "lltm_cell.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include "check.h"
#include "cpu/lltm_cell.h"
#include "lltm_check.h"
#include "rules.h"

namespace treadle {
namespace {

// ---- matrix products, for one cell or N of them. Columns of weights: first old_h, then input.

Tensor product(const Tensor& a, const Tensor& b) { return a.dim() == 3 ? a.bmm(b) : a.mm(b); }

Tensor cell_gates(const Tensor& input, const Tensor& weights, const Tensor& old_h) {
  const auto hidden = old_h.size(-1), features = input.size(-1);
  const Tensor w_h = weights.narrow(-1, 0, hidden).mT();
  const Tensor w_x = weights.narrow(-1, hidden, features).mT();
  Tensor gates = product(old_h, w_h);
  if (features > 0) gates.dim() == 3 ? gates.baddbmm_(input, w_x) : gates.addmm_(input, w_x);
  return gates;
}

Tensor weight_gradient(const Tensor& grad_gates, const Tensor& input, const Tensor& old_h) {
  return product(grad_gates.mT(), at::cat({old_h, input}, -1));
}

// ---- views for the kernels

LltmView view(const Tensor& t) {
  const bool many = t.dim() == 3;
  return {t.const_data_ptr(), many ? t.stride(0) : 0, t.stride(-2), t.stride(-1)};
}

LltmView view(const OptionalTensor& t) {
  return t.has_value() && t->defined() ? view(*t) : LltmView{};
}

// A bias is [3H] or [1, 3H] for one cell, [N, 3H] or [N, 1, 3H] for N.
LltmView bias_view(const OptionalTensor& bias, int64_t rank) {
  if (!bias.has_value() || !bias->defined()) return {};
  return {bias->const_data_ptr(), rank == 3 ? bias->stride(0) : 0, 0, bias->stride(-1)};
}

LltmShape shape_of(const Tensor& gates, const Tensor& cell) {
  return {to_dtype(gates.scalar_type()), to_dtype(cell.scalar_type()),
          cell.dim() == 3 ? cell.size(0) : 1, cell.size(-2), cell.size(-1)};
}

void check_storage_of(const char* op, const char* argument, const OptionalTensor& t) {
  if (t.has_value() && t->defined()) check_storage(op, argument, *t);
}

void check_storages(const char* op, const Tensor& input, const Tensor& weights,
                    const OptionalTensor& bias, const Tensor& old_h) {
  check_storage(op, "input", input);
  check_storage(op, "weights", weights);
  check_storage_of(op, "bias", bias);
  check_storage(op, "old_h", old_h);
}

}  // namespace

Tensors3 lltm_cell_forward_with(LltmForwardRun run, const Tensor& input, const Tensor& weights,
                                const OptionalTensor& bias, const Tensor& old_h,
                                const Tensor& old_cell) {
  check_lltm_cell("lltm_cell", input, weights, bias, old_h, old_cell);
  check_storages("lltm_cell", input, weights, bias, old_h);
  check_storage("lltm_cell", "old_cell", old_cell);
  const Tensor gates = cell_gates(input, weights, old_h);
  const Tensor new_h = at::empty(old_h.sizes(), old_h.options());
  const Tensor new_cell = at::empty(old_cell.sizes(), old_cell.options());
  if (new_h.numel() > 0) {
    run({shape_of(gates, new_cell), view(gates), bias_view(bias, input.dim()), view(old_cell),
         new_h.mutable_data_ptr(), new_cell.mutable_data_ptr()},
        input.device());
  }
  return {new_h, new_cell, gates};
}

Tensors5 lltm_cell_backward_with(LltmBackwardRun run, const OptionalTensor& grad_h,
                                 const OptionalTensor& grad_cell, const Tensor& input,
                                 const Tensor& weights, const OptionalTensor& bias,
                                 const Tensor& old_h, const Tensor& old_cell,
                                 const Tensor& new_cell, const Tensor& gates, GradMask mask) {
  check_lltm_cell_backward(grad_h, grad_cell, input, weights, bias, old_h, old_cell, new_cell,
                           gates);
  constexpr const char* op = "lltm_cell_backward";
  check_storages(op, input, weights, bias, old_h);
  check_storage(op, "new_cell", new_cell);
  check_storage(op, "gates", gates);
  check_storage_of(op, "grad_h", grad_h);
  check_storage_of(op, "grad_cell", grad_cell);
  const auto hidden = old_h.size(-1), features = input.size(-1);
  const Tensor grad_gates = at::empty(gates.sizes(), gates.options());
  Tensor grad_input, grad_weights, grad_bias, grad_old_h, grad_old_cell;
  if (mask[4]) grad_old_cell = at::empty(new_cell.sizes(), new_cell.options());
  if (new_cell.numel() > 0) {
    run({shape_of(gates, new_cell), view(gates), bias_view(bias, input.dim()), view(new_cell),
         view(grad_h), view(grad_cell), grad_gates.mutable_data_ptr(),
         mask[4] ? grad_old_cell.mutable_data_ptr() : nullptr},
        input.device());
  }
  if (mask[0]) grad_input = product(grad_gates, weights.narrow(-1, hidden, features));
  if (mask[1]) grad_weights = weight_gradient(grad_gates, input, old_h);
  if (mask[2]) grad_bias = grad_gates.sum(-2).view(bias->sizes());
  if (mask[3]) grad_old_h = product(grad_gates, weights.narrow(-1, 0, hidden));
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
  const auto like = [&](const Tensor& t, bool needed) {
    return needed ? at::empty_symint(t.sym_sizes(), t.options()) : Tensor();
  };
  return {like(input, mask[0]), like(weights, mask[1]), mask[2] ? like(*bias, true) : Tensor(),
          like(old_h, mask[3]), like(old_cell, mask[4])};
}

// ---- CPU

// Units a task does at least: about 20 us of work.
static constexpr int64_t kGrain = 4096;

static void lltm_forward_cpu(const LltmForward& args, at::Device) {
  const auto& s = args.shape;
  at::parallel_for(0, s.cells * s.rows_per_cell * s.hidden, kGrain,
                   [&](int64_t begin, int64_t end) { cpu::lltm_cell_forward(args, begin, end); });
}

static void lltm_backward_cpu(const LltmBackward& args, at::Device) {
  const auto& s = args.shape;
  at::parallel_for(0, s.cells * s.rows_per_cell * s.hidden, kGrain,
                   [&](int64_t begin, int64_t end) { cpu::lltm_cell_backward(args, begin, end); });
}

// ---- registration

TORCH_LIBRARY_IMPL(treadle, CPU, m) { register_lltm_cell<lltm_forward_cpu, lltm_backward_cpu>(m); }

TORCH_LIBRARY_IMPL(treadle, Meta, m) {
  m.impl("lltm_cell", lltm_cell_meta);
  m.impl("lltm_cell_forward", lltm_cell_forward_meta);
  m.impl("lltm_cell_backward", lltm_cell_backward_meta);
}

// Rows are independent: where only input, old_h and old_cell (0, 3, 4) are batched, the batch folds
// into the rows. A backward sums over rows for weights, so it never folds.
TORCH_LIBRARY_IMPL(treadle, FuncTorchBatched, m) {
  m.impl("lltm_cell", TREADLE_RULE(cell_batch_rule<0b11001, /*rank=*/2>));
  m.impl("lltm_cell_forward", TREADLE_RULE(cell_batch_rule<0b11001, /*rank=*/2>));
  m.impl("lltm_cell_backward", TREADLE_RULE(cell_batch_rule<0, /*rank=*/2>));
}

// lltm_cell runs in autocast's dtype, as a matrix product does; old_cell (4) keeps float32.
TORCH_LIBRARY_IMPL(treadle, AutocastCPU, m) {
  m.impl("lltm_cell", TREADLE_RULE(autocast_rule<c10::DeviceType::CPU, 4>));
}
TORCH_LIBRARY_IMPL(treadle, AutocastCUDA, m) {
  m.impl("lltm_cell", TREADLE_RULE(autocast_rule<c10::DeviceType::CUDA, 4>));
}

}  // namespace treadle
