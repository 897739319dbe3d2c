#include "recurrent/layer/check.h"

#include <c10/util/Exception.h>

#include <string>

#include "recurrent/layer/groups.h"

namespace treadle {

static thread_local const char* op_name = "recurrent_layer";

const char* layer_op_name() { return op_name; }

LayerCaller::LayerCaller(const char* op) : before_(op_name) { op_name = op; }
LayerCaller::~LayerCaller() { op_name = before_; }

CellKind find_cell(const char* op, std::string_view name) {
  const CellKind* const found = cell_named(name);
  TORCH_CHECK(found != nullptr, op,
              ": cell must be lltm, lstm, gru, rnn_tanh, rnn_relu or a Cell's key, ", "got ", name);
  return *found;
}

c10::SymDimVector layer_output_shape(const LayerArguments& a) {
  c10::SymDimVector shape(a.input.sym_sizes().begin(), a.input.sym_sizes().end());
  shape.back() = a.h0.sym_size(0) * a.h0.sym_size(2);
  return shape;
}

c10::SymDimVector layer_gates_shape(const LayerArguments& a, bool recompute) {
  if (recompute) return c10::SymDimVector{0};
  const int64_t groups = groups_of(a);
  c10::SymDimVector shape{a.h0.sym_size(0) * groups};
  shape.append(a.input.sym_sizes().begin(), a.input.sym_sizes().end() - 1);
  shape.push_back(a.h0.sym_size(2) / groups * cell_info(a.cell).gates);
  return shape;
}

// ---- dtypes, devices, shapes

static void check_kinds(const char* op, const LayerArguments& a) {
  const Tensor &input = a.input, &sizes = a.batch_sizes;
  TORCH_CHECK(input.dim() == (sizes.defined() ? 2 : 3), op, ": input must have shape ",
              sizes.defined() ? "[S, I] with batch_sizes" : "[T, B, I]", ", got ",
              input.sym_sizes());
  TORCH_CHECK(is_floating_dtype(input.scalar_type()), op,
              ": input must have dtype float16, bfloat16, float32 or float64, got ",
              dtype_name(input.scalar_type()));
  if (sizes.defined()) {
    TORCH_CHECK(sizes.dim() == 1 && sizes.scalar_type() == at::kLong, op,
                ": batch_sizes must be int64 of shape [T], got ", dtype_name(sizes.scalar_type()),
                " of shape ", sizes.sym_sizes());
    TORCH_CHECK(sizes.is_cpu() || input.is_meta(), op, ": batch_sizes must be on the CPU, got ",
                sizes.device());
  }
  check_like(op, "h0", a.h0, "input", input);
  check_cell_state(op, "c0", a.c0, input);
  check_like(op, "weight_ih", a.weight_ih, "input", input);
  check_like(op, "weight_hh", a.weight_hh, "input", input);
  if (a.bias_ih.defined()) check_like(op, "bias_ih", a.bias_ih, "input", input);
  TORCH_CHECK(has_bias_hh(a.cell) || !a.bias_hh.defined(), op,
              ": bias_hh must be None for the cell ", cell_info(a.cell).name,
              ", got a tensor of shape ", a.bias_hh.sym_sizes());
  if (a.bias_hh.defined()) check_like(op, "bias_hh", a.bias_hh, "input", input);
}

// Checks a weight or bias [D, gates * H, ...], which may lack D. The shape is formatted only for an
// error.
static void check_gate_rows(const char* op, const char* argument, int gates, const char* rest,
                            const Tensor& t, c10::SymIntArrayRef shape, bool one_direction) {
  if (one_direction) shape = shape.slice(1);
  if (t.sym_sizes().equals(shape)) return;
  const std::string letters = (one_direction ? "[" : "[D, ") + std::to_string(gates) + "H" + rest;
  check_shape(op, argument, letters.c_str(), t, shape);
}

void check_marks(const char* op, const char* letters, const Tensor& reset,
                 c10::SymIntArrayRef shape) {
  const auto sizes = reset.sym_sizes();
  const bool is_bool = reset.scalar_type() == at::kBool;
  if (!sizes.equals(shape)) {
    const size_t n = shape.size();
    const bool column =
        sizes.size() == n + 1 && sizes.slice(0, n).equals(shape) && sizes.back() == 1;
    const char* const instead =
        is_bool ? ": call reset.squeeze(-1)" : ": call reset.squeeze(-1).bool()";
    TORCH_CHECK(false, op, ": reset must have shape ", letters, " = ", shape, ", got ", sizes,
                column ? instead : "");
  }
  TORCH_CHECK(is_bool, op, ": reset must have dtype bool, got ", dtype_name(reset.scalar_type()),
              ": call reset.bool()");
}

// Checks the marks of rows that reset, and the states to which they reset.
static void check_resets(const char* op, const LayerArguments& a) {
  const Tensor& reset = a.reset;
  TORCH_CHECK(a.reset_h.defined() == a.reset_c.defined(), op,
              ": reset_h and reset_c must both be given or neither, got one");
  if (!reset.defined()) {
    TORCH_CHECK(!a.reset_h.defined(), op,
                ": reset_hx must be given together with reset, got only reset_hx");
    return;
  }
  const bool packed = a.batch_sizes.defined();
  TORCH_CHECK(reset.device() == a.input.device(), op, ": reset must be on input's device, ",
              a.input.device(), ", got ", reset.device());
  c10::SymDimVector places(a.input.sym_sizes().begin(), a.input.sym_sizes().end() - 1);
  c10::SymDimVector of_marks = places;
  of_marks.push_back(1);
  check_marks(op, packed ? "[S, 1]" : "[T, B, 1]", reset, of_marks);
  if (!a.reset_h.defined()) return;
  check_like(op, "reset_h", a.reset_h, "input", a.input);
  check_like(op, "reset_c", a.reset_c, "c0", a.c0);
  c10::SymDimVector of_places{a.h0.sym_size(0)};
  of_places.append(places.begin(), places.end());
  of_places.push_back(a.h0.sym_size(2));
  const auto fits = [&](const Tensor& t) {
    return t.sym_sizes().equals(a.h0.sym_sizes()) || t.sym_sizes().equals(of_places);
  };
  TORCH_CHECK(fits(a.reset_h), op, ": reset_hx must have shape [D, B, H] or ",
              packed ? "[D, S, H]" : "[D, T, B, H]", ", here ", a.h0.sym_sizes(), " or ",
              c10::SymIntArrayRef(of_places), ", got ", a.reset_h.sym_sizes());
  c10::SymDimVector of_c(a.reset_h.sym_sizes().begin(), a.reset_h.sym_sizes().end());
  of_c.back() = a.c0.sym_size(2);
  TORCH_CHECK(a.reset_c.sym_sizes().equals(of_c), op, ": reset_c must have shape ",
              c10::SymIntArrayRef(of_c), ", as reset_h and c0, got ", a.reset_c.sym_sizes());
}

void check_layer(const char* op, const LayerArguments& a) {
  check_kinds(op, a);
  TORCH_CHECK(a.h0.dim() == 3, op, ": h0 must have shape [D, B, H], got ", a.h0.sym_sizes());
  const auto directions = a.h0.sym_size(0), rows = a.h0.sym_size(1), hidden = a.h0.sym_size(2);
  TORCH_CHECK(directions == 1 || directions == 2, op, ": h0 must have one or two directions, got ",
              a.h0.sym_sizes());
  const CellInfo& cell = cell_info(a.cell);
  const auto of_input = hidden * cell.input_gates, of_state = hidden * cell.state_gates;
  if (!a.batch_sizes.defined()) {
    check_shape(op, "h0", "[D, B, H]", a.h0, {directions, a.input.sym_size(1), hidden});
  }
  static_assert(kMostCParts == 4);
  const char* const letters[] = {"[D, B, H]", "[D, B, 2H]", "[D, B, 3H]", "[D, B, 4H]"};
  const char* const of_c = letters[cell.c_parts - 1];
  check_shape(op, "c0", of_c, a.c0, {directions, rows, hidden * cell.c_parts});
  const bool one = a.one_direction() && directions == 1;
  check_gate_rows(op, "weight_ih", cell.input_gates, ", I]", a.weight_ih,
                  {directions, of_input, a.input.sym_size(-1)}, one);
  const auto columns = a.weight_hh.dim() > 0 ? a.weight_hh.sym_size(-1) : hidden;
  // A block-diagonal weight has the columns of one block.
  const bool in_blocks = columns > 0 && columns < hidden && hidden % columns == 0;
  check_gate_rows(op, "weight_hh", cell.state_gates, ", H]", a.weight_hh,
                  {directions, of_state, in_blocks ? columns : hidden}, one);
  if (a.bias_ih.defined()) {
    check_gate_rows(op, "bias_ih", cell.input_gates, "]", a.bias_ih, {directions, of_input}, one);
  }
  if (a.bias_hh.defined()) {
    check_gate_rows(op, "bias_hh", cell.state_gates, "]", a.bias_hh, {directions, of_state}, one);
  }
  check_resets(op, a);
}

void check_layer_backward(const LayerOutputs& grads, const LayerArguments& a, const Tensor& output,
                          const Tensor& gates, bool recompute) {
  constexpr const char* op = "recurrent_layer_backward";
  check_layer(op, a);
  const bool packed = a.batch_sizes.defined();
  const char* letters = packed ? "[S, D*H]" : "[T, B, D*H]";
  const auto shape = layer_output_shape(a);
  if (grads.output.defined()) {
    check_like(op, "grad_output", grads.output, "input", a.input);
    check_shape(op, "grad_output", letters, grads.output, shape);
  }
  if (grads.h_n.defined()) {
    check_like(op, "grad_h_n", grads.h_n, "input", a.input);
    check_same_shape(op, "grad_h_n", grads.h_n, "h0", a.h0);
  }
  if (grads.c_n.defined()) {
    check_like(op, "grad_c_n", grads.c_n, "c0", a.c0);
    check_same_shape(op, "grad_c_n", grads.c_n, "c0", a.c0);
  }
  check_like(op, "output", output, "input", a.input);
  check_shape(op, "output", letters, output, shape);
  check_like(op, "gates", gates, "input", a.input);
  const auto gates_shape = layer_gates_shape(a, recompute);
  TORCH_CHECK(!recompute || gates.sym_sizes().equals(gates_shape), op,
              ": gates must have shape [0] with recompute=True, got ", gates.sym_sizes());
  const bool grouped = groups_of(a) > 1;
  const std::string rows = packed ? "S, " : "T, B, ";
  const std::string gates_letters = (grouped ? "[D*n, " : "[D, ") + rows +
                                    std::to_string(cell_info(a.cell).gates) +
                                    (grouped ? "H/n]" : "H]");
  check_shape(op, "gates", gates_letters.c_str(), gates, gates_shape);
}

// ---- memory

static void check_batch_sizes(const char* op, const LayerArguments& a) {
  if (!a.batch_sizes.defined()) return;
  check_storage(op, "batch_sizes", a.batch_sizes);
  const auto sizes = a.batch_sizes.accessor<int64_t, 1>();
  const int64_t batch = a.h0.size(1);
  int64_t before = batch, total = 0;
  for (int64_t t = 0; t < sizes.size(0); ++t) {
    TORCH_CHECK(sizes[t] >= 0 && sizes[t] <= before, op,
                ": batch_sizes must be non-increasing and from 0 to B = ", batch, ", got ",
                sizes[t], t == 0 ? "" : " after ", t == 0 ? "" : std::to_string(before),
                " at step ", t);
    before = sizes[t];
    total += sizes[t];
  }
  TORCH_CHECK(total == a.input.size(0), op, ": batch_sizes must add up to the rows of input, ",
              a.input.size(0), ", got ", total);
}

static void check_argument_storages(const char* op, const LayerArguments& a) {
  check_storages(op, {{"input", a.input},
                      {"h0", a.h0},
                      {"c0", a.c0},
                      {"weight_ih", a.weight_ih},
                      {"weight_hh", a.weight_hh},
                      {"bias_ih", a.bias_ih},
                      {"bias_hh", a.bias_hh},
                      {"reset", a.reset},
                      {"reset_h", a.reset_h},
                      {"reset_c", a.reset_c}});
}

void check_layer_data(const char* op, const LayerArguments& a) {
  check_argument_storages(op, a);
  check_batch_sizes(op, a);
}

void check_layer_backward_data(const LayerOutputs& grads, const LayerArguments& a,
                               const Tensor& output, const Tensor& gates) {
  constexpr const char* op = "recurrent_layer_backward";
  check_argument_storages(op, a);
  check_storages(op, {{"grad_output", grads.output},
                      {"grad_h_n", grads.h_n},
                      {"grad_c_n", grads.c_n},
                      {"output", output},
                      {"gates", gates}});
  check_batch_sizes(op, a);
}

}  // namespace treadle
