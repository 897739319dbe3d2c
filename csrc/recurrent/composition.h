// lltm_layer in ATen ops, step by step, for what no fused kernel does: tangents, and gradients of
// gradients.
//
// `jvp` takes tangents of the arguments forward through the steps. `vjp_tangent` goes back with the
// gradients and their tangents. Second derivatives are symmetric: with the cotangents v of the
// backward op in the places of tangents, jvp gives the gradients of grad_output, grad_h_n and
// grad_c_n (J v), and vjp_tangent those of the arguments.
// A packed batch: h and c always hold B rows, of which a step moves the first ones.
#pragma once

#include <ATen/functorch/TensorWrapper.h>

#include <optional>
#include <vector>

#include "recurrent/formulas.h"
#include "recurrent/layer.h"

namespace treadle {

inline Tensor of_direction(const Tensor& t, int64_t d) { return t.defined() ? t.select(0, d) : t; }

// ---- time

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

  // The rows of a state [B, H] that step t moves, and the state with these rows replaced.
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

  // The sequence that is made of these steps, its rows `width` long; undefined if they all are.
  Tensor join_steps(std::vector<Tensor> parts, const c10::SymInt& width) const {
    bool any = false;
    for (const auto& part : parts) any |= part.defined();
    if (!any) return Tensor();
    for (int64_t t = 0; t < count_; ++t) {
      if (parts[t].defined()) continue;
      const Tensor x = at(input_, t);
      parts[t] = x.new_zeros_symint({x.sym_size(0), width});
    }
    return packed_ ? at::cat(parts, 0) : at::stack(parts, 0);
  }

 private:
  bool packed_;
  Tensor input_;
  int64_t count_ = 0, batch_ = 0;
  std::vector<int64_t> rows_, starts_;  // of a packed batch

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

// ---- one direction

class LayerDirection {
 public:
  LayerDirection(const LayerSteps& steps, const LayerArguments& arguments, int64_t d)
      : steps_(steps),
        arguments_(arguments),
        d_(d),
        w_(at::cat({arguments.weight_hh.select(0, d), arguments.weight_ih.select(0, d)}, -1)),
        hidden_(arguments.h0.sym_size(-1)),
        features_(arguments.input.sym_size(-1)) {
    const OptionalTensor bias = optional(of_direction(arguments.bias, d));
    Tensor h = arguments.h0.select(0, d), c = arguments.c0.select(0, d);
    x_tangents_.resize(steps.count());
    tangents_.resize(steps.count());
    values_.resize(steps.count());
    for (int64_t s = 0; s < steps.count(); ++s) {
      const int64_t t = time(s);
      const Tensor old_c = steps.first(c, t);
      auto& v = values_[t];
      v.emplace(steps.at(arguments.input, t), w_, bias, steps.first(h, t), old_c);
      h = steps.after(h, v->tanh_c * v->o, t);
      c = steps.after(c, old_c + v->z * v->i, t);
    }
  }

  // The tangents of the results, from those of the arguments.
  LayerOutputs jvp(const LayerArguments& v) {
    w_tangent_ =
        join(of_direction(v.weight_hh, d_), of_direction(v.weight_ih, d_),
             of_direction(arguments_.weight_hh, d_), of_direction(arguments_.weight_ih, d_));
    const Tensor bias = of_direction(v.bias, d_);
    Tensor h = of_direction(v.h0, d_), c = of_direction(v.c0, d_);
    std::vector<Tensor> hs(steps_.count()), gates(steps_.count());
    for (int64_t s = 0; s < steps_.count(); ++s) {
      const int64_t t = time(s);
      const CellValues& value = *values_[t];
      const Tensor x = steps_.at(arguments_.input, t);
      x_tangents_[t] = join(steps_.first(h, t), steps_.at(v.input, t), value.tanh_c, x);
      gates[t] = value.gates_tangent(x_tangents_[t], w_tangent_, bias, x);
      const CellTangents& moved = tangents_[t].emplace(value, gates[t], steps_.first(c, t));
      hs[t] = moved.h;
      h = steps_.after(h, moved.h, t);
      c = steps_.after(c, moved.c, t);
    }
    return {steps_.join_steps(hs, hidden_), h, c, steps_.join_steps(gates, hidden_ * 3)};
  }

  // After jvp: the tangents of the gradients of the arguments, from gradients g of the results and
  // the tangents of g.
  LayerArguments vjp_tangent(const LayerOutputs& g, const LayerOutputs& g_tangent) {
    Tensor h = of_direction(g.h_n, d_), c = of_direction(g.c_n, d_);
    Tensor h_tangent = of_direction(g_tangent.h_n, d_), c_tangent = of_direction(g_tangent.c_n, d_);
    if (!g.output.defined() && !h.defined() && !c.defined()) {
      c = at::zeros_like(arguments_.c0.select(0, d_));
    }
    std::vector<Tensor> inputs(steps_.count());
    Tensor w_sum, bias_sum;
    for (int64_t s = steps_.count() - 1; s >= 0; --s) {
      const int64_t t = time(s);
      const CellValues& value = *values_[t];
      CellTangents& moved = *tangents_[t];
      const Tensor grad_h = plus(steps_.first(h, t), own_columns(g.output, t));
      const CellGrads grads(value, grad_h, steps_.first(c, t));
      moved.set_grads(value, grads, grad_h,
                      plus(steps_.first(h_tangent, t), own_columns(g_tangent.output, t)),
                      steps_.first(c_tangent, t));
      const Tensor x = matrix_product(grads.gates, w_);
      const Tensor x_tangent =
          plus(matrix_product(moved.grad_gates, w_), matrix_product(grads.gates, w_tangent_));
      w_sum = sum(w_sum, matrix_product(transposed(moved.grad_gates), value.x),
                  matrix_product(transposed(grads.gates), x_tangents_[t]));
      if (moved.grad_gates.defined()) bias_sum = plus(bias_sum, moved.grad_gates.sum(-2));
      inputs[t] = columns(x_tangent, hidden_, features_);
      h = steps_.after(h, columns(x, 0, hidden_), t);
      c = steps_.after(c, grads.c, t);
      h_tangent = steps_.after(h_tangent, columns(x_tangent, 0, hidden_), t);
      c_tangent = steps_.after(c_tangent, moved.grad_c, t);
    }
    return {steps_.join_steps(inputs, features_),
            h_tangent,
            c_tangent,
            columns(w_sum, hidden_, features_),
            columns(w_sum, 0, hidden_),
            bias_sum};
  }

 private:
  const LayerSteps& steps_;
  const LayerArguments& arguments_;
  int64_t d_;
  Tensor w_, w_tangent_;  // [weight_hh, weight_ih], beside X = [h, x]
  c10::SymInt hidden_, features_;
  // By time.
  std::vector<std::optional<CellValues>> values_;
  std::vector<Tensor> x_tangents_;
  std::vector<std::optional<CellTangents>> tangents_;

  int64_t time(int64_t s) const { return d_ == 0 ? s : steps_.count() - 1 - s; }

  // This direction's columns of step t of output [T, B, D*H] or [S, D*H].
  Tensor own_columns(const Tensor& output, int64_t t) const {
    return columns(steps_.at(output, t), hidden_ * d_, hidden_);
  }
};

// ---- the layer

// [D, ...] of parts, one a direction; undefined if they all are.
inline Tensor stack_directions(std::vector<Tensor> parts, const Tensor& like) {
  bool any = false;
  for (const auto& part : parts) any |= part.defined();
  if (!any) return Tensor();
  for (size_t d = 0; d < parts.size(); ++d) {
    if (!parts[d].defined()) parts[d] = at::zeros_like(like.select(0, static_cast<int64_t>(d)));
  }
  return at::stack(parts, 0);
}

// In float at least, like CellValues.
class LayerComposition {
 public:
  LayerComposition(const char* op, const LayerArguments& arguments)
      : dtype_(c10::isReducedFloatingType(arguments.input.scalar_type())
                   ? at::kFloat
                   : arguments.input.scalar_type()),
        arguments_(arguments.map([&](const Tensor& t) { return cast(t, dtype_); })),
        steps_(op, arguments_) {
    const int64_t count = arguments_.h0.sym_size(0).guard_int(__FILE__, __LINE__);
    directions_.reserve(count);
    for (int64_t d = 0; d < count; ++d) directions_.emplace_back(steps_, arguments_, d);
  }
  LayerComposition(const LayerComposition&) = delete;  // directions refer to it

  LayerOutputs jvp(const LayerArguments& tangents) {
    const auto v = tangents.map([&](const Tensor& t) { return cast(t, dtype_); });
    std::vector<LayerOutputs> found;
    for (auto& direction : directions_) found.push_back(direction.jvp(v));
    const auto each = [&](Tensor LayerOutputs::* member) {
      std::vector<Tensor> parts;
      for (const auto& one : found) parts.push_back(one.*member);
      return parts;
    };
    // Of the sequences all directions are defined, or none is.
    const auto joined = [](const std::vector<Tensor>& parts, auto join) {
      return parts.empty() || !parts[0].defined() ? Tensor() : join(parts);
    };
    const auto beside = [](const std::vector<Tensor>& parts) { return at::cat(parts, -1); };
    const auto stacked = [](const std::vector<Tensor>& parts) { return at::stack(parts, 0); };
    return {joined(each(&LayerOutputs::output), beside),
            stack_directions(each(&LayerOutputs::h_n), arguments_.h0),
            stack_directions(each(&LayerOutputs::c_n), arguments_.c0),
            joined(each(&LayerOutputs::gates), stacked)};
  }

  LayerArguments vjp_tangent(const LayerOutputs& grads, const LayerOutputs& tangents) {
    const auto up = [&](const Tensor& t) { return cast(t, dtype_); };
    const auto g = grads.map(up), g_tangent = tangents.map(up);
    std::vector<LayerArguments> found;
    for (auto& direction : directions_) found.push_back(direction.vjp_tangent(g, g_tangent));
    const auto stacked = [&](Tensor LayerArguments::* member) {
      std::vector<Tensor> parts;
      for (const auto& one : found) parts.push_back(one.*member);
      return (arguments_.*member).defined() ? stack_directions(parts, arguments_.*member)
                                            : Tensor();
    };
    Tensor input;
    for (const auto& one : found) input = plus(input, one.input);
    return {input,
            stacked(&LayerArguments::h0),
            stacked(&LayerArguments::c0),
            stacked(&LayerArguments::weight_ih),
            stacked(&LayerArguments::weight_hh),
            stacked(&LayerArguments::bias)};
  }

 private:
  ScalarType dtype_;
  LayerArguments arguments_;
  LayerSteps steps_;
  std::vector<LayerDirection> directions_;
};

}  // namespace treadle
