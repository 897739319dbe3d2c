#include "recurrent/lists/lengths.h"

#include <cstdlib>
#include <string_view>

#include "common/check.h"

namespace treadle {

// ---- check

static bool values_are_checked() {
  const char* const asked = std::getenv("TREADLE_CHECK_LENGTHS");
  return asked != nullptr && std::string_view(asked) == "1";
}

static void check_values(const char* op, const Tensor& lengths, const c10::SymInt& steps) {
  const Tensor known = known_values(lengths);
  if (!known.defined() || known.numel() == 0) return;
  const auto least = known.min().item<int64_t>(), most = known.max().item<int64_t>();
  TORCH_CHECK(least >= 0 && steps >= most, op, ": lengths must be from 0 to T = ", steps, ", got ",
              least < 0 ? least : most);
}

void check_lengths(const char* op, const Tensor& lengths, const Tensor& input) {
  const auto dtype = lengths.scalar_type();
  TORCH_CHECK(dtype == at::kLong || dtype == at::kInt, op,
              ": lengths must have dtype int64 or int32, got ", dtype_name(dtype));
  TORCH_CHECK(lengths.device() == input.device(), op, ": lengths must be on input's device, ",
              input.device(), ", got ", lengths.device());
  check_shape(op, "lengths", "[B]", lengths, {input.sym_size(1)});
  check_composite_storage(op, "lengths", lengths);
  if (values_are_checked()) check_values(op, lengths, input.sym_size(0));
}

// ---- rows

RowLengths::RowLengths(const Tensor& lengths, const c10::SymInt& steps) {
  t = at::arange(Scalar(steps), lengths.options().dtype(at::kLong)).unsqueeze(1);
  stop = lengths.to(at::kLong).clamp_min(0).clamp_max(Scalar(steps));
  padding = t.ge(stop).unsqueeze(-1);
  last = t.add(1).eq(stop).unsqueeze(-1);
  empty = stop.le(0).unsqueeze(-1);
}

Tensor of_steps(const Tensor& t, const Tensor& state) {
  if (!t.defined()) return at::zeros_like(state).unsqueeze(1);
  return t.dim() == 3 ? t.unsqueeze(1) : t;
}

LayerArguments with_lengths(LayerArguments a, const RowLengths& lengths) {
  a.input = lengths.without_padding(a.input);
  a.h0 = a.h0.masked_fill(lengths.empty, 0);
  a.c0 = a.c0.masked_fill(lengths.empty, 0);
  if (a.reset.defined()) a.reset = a.reset.logical_and(lengths.padding.logical_not());
  if (a.h0.sym_size(0) == 1) return a;
  // This mark also resets the first direction, but only in the padding.
  const Tensor first_after = lengths.first_after();
  if (!a.reset.defined()) {
    a.reset = first_after;
    a.reset_h = a.h0;
    a.reset_c = a.c0;
    return a;
  }
  // Each step gets a reset state: the initial state where a row begins, otherwise the caller's.
  const Tensor begin = at::stack({first_after, lengths.last});
  a.reset = a.reset.logical_or(first_after);
  a.reset_h = at::where(begin, a.h0.unsqueeze(1), of_steps(a.reset_h, a.h0));
  a.reset_c = at::where(begin, a.c0.unsqueeze(1), of_steps(a.reset_c, a.c0));
  return a;
}

// ---- the state after the last step

// This weight is much larger than any gate, so that sigmoid gives exactly 0 or 1. float16 can
// represent it.
static constexpr double kSaturated = 3e4;
// Rows of input are padded to multiples of this, because products of half types are faster then.
static constexpr int64_t kColumns = 8;

// Adds an input column that marks the padding. Its weights close the input gate in the padding and
// open an LSTM's forget gate there. So c = 1 c + 0 in the padding, and the derivatives of the gates
// are 0.
LayerArguments keep_cells(LayerArguments a, const RowLengths& lengths) {
  const c10::SymInt features = a.input.sym_size(-1);
  const c10::SymInt columns = kColumns - features % kColumns;
  const Tensor marks = lengths.padding.to(a.input.scalar_type()).expand_symint({-1, -1, columns});
  const int gates = cell_info(a.cell).input_gates;
  const Tensor weights =
      at::zeros_symint({gates, a.h0.sym_size(-1), columns}, a.weight_ih.options());
  weights.select(0, 0).select(-1, 0).fill_(-kSaturated);
  if (a.cell == CellKind::kLstm) weights.select(0, 1).select(-1, 0).fill_(kSaturated);
  // The weights of one direction may lack the dimension D.
  auto like = a.weight_ih.sym_sizes().vec();
  like.back() = columns;
  a.input = at::cat({a.input, marks}, -1);
  a.weight_ih = at::cat({a.weight_ih, weights.flatten(0, 1).view_symint(like)}, -1);
  return a;
}

void set_last_states(Tensor& h_n, Tensor& c_n, const LayerArguments& given, const Tensor& output,
                     const Tensor& cells, const RowLengths& lengths) {
  // The second direction's last states are already correct.
  const auto with_first = [](const Tensor& first, const Tensor& states) {
    if (states.sym_size(0) == 1) return first.unsqueeze(0);
    return at::stack({first, states.select(0, 1)});
  };
  const Tensor own = output.narrow_symint(-1, 0, h_n.sym_size(-1));
  h_n = with_first(lengths.at_last(own), h_n);
  if (cells.defined()) c_n = with_first(lengths.at_last(cells).to(c_n.scalar_type()), c_n);
  h_n = at::where(lengths.empty, given.h0.to(h_n.scalar_type()), h_n);
  c_n = at::where(lengths.empty, given.c0.to(c_n.scalar_type()), c_n);
}

}  // namespace treadle
