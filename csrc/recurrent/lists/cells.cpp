#include "recurrent/lists/cells.h"

#include <ATen/OpMathType.h>

#include "recurrent/layer/groups.h"
#include "recurrent/lists/lengths.h"
#include "recurrent/run/affine_scan.h"

namespace treadle {

// t [T, B, X] shifted by one step: at each step, the entry of the previous step of the direction;
// `first` [B, X] at its first step.
static Tensor steps_before(const Tensor& t, const Tensor& first, int64_t direction) {
  const Tensor row = first.unsqueeze(0);
  const Tensor all = direction == 0 ? at::cat({row, t}) : at::cat({t, row});
  return all.narrow_symint(0, direction, t.sym_size(0));
}

Tensor marks_before(const Tensor& reset, int64_t direction) {
  if (direction == 0) return reset;
  return steps_before(reset, at::zeros_symint({reset.sym_size(1), 1}, reset.options()), direction);
}

namespace {

// `other`, in which the marked rows are replaced with the direction's part of `states` [D, B, H] or
// [D, T, B, H], or with zeros if `states` is undefined.
Tensor replaced(const Tensor& marks, const Tensor& states, int64_t direction, const Tensor& other) {
  if (!states.defined()) return other.masked_fill(marks, 0);
  return at::where(marks, states.select(0, direction).to(other.scalar_type()), other);
}

// The coefficients of the steps of c: new c = keep * old c + add.
struct Steps {
  Tensor keep, add;
};

Steps scan_steps(CellKind cell, const Tensor& gates, const c10::SymInt& hidden) {
  const auto gate = [&](int64_t k) { return gates.narrow_symint(-1, hidden * k, hidden); };
  const Tensor i = gate(0).sigmoid();
  if (cell == CellKind::kLltm) {
    const Tensor add = at::elu(gate(2)) * i;
    return {at::ones_like(add), add};
  }
  return {gate(1).sigmoid(), i * gate(2).tanh()};
}

// ---- packed batches

// Converts a packed batch to a padded one, with indices computed from batch_sizes on the device.
struct Unpacked {
  Tensor to_padded;  // [T * B]: an index into the rows of data, 0 in the padding
  Tensor to_packed;  // [S]: an index into [T * B]
  Tensor lengths;    // [B]
  c10::SymInt steps, rows;

  Unpacked(const Tensor& batch_sizes, const Tensor& data, const c10::SymInt& batch)
      : steps(batch_sizes.sym_size(0)), rows(batch) {
    const auto options = data.options().dtype(at::kLong);
    const Tensor sizes = batch_sizes.to(data.device(), /*non_blocking=*/true);
    const Tensor ends = sizes.cumsum(0), begins = ends - sizes;
    const Tensor row = at::arange(Scalar(rows), options);
    const Tensor real = row < sizes.unsqueeze(1);
    to_padded = (begins.unsqueeze(1) + row).masked_fill(real.logical_not(), 0).flatten();
    lengths = real.sum(0);
    const Tensor place = at::arange(Scalar(data.sym_size(0)), options);
    const Tensor step = at::searchsorted(ends, place, /*out_int32=*/false, /*right=*/true);
    to_packed = step * Scalar(rows) + place - begins.index_select(0, step);
  }

  // [..., S, X], whose rows are dimension `dim`, as [..., T, B, X].
  Tensor padded(const Tensor& t, int64_t dim) const {
    return t.index_select(dim, to_padded).unflatten_symint(dim, {steps, rows});
  }
};

Tensor packed_cells(const LayerArguments& a, const Tensor& output) {
  if (output.sym_size(0) == 0) return output.to(at::toOpMathType(output.scalar_type()));
  const Unpacked places(a.batch_sizes, a.input, a.h0.sym_size(1));
  LayerArguments padded = a;
  padded.batch_sizes = Tensor();
  padded.input = places.padded(a.input, 0);
  if (a.reset.defined()) padded.reset = places.padded(a.reset, 0);
  const auto of_steps = [&](const Tensor& t) {
    return t.defined() && t.sym_size(1) != a.h0.sym_size(1) ? places.padded(t, 1) : t;
  };
  padded.reset_h = of_steps(a.reset_h);
  padded.reset_c = of_steps(a.reset_c);
  const RowLengths lengths(places.lengths, places.steps);
  padded = with_lengths(padded, lengths);
  const Tensor cells = layer_cells(padded, lengths.without_padding(places.padded(output, 0)));
  return cells.flatten(0, 1).index_select(0, places.to_packed);
}

// The product of h [T, B, H] with a weight [GH, H/n] of n diagonal blocks.
Tensor grouped_product(const Tensor& h, const Tensor& weight, int64_t groups, int gates) {
  const Tensor by_group = in_groups(weight.unsqueeze(0), groups, gates, 1);  // [n, GH/n, H/n]
  const Tensor x = in_groups(h.flatten(0, 1).unsqueeze(0), groups, 1, -1);   // [n, T*B, H/n]
  const Tensor found = from_groups(at::bmm(x, by_group.mT()), groups, gates, -1);
  return found.squeeze(0).unflatten_symint(0, {h.sym_size(0), h.sym_size(1)});
}

}  // namespace

Tensor direction_cells(const LayerArguments& a, const Tensor& output, int64_t d) {
  // Autocast must not change the dtype of the products, which is that of the layer.
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
  const ScalarType dtype = output.scalar_type(), wide = at::toOpMathType(dtype);
  const c10::SymInt hidden = a.h0.sym_size(-1);
  const Tensor own = output.narrow_symint(-1, hidden * d, hidden);
  Tensor h = steps_before(own, a.h0.select(0, d).to(dtype), d), marks = a.reset;
  if (marks.defined()) {
    marks = marks_before(marks, d);
    h = replaced(marks, a.reset_h, d, h);
  }
  // c does not depend on the output gate, which is the last gate of an LSTM.
  const int gates = cell_info(a.cell).gates - (a.cell == CellKind::kLstm ? 1 : 0);
  const auto rows = [&](const Tensor& t) {
    return parameter_of(a, t, d).narrow_symint(0, 0, hidden * gates);
  };
  const Tensor x = a.input.to(dtype), w_ih = rows(a.weight_ih).to(dtype),
               w_hh = rows(a.weight_hh).to(dtype);
  const int64_t groups = groups_of(a);
  Tensor sums =
      groups == 1
          ? at::matmul(at::cat({x, h}, -1), at::cat({w_ih, w_hh}, -1).t()).to(wide)
          : at::matmul(x, w_ih.t()).to(wide) + grouped_product(h, w_hh, groups, gates).to(wide);
  if (a.bias_ih.defined()) sums = sums + rows(a.bias_ih).to(wide);
  if (a.bias_hh.defined()) sums = sums + rows(a.bias_hh).to(wide);
  Steps steps = scan_steps(a.cell, sums, hidden);
  if (marks.defined() && a.reset_c.defined()) {
    const Tensor none = at::zeros_like(steps.add);
    steps.add = steps.add + steps.keep * replaced(marks, a.reset_c, d, none);
  }
  return affine_scan(steps.keep, steps.add, a.c0.select(0, d).to(wide), marks, d == 1);
}

Tensor layer_cells(const LayerArguments& a, const Tensor& output) {
  if (a.batch_sizes.defined()) return packed_cells(a, output);
  const Tensor first = direction_cells(a, output, 0);
  if (a.h0.sym_size(0) == 1) return first;
  return at::cat({first, direction_cells(a, output, 1)}, -1);
}

}  // namespace treadle
