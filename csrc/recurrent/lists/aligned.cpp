#include "recurrent/lists/aligned.h"

#include "recurrent/lists/cells.h"

namespace treadle {
namespace {

// Moves rows so that they end at the last step. A row without steps becomes a copy of the longest
// row, because copying a real row adds no NaN or infinite derivative.
class AlignedRows {
 public:
  AlignedRows(const RowLengths& lengths, const c10::SymInt& steps)
      : t_(lengths.t),
        stop_(lengths.stop),
        all_(at::arange(Scalar(stop_.sym_size(0)), stop_.options())) {
    row_ = all_;
    if (!TORCH_GUARD_OR_FALSE(stop_.sym_size(0).sym_eq(0))) {
      row_ = at::where(lengths.empty.squeeze(-1), stop_.to(at::kInt).argmax(0), all_);
      stop_ = stop_.index_select(0, row_);
    }
    begin_ = stop_.neg().add(Scalar(steps));
  }

  // [T, B, X] in the order in which direction d runs, with every row moved. The steps before the
  // row repeat its first one.
  Tensor at_the_end(const Tensor& t, int64_t d) const {
    const Tensor step = (t_ - begin_).clamp_min(0);  // each row's own, in the direction's order
    return taken(t, d == 0 ? step : (stop_ - 1 - step).clamp_min(0), row_);
  }

  // Replaces rows of [..., B, X], which has no steps, as at_the_end does.
  Tensor rows(const Tensor& t) const { return t.index_select(-2, row_); }

  // The inverse of at_the_end. The values in the padding are arbitrary.
  Tensor from_the_end(const Tensor& t, int64_t d) const {
    if (d == 1) return t.flip(0);
    return taken(t, (t_ + begin_).clamp_max(Scalar(t.sym_size(0) - 1)), all_);
  }

  // [T, B, 1] bool: true up to the first step of a moved row.
  Tensor up_to_first() const { return t_.le(begin_).unsqueeze(-1); }

 private:
  // t_ [T, 1]: the steps. stop_ [B]: the lengths. all_ [B]: 0 to B - 1. row_ [B]: the row that
  // at_the_end takes. begin_ [B]: T - length.
  Tensor t_, stop_, all_, row_, begin_;

  // Step t of row b is step from[t, b] of row row[b] of t [T, B, X].
  static Tensor taken(const Tensor& t, const Tensor& from, const Tensor& row) {
    const Tensor rows = t.index_select(1, row);
    return rows.gather(0, from.unsqueeze(-1).expand_as(rows));
  }
};

// Part d of a state, weight or bias [D, ...], as [1, ...]; undefined if `t` is.
Tensor one_of(const Tensor& t, int64_t d) { return t.defined() ? t.narrow(0, d, 1) : t; }

// The arguments of direction d as a layer that runs forward in time. The steps before a row begins
// repeat its first step, so they give NaN or infinite derivatives only if that step does.
LayerArguments one_direction(const LayerArguments& a, const RowLengths& lengths,
                             const AlignedRows& aligned, int64_t d) {
  LayerArguments own = a;
  if (!a.one_direction()) each_parameter(own, [&](const Tensor& t) { return one_of(t, d); });
  own.input = aligned.at_the_end(lengths.without_padding(a.input), d);
  own.h0 = aligned.rows(one_of(a.h0, d).masked_fill(lengths.empty, 0));
  own.c0 = aligned.rows(one_of(a.c0, d).masked_fill(lengths.empty, 0));
  const Tensor begin = aligned.up_to_first();
  if (!a.reset.defined()) {
    own.reset = begin;
    own.reset_h = own.h0;
    own.reset_c = own.c0;
    return own;
  }
  Tensor marks = a.reset.logical_and(lengths.padding.logical_not());
  marks = aligned.at_the_end(marks_before(marks, d), d);
  own.reset = begin.logical_or(marks);
  // [1, T, B, X]: for each step, the state to which a row resets.
  const auto of_resets = [&](const Tensor& first, const Tensor& callers) {
    Tensor later = of_steps(one_of(callers, d), first);  // [1, 1 or T, B, X]
    const bool each_step = callers.defined() && callers.dim() == 4;
    later = each_step ? aligned.at_the_end(later.squeeze(0), d).unsqueeze(0) : aligned.rows(later);
    return at::where(marks, later, first.unsqueeze(1));
  };
  own.reset_h = of_resets(own.h0, a.reset_h);
  own.reset_c = of_resets(own.c0, a.reset_c);
  return own;
}

}  // namespace

LayersResults run_aligned(const LayerArguments& a, const RowLengths& lengths,
                          c10::function_ref<LayersResults(const LayerArguments&)> run) {
  const AlignedRows aligned(lengths, a.input.sym_size(0));
  std::vector<Tensor> output, h_n, c_n;
  for (int64_t d = 0; d < a.h0.sym_size(0); ++d) {
    const LayersResults found = run(one_direction(a, lengths, aligned, d));
    output.push_back(aligned.from_the_end(found.output, d));
    h_n.push_back(found.h_n);
    c_n.push_back(found.c_n);
  }
  const auto of_rows = [&](const std::vector<Tensor>& states, const Tensor& given) {
    const Tensor all = at::cat(states);
    return at::where(lengths.empty, given.to(all.scalar_type()), all);
  };
  return {lengths.without_padding(at::cat(output, -1)), of_rows(h_n, a.h0), of_rows(c_n, a.c0),
          Tensor()};
}

}  // namespace treadle
