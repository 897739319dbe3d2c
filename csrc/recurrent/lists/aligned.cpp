#include "recurrent/lists/aligned.h"

#include "recurrent/lists/cells.h"

namespace treadle {

// Part d of a state, weight or bias [D, ...], as [1, ...]; undefined if `t` is.
static Tensor one_of(const Tensor& t, int64_t d) { return t.defined() ? t.narrow(0, d, 1) : t; }

// The states [1, T, B, X] after resets: `first` [1, B, X] where a row begins, otherwise the
// caller's replacement states.
static Tensor with_first(const Tensor& begin, const Tensor& first, const Tensor& callers) {
  return at::where(begin, first.unsqueeze(1), of_steps(callers, first));
}

// The arguments of direction d as a layer that runs forward in time. `order` moves [T, B, ...].
template <class F>
static LayerArguments one_direction(const LayerArguments& a, const RowLengths& lengths, int64_t d,
                                    const F& order) {
  LayerArguments own = a;
  if (!a.one_direction()) each_parameter(own, [&](const Tensor& t) { return one_of(t, d); });
  own.input = order(lengths.without_padding(a.input));
  own.h0 = one_of(a.h0, d);
  own.c0 = one_of(a.c0, d);
  Tensor begin = lengths.padding.logical_or(d == 0 ? lengths.first() : lengths.last);
  if (!a.reset.defined()) {
    own.reset = order(begin);
    own.reset_h = own.h0;
    own.reset_c = own.c0;
    return own;
  }
  Tensor marks = a.reset;
  if (d == 0) {
    begin = begin.logical_and(marks.logical_not()).logical_or(lengths.padding);
  } else {  // backward in time, a row resets after a marked step, before the next one that it runs
    marks = steps_before(marks, at::zeros_symint({a.h0.sym_size(1), 1}, marks.options()), 1);
  }
  own.reset = order(begin.logical_or(marks));
  own.reset_h = order(with_first(begin, own.h0, one_of(a.reset_h, d)).squeeze(0)).unsqueeze(0);
  own.reset_c = order(with_first(begin, own.c0, one_of(a.reset_c, d)).squeeze(0)).unsqueeze(0);
  return own;
}

LayersResults run_aligned(const LayerArguments& a, const RowLengths& lengths,
                          c10::function_ref<LayersResults(const LayerArguments&)> run) {
  std::vector<Tensor> output, h_n, c_n;
  for (int64_t d = 0; d < a.h0.sym_size(0); ++d) {
    // In a direction that runs backward in time, the padding already comes first.
    const auto order = [&](const Tensor& t) { return d == 0 ? lengths.at_the_end(t) : t.flip(0); };
    const LayersResults found = run(one_direction(a, lengths, d, order));
    output.push_back(d == 0 ? lengths.from_the_end(found.output) : found.output.flip(0));
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
