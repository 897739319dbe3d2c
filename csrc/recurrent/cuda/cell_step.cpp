// One step of torch's cells for few rows on CUDA. Kernels: kernels/recurrent/cell_step.
#include "recurrent/layer/cell_step.h"

#include <ATen/Functions.h>

#include "common/check.h"
#include "common/cuda/launch.h"
#include "kernels/recurrent/cell_step/launchers.h"

namespace treadle {
namespace {

// Elements of a vector load, if the sizes are multiples of it.
constexpr int64_t kVector = 4;

CellStepSizes sizes_of(CellKind cell, const StepArguments& a) {
  return {cell, to_dtype(a.input.scalar_type()), a.h.size(0), a.h.size(1), a.input.size(1)};
}

bool in_vectors(const CellStepSizes& of) {
  return of.hidden % kVector == 0 && of.features % kVector == 0;
}

bool begins_at_a_vector(const Tensor& t) {
  return reinterpret_cast<uintptr_t>(t.const_data_ptr()) % (kVector * t.element_size()) == 0;
}

// Rows that the kernels can read. Only the sizes decide whether the kernels read vectors, so that
// the order of their sums does not depend on alignment. Rows of other layouts are copied.
Tensor readable(const Tensor& t, bool vectors) {
  const bool rows = t.stride(1) == 1 || t.size(1) == 1;
  if (rows && (!vectors || (t.stride(0) % kVector == 0 && begins_at_a_vector(t)))) return t;
  return t.clone(at::MemoryFormat::Contiguous);
}

Tensor readable_weight(const Tensor& t, bool vectors) {
  const Tensor found = t.contiguous();
  return !vectors || begins_at_a_vector(found) ? found : found.clone();
}

CellStepRows rows_of(const Tensor& t) {
  return t.defined() ? CellStepRows{t.const_data_ptr(), t.stride(0)} : CellStepRows{};
}

// Owns copies of arguments whose layout the kernels cannot read.
struct Readable {
  StepArguments a;

  Readable(const StepArguments& given, bool vectors) : a(given) {
    a.input = readable(a.input, vectors);
    a.h = readable(a.h, vectors);
    if (a.c.defined()) a.c = readable(a.c, /*vectors=*/false);
    a.weight_ih = readable_weight(a.weight_ih, vectors);
    a.weight_hh = readable_weight(a.weight_hh, vectors);
    if (a.bias_ih.defined()) a.bias_ih = a.bias_ih.contiguous();
    if (a.bias_hh.defined()) a.bias_hh = a.bias_hh.contiguous();
  }
};

bool take(const StepArguments& a) {
  const auto dtype = a.input.scalar_type();
  const bool known =
      dtype == at::kDouble || dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16;
  return known && a.h.size(0) <= kCellStepRows;
}

StepValues step_forward(CellKind cell, const StepArguments& given, bool training) {
  const CellStepSizes sizes = sizes_of(cell, given);
  const Readable readable(given, in_vectors(sizes));
  const StepArguments& a = readable.a;
  const Tensor new_h = at::empty({sizes.rows, sizes.hidden}, a.h.options());
  const Tensor new_c = a.c.defined() ? at::empty_like(new_h) : Tensor();
  const Tensor gates =
      training ? at::empty({sizes.rows, cell_info(cell).gates * sizes.hidden}, a.h.options())
               : Tensor();
  const c10::cuda::CUDAGuard guard(a.h.device());
  check_launch(kStepOp,
               launch_cell_step_forward(
                   {sizes, rows_of(a.input), rows_of(a.h), rows_of(a.c), const_data_of(a.weight_ih),
                    const_data_of(a.weight_hh), const_data_of(a.bias_ih), const_data_of(a.bias_hh),
                    data_of(new_h), data_of(new_c), data_of(gates)},
                   at::cuda::getCurrentCUDAStream()));
  return {new_c.defined() ? std::vector<Tensor>{new_h, new_c} : std::vector<Tensor>{new_h},
          Tensor(), gates};
}

variable_list step_backward(CellKind cell, const StepArguments& given, const Tensor& gates,
                            const variable_list& grads, const Need& need) {
  const CellStepSizes sizes = sizes_of(cell, given);
  const Readable readable_arguments(given, in_vectors(sizes));
  const StepArguments& a = readable_arguments.a;
  const auto rows = [](const Tensor& t) {
    return t.defined() ? readable(t, /*vectors=*/false) : t;
  };
  const Tensor grad_new_h = rows(grads[0]),
               grad_new_c = grads.size() > 1 ? rows(grads[1]) : Tensor();
  const Tensor grad_gates = at::empty_like(gates);
  const auto result = [](bool needed, const Tensor& like) {
    return needed ? at::empty(like.sizes(), like.options()) : Tensor();
  };
  // Only a GRU's new h also depends on h without a product.
  const bool lstm = cell == CellKind::kLstm, gru = cell == CellKind::kGru;
  const Tensor grad_old_state = result(lstm ? need[2] : gru && need[1], a.h);
  const c10::cuda::CUDAGuard guard(a.h.device());
  const auto stream = at::cuda::getCurrentCUDAStream();
  check_launch(kStepOp,
               launch_cell_step_backward(
                   {sizes, const_data_of(gates), rows_of(lstm ? a.c : a.h), rows_of(grad_new_h),
                    rows_of(grad_new_c), data_of(grad_gates), data_of(grad_old_state)},
                   stream));
  variable_list found(need.size());
  found[0] = result(need[0], a.input);
  found[1] = result(need[1], a.h);
  if (lstm) found[2] = grad_old_state;
  found[3] = result(need[3], a.weight_ih);
  found[4] = result(need[4], a.weight_hh);
  if (need[5]) found[5] = result(true, a.bias_ih);
  if (need[6]) found[6] = result(true, a.bias_hh);
  check_launch(kStepOp, launch_cell_step_gradients(
                            {sizes, const_data_of(grad_gates), rows_of(a.input), rows_of(a.h),
                             const_data_of(a.weight_ih), const_data_of(a.weight_hh),
                             gru ? const_data_of(grad_old_state) : nullptr, data_of(found[0]),
                             data_of(found[1]), data_of(found[3]), data_of(found[4]),
                             data_of(found[5]), data_of(found[6])},
                            stream));
  return found;
}

constexpr CellStepKernels kKernels{take, step_forward, step_backward};
const bool kRegistered = (cell_step_kernels() = &kKernels, true);

}  // namespace
}  // namespace treadle
