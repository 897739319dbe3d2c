#include "lltm_layer_check.h"

#include <c10/util/Exception.h>

namespace treadle {
namespace {

bool packed(const Tensor& input) { return input.dim() == 2; }

}  // namespace

c10::SymDimVector layer_output_shape(const Tensor& input, const Tensor& h0) {
  c10::SymDimVector shape(input.sym_sizes().begin(), input.sym_sizes().end());
  shape.back() = h0.sym_size(0) * h0.sym_size(2);
  return shape;
}

c10::SymDimVector layer_gates_shape(const Tensor& input, const Tensor& h0) {
  c10::SymDimVector shape{h0.sym_size(0)};
  shape.append(input.sym_sizes().begin(), input.sym_sizes().end() - 1);
  shape.push_back(h0.sym_size(2) * 3);
  return shape;
}

void check_lltm_layer(const char* op, const Tensor& input, const OptionalTensor& batch_sizes,
                      const Tensor& h0, const Tensor& c0, const Tensor& weight_ih,
                      const Tensor& weight_hh, const OptionalTensor& bias) {
  const bool by_sizes = has(batch_sizes);
  TORCH_CHECK(input.dim() == (by_sizes ? 2 : 3), op, ": input must have shape ",
              by_sizes ? "[S, I] beside batch_sizes" : "[T, B, I]", ", got ", input.sym_sizes());
  TORCH_CHECK(is_floating_dtype(input.scalar_type()), op,
              ": input must have dtype float16, bfloat16, float32 or float64, got ",
              dtype_name(input.scalar_type()));
  if (by_sizes) {
    TORCH_CHECK(batch_sizes->dim() == 1 && batch_sizes->scalar_type() == at::kLong, op,
                ": batch_sizes must be int64 of shape [T], got ",
                dtype_name(batch_sizes->scalar_type()), " of shape ", batch_sizes->sym_sizes());
    TORCH_CHECK(batch_sizes->is_cpu() || input.is_meta(), op,
                ": batch_sizes must be on the CPU, got ", batch_sizes->device());
  }
  check_like(op, "h0", h0, "input", input);
  check_cell_state(op, "c0", c0, input);
  check_like(op, "weight_ih", weight_ih, "input", input);
  check_like(op, "weight_hh", weight_hh, "input", input);
  if (has(bias)) check_like(op, "bias", *bias, "input", input);

  TORCH_CHECK(h0.dim() == 3, op, ": h0 must have shape [D, B, H], got ", h0.sym_sizes());
  const auto directions = h0.sym_size(0), rows = h0.sym_size(1), hidden = h0.sym_size(2);
  TORCH_CHECK(directions == 1 || directions == 2, op, ": h0 must have one or two directions, got ",
              h0.sym_sizes());
  const auto features = input.sym_size(-1), gates = hidden * 3;
  if (!by_sizes) {
    check_shape(op, "h0", "[D, B, H]", h0, {directions, input.sym_size(1), hidden});
  }
  check_shape(op, "c0", "[D, B, H]", c0, {directions, rows, hidden});
  check_shape(op, "weight_ih", "[D, 3H, I]", weight_ih, {directions, gates, features});
  check_shape(op, "weight_hh", "[D, 3H, H]", weight_hh, {directions, gates, hidden});
  if (has(bias)) check_shape(op, "bias", "[D, 3H]", *bias, {directions, gates});
}

void check_layer_storages(const char* op, const Tensor& input, const Tensor& h0, const Tensor& c0,
                          const Tensor& weight_ih, const Tensor& weight_hh,
                          const OptionalTensor& bias) {
  check_storage(op, "input", input);
  check_storage(op, "h0", h0);
  check_storage(op, "c0", c0);
  check_storage(op, "weight_ih", weight_ih);
  check_storage(op, "weight_hh", weight_hh);
  check_storage_if_any(op, "bias", bias);
}

void check_batch_sizes(const char* op, const Tensor& input, const Tensor& batch_sizes,
                       int64_t batch) {
  check_storage(op, "batch_sizes", batch_sizes);
  const auto sizes = batch_sizes.accessor<int64_t, 1>();
  int64_t before = batch, total = 0;
  for (int64_t t = 0; t < sizes.size(0); ++t) {
    TORCH_CHECK(sizes[t] >= 0 && sizes[t] <= before, op,
                ": batch_sizes must not grow from B = ", batch, " down to 0, got ", sizes[t],
                " at step ", t, t == 0 ? "" : " after ", t == 0 ? "" : std::to_string(before));
    before = sizes[t];
    total += sizes[t];
  }
  TORCH_CHECK(total == input.size(0), op, ": batch_sizes must add up to the rows of input, ",
              input.size(0), ", got ", total);
}

void check_lltm_layer_backward(const OptionalTensor& grad_output, const OptionalTensor& grad_h_n,
                               const OptionalTensor& grad_c_n, const Tensor& input,
                               const OptionalTensor& batch_sizes, const Tensor& h0,
                               const Tensor& c0, const Tensor& weight_ih, const Tensor& weight_hh,
                               const OptionalTensor& bias, const Tensor& output,
                               const Tensor& gates, bool recompute) {
  constexpr const char* op = "lltm_layer_backward";
  check_lltm_layer(op, input, batch_sizes, h0, c0, weight_ih, weight_hh, bias);
  const char* letters = packed(input) ? "[S, D*H]" : "[T, B, D*H]";
  const auto shape = layer_output_shape(input, h0);
  if (has(grad_output)) {
    check_like(op, "grad_output", *grad_output, "input", input);
    check_shape(op, "grad_output", letters, *grad_output, shape);
  }
  if (has(grad_h_n)) {
    check_like(op, "grad_h_n", *grad_h_n, "input", input);
    check_shape(op, "grad_h_n", "that of h0", *grad_h_n, h0.sym_sizes());
  }
  if (has(grad_c_n)) {
    check_like(op, "grad_c_n", *grad_c_n, "c0", c0);
    check_shape(op, "grad_c_n", "that of h0", *grad_c_n, h0.sym_sizes());
  }
  check_like(op, "output", output, "input", input);
  check_shape(op, "output", letters, output, shape);
  check_like(op, "gates", gates, "input", input);
  if (recompute) {
    check_shape(op, "gates", "[0] with recompute", gates, {c10::SymInt(0)});
    return;
  }
  check_shape(op, "gates", packed(input) ? "[D, S, 3H]" : "[D, T, B, 3H]", gates,
              layer_gates_shape(input, h0));
}

void check_lltm_lists(at::TensorList hx, at::TensorList params, bool has_biases, int64_t num_layers,
                      bool bidirectional) {
  TORCH_CHECK(hx.size() == 2, "lltm: hx must be two tensors, h0 and c0, got ", hx.size());
  TORCH_CHECK(num_layers >= 1, "lltm: num_layers must be at least 1, got ", num_layers);
  const int64_t directions = bidirectional ? 2 : 1, each = has_biases ? 3 : 2;
  const int64_t count = num_layers * directions * each;
  TORCH_CHECK(static_cast<int64_t>(params.size()) == count, "lltm: params must be ", each,
              " tensors for each of ", num_layers * directions, " layers and directions, ", count,
              " in all, got ", params.size());
  // One direction is stacked on the other, which would promote what does not go together.
  for (int64_t k = 0; k < count; ++k) {
    if (k / each % directions == 0) continue;
    const std::string name = "params[" + std::to_string(k) + "]";
    const std::string first = "params[" + std::to_string(k - each) + "]";
    check_like("lltm", name.c_str(), params[k], first.c_str(), params[k - each]);
    check_shape("lltm", name.c_str(), ("that of " + first).c_str(), params[k],
                params[k - each].sym_sizes());
  }
  const char* names[] = {"h0", "c0"};
  for (int k = 0; k < 2; ++k) {
    TORCH_CHECK(hx[k].dim() == 3 && hx[k].sym_size(0) == num_layers * directions,
                "lltm: ", names[k],
                " must have shape [L*D, B, H] with L*D = ", num_layers * directions, ", got ",
                hx[k].sym_sizes());
  }
}

}  // namespace treadle
