#include "recurrent/lltm_cell/check.h"

#include <c10/util/Exception.h>

namespace treadle {
namespace {

// [sizes...], with a leading N for N cells.
c10::SymDimVector with_batch(const Tensor& input, std::initializer_list<c10::SymInt> sizes) {
  c10::SymDimVector shape;
  if (input.dim() == 3) shape.push_back(input.sym_size(0));
  shape.append(sizes.begin(), sizes.end());
  return shape;
}

}  // namespace

void check_lltm_cell(const char* op, const Tensor& input, const Tensor& weights,
                     const OptionalTensor& bias, const Tensor& old_h, const Tensor& old_cell) {
  TORCH_CHECK(input.dim() == 2 || input.dim() == 3, op,
              ": input must have shape [B, I], or [N, B, I] for N cells, got ", input.sym_sizes());
  TORCH_CHECK(is_floating_dtype(input.scalar_type()), op,
              ": input must have dtype float16, bfloat16, float32 or float64, got ",
              dtype_name(input.scalar_type()));
  check_like(op, "weights", weights, "input", input);
  if (has(bias)) check_like(op, "bias", *bias, "input", input);
  check_like(op, "old_h", old_h, "input", input);
  check_cell_state(op, "old_cell", old_cell, input);

  const bool many = input.dim() == 3;
  TORCH_CHECK(old_h.dim() == input.dim(), op, ": old_h must have shape ",
              many ? "[N, B, H]" : "[B, H]", ", got ", old_h.sym_sizes());
  const auto rows = input.sym_size(-2), features = input.sym_size(-1);
  const auto hidden = old_h.sym_size(-1);
  check_shape(op, "old_h", many ? "[N, B, H]" : "[B, H]", old_h, with_batch(input, {rows, hidden}));
  check_shape(op, "weights", many ? "[N, 3H, H+I]" : "[3H, H+I]", weights,
              with_batch(input, {hidden * 3, hidden + features}));
  check_shape(op, "old_cell", many ? "[N, B, H]" : "[B, H]", old_cell,
              with_batch(input, {rows, hidden}));
  if (!has(bias)) return;
  const auto flat = with_batch(input, {hidden * 3}), row = with_batch(input, {1, hidden * 3});
  TORCH_CHECK(bias->sym_sizes().equals(flat) || bias->sym_sizes().equals(row), op,
              ": bias must have shape ", many ? "[N, 3H] = " : "[3H] = ", c10::SymIntArrayRef(flat),
              " or ", many ? "[N, 1, 3H]" : "[1, 3H]", ", got ", bias->sym_sizes());
}

void check_lltm_cell_backward(const OptionalTensor& grad_h, const OptionalTensor& grad_cell,
                              const Tensor& input, const Tensor& weights,
                              const OptionalTensor& bias, const Tensor& old_h,
                              const Tensor& old_cell, const Tensor& new_cell, const Tensor& gates) {
  constexpr const char* op = "lltm_cell_backward";
  check_lltm_cell(op, input, weights, bias, old_h, old_cell);
  if (has(grad_h)) {
    check_like(op, "grad_h", *grad_h, "input", input);
    check_same_shape(op, "grad_h", *grad_h, "old_h", old_h);
  }
  if (has(grad_cell)) {
    check_like(op, "grad_cell", *grad_cell, "old_cell", old_cell);
    check_same_shape(op, "grad_cell", *grad_cell, "old_h", old_h);
  }
  check_like(op, "new_cell", new_cell, "old_cell", old_cell);
  check_same_shape(op, "new_cell", new_cell, "old_h", old_h);
  check_like(op, "gates", gates, "input", input);
  check_shape(op, "gates", "[..., B, 3H]", gates,
              with_batch(input, {input.sym_size(-2), old_h.sym_size(-1) * 3}));
}

}  // namespace treadle
