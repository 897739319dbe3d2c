#include "recurrent/lists/aligned.h"

#include "recurrent/lists/cells.h"

namespace treadle {

// Part d of a state, weight or bias [D, ...], as [1, ...]; undefined if `t` is.
static Tensor one_of(const Tensor& t, int64_t d) { return t.defined() ? t.narrow(0, d, 1) : t; }

// The arguments of direction d as a layer that runs forward in time. The steps before a row begins
// repeat its first step, so they give NaN or infinite slopes only if that step does.
static LayerArguments one_direction(const LayerArguments& a, const RowLengths& lengths, int64_t d) {
  LayerArguments own = a;
  if (!a.one_direction()) each_parameter(own, [&](const Tensor& t) { return one_of(t, d); });
  own.input = lengths.at_the_end(lengths.without_padding(a.input), d);
  own.h0 = lengths.rows(one_of(a.h0, d).masked_fill(lengths.empty, 0));
  own.c0 = lengths.rows(one_of(a.c0, d).masked_fill(lengths.empty, 0));
  const Tensor begin = lengths.up_to_first();
  if (!a.reset.defined()) {
    own.reset = begin;
    own.reset_h = own.h0;
    own.reset_c = own.c0;
    return own;
  }
  Tensor marks = a.reset.logical_and(lengths.padding.logical_not());
  if (d == 1) {  // direction 1 resets after a marked step, before the step that it runs next
    marks = steps_before(marks, at::zeros_symint({a.h0.sym_size(1), 1}, marks.options()), 1);
  }
  marks = lengths.at_the_end(marks, d);
  own.reset = begin.logical_or(marks);
  // [1, T, B, X]: for each step, the state to which a row resets.
  const auto of_resets = [&](const Tensor& first, const Tensor& callers) {
    Tensor later = of_steps(one_of(callers, d), first);  // [1, 1 or T, B, X]
    const bool each_step = callers.defined() && callers.dim() == 4;
    later = each_step ? lengths.at_the_end(later.squeeze(0), d).unsqueeze(0) : lengths.rows(later);
    return at::where(marks, later, first.unsqueeze(1));
  };
  own.reset_h = of_resets(own.h0, a.reset_h);
  own.reset_c = of_resets(own.c0, a.reset_c);
  return own;
}

LayersResults run_aligned(const LayerArguments& a, const RowLengths& lengths,
                          c10::function_ref<LayersResults(const LayerArguments&)> run) {
  const RowLengths full = lengths.without_empty();
  std::vector<Tensor> output, h_n, c_n;
  for (int64_t d = 0; d < a.h0.sym_size(0); ++d) {
    const LayersResults found = run(one_direction(a, full, d));
    output.push_back(full.from_the_end(found.output, d));
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
