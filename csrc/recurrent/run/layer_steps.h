// The steps of a layer: the rows of each step in a dense or packed sequence, and in the states. h
// and c always have B rows; a step of a packed batch updates only the first rows of h and c.
// layer/layer.h explains the sizes, such as B.
#pragma once

#include <ATen/functorch/TensorWrapper.h>

#include <vector>

#include "recurrent/layer/dual.h"
#include "recurrent/layer/layer.h"

namespace treadle {

class LayerSteps {
 public:
  LayerSteps(const char* op, const LayerArguments& a)
      : packed_(a.batch_sizes.defined()), input_(a.input) {
    if (!packed_) {
      count_ = input_.sym_size(0).guard_int(__FILE__, __LINE__);
      return;
    }
    rows_ = values(op, a.batch_sizes);
    count_ = static_cast<int64_t>(rows_.size());
    batch_ = a.h0.sym_size(1).guard_int(__FILE__, __LINE__);
    int64_t start = 0;
    for (int64_t rows : rows_) {
      starts_.push_back(start);
      start += rows;
    }
  }

  int64_t count() const { return count_; }

  // The rows of step t of a sequence [T, B, ...] or [S, ...].
  Tensor at(const Tensor& sequence, int64_t t) const {
    if (!sequence.defined()) return sequence;
    return packed_ ? sequence.narrow(0, starts_[t], rows_[t]) : sequence.select(0, t);
  }

  // first() returns the rows of a state [B, H] that step t updates. after() returns the state after
  // these rows have been replaced with `moved`.
  Tensor first(const Tensor& state, int64_t t) const {
    return state.defined() && packed_ ? state.narrow(0, 0, rows_[t]) : state;
  }
  Tensor after(const Tensor& state, const Tensor& moved, int64_t t) const {
    if (!packed_ || rows_[t] == batch_ || (!state.defined() && !moved.defined())) return moved;
    const int64_t rest = batch_ - rows_[t];
    return at::cat({moved.defined() ? moved : at::zeros_like(first(state, t)),
                    state.defined() ? state.narrow(0, rows_[t], rest)
                                    : moved.new_zeros_symint({rest, moved.sym_size(1)})},
                   0);
  }

  // Adapts the marks of another step to the rows of step t, [rows, 1]: extra rows are cut, and
  // missing rows get false.
  Tensor rows_like(const Tensor& mark, int64_t t) const {
    if (!packed_) return mark;
    const int64_t rest = rows_[t] - mark.size(0);
    return rest > 0 ? at::constant_pad_nd(mark, {0, 0, 0, rest}) : mark.narrow(0, 0, rows_[t]);
  }

  // Whether there is one replacement state per row, [B, H], rather than per row and step.
  bool by_rows(const Tensor& replacement) const {
    return packed_ ? replacement.sym_size(0) == batch_ : replacement.dim() == 2;
  }
  // The replacement states for the rows of step t.
  Tensor replacement(const Tensor& given, int64_t t) const {
    if (!given.defined()) return given;
    return by_rows(given) ? first(given, t) : at(given, t);
  }

  Dual at(const Dual& sequence, int64_t t) const {
    return sequence.map([&](const Tensor& each) { return at(each, t); });
  }
  Dual first(const Dual& state, int64_t t) const {
    return state.map([&](const Tensor& each) { return first(each, t); });
  }
  Dual after(const Dual& state, const Dual& moved, int64_t t) const {
    return {after(state.value, moved.value, t), after(state.tangent, moved.tangent, t)};
  }

  // Joins the values or tangents of all steps to a sequence [T, B, width] or [S, width], with zeros
  // for missing ones. Undefined if all are missing.
  Tensor join_steps(const std::vector<Dual>& steps, Tensor Dual::* part,
                    const c10::SymInt& width) const {
    bool any = false;
    for (const auto& step : steps) any |= (step.*part).defined();
    if (!any) return Tensor();
    std::vector<Tensor> parts;
    for (int64_t t = 0; t < count_; ++t) {
      const Tensor x = at(input_, t);
      const Tensor& found = steps[t].*part;
      parts.push_back(found.defined() ? found : x.new_zeros_symint({x.sym_size(0), width}));
    }
    return packed_ ? at::cat(parts, 0) : at::stack(parts, 0);
  }
  Dual join_steps(const std::vector<Dual>& steps, const c10::SymInt& width) const {
    return {join_steps(steps, &Dual::value, width), join_steps(steps, &Dual::tangent, width)};
  }

 private:
  bool packed_;
  Tensor input_;
  int64_t count_ = 0, batch_ = 0;
  std::vector<int64_t> rows_, starts_;  // one per step of a packed batch

  static std::vector<int64_t> values(const char* op, Tensor sizes) {
    while (const auto* wrapper = at::functorch::maybeGetTensorWrapper(sizes)) {
      sizes = wrapper->value();
    }
    const auto keys = sizes.key_set();
    const bool traced = keys.has(c10::DispatchKey::Python) ||
                        keys.has(c10::DispatchKey::Functionalize) || !sizes.has_storage();
    TORCH_CHECK(sizes.is_cpu() && !traced, op,
                ": batch_sizes must have values for tangents and second derivatives, got a tensor "
                "that is being traced");
    sizes = sizes.contiguous();
    const auto* data = sizes.const_data_ptr<int64_t>();
    return {data, data + sizes.numel()};
  }
};

}  // namespace treadle
