// A recurrent layer composed of ATen ops, step by step, for derivatives that have no fused kernels:
// tangents and second derivatives.
//
// `jvp` propagates tangents of the arguments forward through the steps. `vjp_tangent` propagates
// gradients and their tangents backward. Because second derivatives are symmetric, both also
// differentiate the backward op. They then receive the backward op's cotangents v in place of
// tangents: jvp computes the gradients of grad_output, grad_h_n and grad_c_n, and vjp_tangent
// computes the gradients of the arguments. layer.h explains the sizes, such as S.
#pragma once

#include <array>
#include <vector>

#include "recurrent/layer/formulas.h"
#include "recurrent/layer/groups.h"
#include "recurrent/layer/layer.h"
#include "recurrent/run/layer_steps.h"

namespace treadle {

// ---- one direction

class LayerDirection {
 public:
  LayerDirection(const LayerSteps& steps, const LayerArguments& arguments, int64_t d)
      : steps_(steps),
        arguments_(arguments),
        info_(cell_info(arguments.cell)),
        formula_(cell_formula(arguments.cell)),
        d_(d),
        in_time_(arguments.time_direction(d)),
        hidden_(arguments.h0.sym_size(-1)),
        gates_(steps.count()),
        h_(steps.count()),
        c_(steps.count()) {}

  // Computes the tangents of the results from those of the arguments, and the tangents of the gates
  // if `with_gates`.
  LayerOutputs jvp(const LayerArguments& tangents, bool with_gates) {
    const auto own = [&](Tensor LayerArguments::* member) {
      return Dual{of_direction(arguments_.*member, d_), of_direction(tangents.*member, d_)};
    };
    input_ = {arguments_.input, tangents.input};
    w_ih_ = own(&LayerArguments::weight_ih);
    w_hh_ = own(&LayerArguments::weight_hh);
    const Dual bias_hh = own(&LayerArguments::bias_hh);
    Dual h = own(&LayerArguments::h0), c = own(&LayerArguments::c0);
    const Dual reset_h = own(&LayerArguments::reset_h), reset_c = own(&LayerArguments::reset_c);
    const Dual of_input = all_gates(
        add_bias(matrix_product(input_, transposed(w_ih_)), own(&LayerArguments::bias_ih)),
        info_.input_first, info_.input_gates);
    std::vector<Dual> outputs(steps_.count());
    for (int64_t s = 0; s < steps_.count(); ++s) {
      const int64_t t = time(s);
      h_[t] = replaced(steps_.first(h, t), reset_h, t);
      c_[t] = replaced(steps_.first(c, t), reset_c, t);
      gates_[t] = steps_.at(of_input, t) +
                  all_gates(add_bias(matrix_product(h_[t], transposed(w_hh_)), bias_hh),
                            info_.state_first, info_.state_gates);
      const CellStates moved = formula_.forward(gate_parts(gates_[t], info_.gates, hidden_), c_[t]);
      outputs[t].tangent = moved.h.tangent;
      h = steps_.after(h, moved.h, t);
      c = steps_.after(c, moved.c, t);
    }
    return {
        steps_.join_steps(outputs, &Dual::tangent, hidden_), h.tangent, c.tangent,
        with_gates ? steps_.join_steps(gates_, &Dual::tangent, hidden_ * info_.gates) : Tensor()};
  }

  // Computes the tangents of the arguments' gradients from the gradients g of the results and the
  // tangents of g. Call this once, after jvp.
  LayerArguments vjp_tangent(const LayerOutputs& g, const LayerOutputs& g_tangent) {
    const Dual output{g.output, g_tangent.output};
    Dual h{of_direction(g.h_n, d_), of_direction(g_tangent.h_n, d_)};
    Dual c{of_direction(g.c_n, d_), of_direction(g_tangent.c_n, d_)};
    std::vector<Tensor> marked_h(steps_.count()), marked_c(steps_.count());
    for (int64_t s = steps_.count() - 1; s >= 0; --s) {
      const int64_t t = time(s);
      const Gates gates = gate_parts(gates_[t], info_.gates, hidden_);
      const Dual grad_h = steps_.first(h, t) + columns(steps_.at(output, t), hidden_ * d_, hidden_);
      const CellGrads grads = formula_.backward(gates, c_[t], grad_h, steps_.first(c, t));
      gates_[t] = join_gates(grads.gates, gates);  // no other step reads the gates
      Dual of_h = matrix_product(state_window(gates_[t]), w_hh_), of_c = grads.old_c;
      const Tensor mark = mark_of(t);
      if (mark.defined()) {
        marked_h[t] = without(of_h.tangent, ~mark);
        marked_c[t] = without(of_c.tangent, ~mark);
        of_h = without(of_h, mark);
        of_c = without(of_c, mark);
      }
      h = steps_.after(h, of_h, t);
      c = steps_.after(c, of_c, t);
    }
    const Dual gates = steps_.join_steps(gates_, hidden_ * info_.gates);
    LayerArguments found;
    found.input = tangent_of_product(input_window(gates), w_ih_);
    found.h0 = h.tangent;
    found.c0 = c.tangent;
    found.reset_h = sum_of_marked(marked_h, arguments_.reset_h);
    found.reset_c = sum_of_marked(marked_c, arguments_.reset_c);
    const Dual rows = as_rows(gates);
    found.weight_ih = tangent_of_product(transposed(input_window(rows)), as_rows(input_));
    found.weight_hh =
        tangent_of_product(transposed(state_window(rows)), as_rows(steps_.join_steps(h_, hidden_)));
    const auto bias = [&](const Dual& window) {
      return window.tangent.defined() ? window.tangent.sum(0) : Tensor();
    };
    if (arguments_.bias_ih.defined()) found.bias_ih = bias(input_window(rows));
    if (arguments_.bias_hh.defined()) found.bias_hh = bias(state_window(rows));
    return found;
  }

 private:
  const LayerSteps& steps_;
  const LayerArguments& arguments_;
  const CellInfo& info_;
  const CellFormula& formula_;
  int64_t d_, in_time_;
  c10::SymInt hidden_;
  Dual input_, w_ih_, w_hh_;
  // Indexed by time: gates (later their gradients), and h and c before each step.
  std::vector<Dual> gates_, h_, c_;

  int64_t time(int64_t s) const { return in_time_ == 0 ? s : steps_.count() - 1 - s; }

  // ---- rows that reset

  // The marks of the rows that reset before step t, [rows, 1]; undefined if no row can reset.
  Tensor mark_of(int64_t t) const {
    const int64_t at = in_time_ == 0 ? t : t + 1;
    if (!arguments_.reset.defined() || at >= steps_.count()) return Tensor();
    const Tensor mark = steps_.at(arguments_.reset, at);
    return steps_.rows_like(mark, t);
  }

  // t with zeros in the rows where `where` is true.
  static Tensor without(const Tensor& t, const Tensor& where) {
    return t.defined() ? t.masked_fill(where, 0) : t;
  }
  static Dual without(const Dual& t, const Tensor& where) {
    return t.map([&](const Tensor& each) { return without(each, where); });
  }

  // The state before step t: `by` in rows that reset, and `state`, which is the state after the
  // previous step, in the others.
  Dual replaced(const Dual& state, const Dual& by, int64_t t) const {
    const Tensor mark = mark_of(t);
    if (!mark.defined()) return state;
    const Dual other = by.map([&](const Tensor& each) { return steps_.replacement(each, t); });
    const auto chosen = [&](const Tensor& a, const Tensor& b) {
      if (!a.defined() && !b.defined()) return Tensor();
      return at::where(mark, b.defined() ? b : at::zeros_like(a),
                       a.defined() ? a : at::zeros_like(b));
    };
    return {chosen(state.value, other.value), chosen(state.tangent, other.tangent)};
  }

  // The gradient of reset_h or reset_c of this direction, [B, H], [T, B, H] or [S, H].
  Tensor sum_of_marked(const std::vector<Tensor>& steps, const Tensor& like) const {
    if (!like.defined()) return Tensor();
    const Tensor own = like.select(0, d_);
    if (!steps_.by_rows(own)) {
      std::vector<Dual> parts(steps.size());
      for (size_t t = 0; t < steps.size(); ++t) parts[t].value = steps[t];
      return steps_.join_steps(parts, &Dual::value, like.sym_size(-1));
    }
    Tensor sum;
    for (size_t t = 0; t < steps.size(); ++t) {
      if (!steps[t].defined()) continue;
      const auto rest = own.sym_size(0) - steps[t].sym_size(0);
      sum = plus(sum, at::constant_pad_nd_symint(steps[t], {0, 0, 0, rest}));
    }
    return sum;
  }

  // all_gates extends a window of the gates to all gates, with zeros. input_window and state_window
  // extract the gates to which the input's product or h's product contributes.
  Dual all_gates(const Dual& window, int first, int count) const {
    if (count == info_.gates) return window;
    const std::array<c10::SymInt, 2> pad = {hidden_ * first,
                                            hidden_ * (info_.gates - first - count)};
    return window.map(
        [&](const Tensor& t) { return t.defined() ? at::constant_pad_nd_symint(t, pad) : t; });
  }
  Dual input_window(const Dual& gates) const {
    return columns(gates, hidden_ * info_.input_first, hidden_ * info_.input_gates);
  }
  Dual state_window(const Dual& gates) const {
    return columns(gates, hidden_ * info_.state_first, hidden_ * info_.state_gates);
  }

  // A sequence [T, B, ...] or [S, ...] as rows [S, ...].
  static Dual as_rows(const Dual& sequence) {
    return sequence.map([](const Tensor& t) {
      return t.defined() && t.dim() == 3
                 ? t.reshape_symint({t.sym_size(0) * t.sym_size(1), t.sym_size(2)})
                 : t;
    });
  }
};

// ---- the layer

// Stacks parts, one per direction, to [D, ...]; undefined if all parts are.
inline Tensor stack_directions(std::vector<Tensor> parts, const Tensor& like) {
  bool any = false;
  for (const auto& part : parts) any |= part.defined();
  if (!any) return Tensor();
  for (size_t d = 0; d < parts.size(); ++d) {
    if (!parts[d].defined()) parts[d] = at::zeros_like(like.select(0, static_cast<int64_t>(d)));
  }
  return at::stack(parts, 0);
}

// A layer composed of ATen ops, in float32 or float64.
class LayerComposition {
 public:
  LayerComposition(const char* op, const LayerArguments& arguments)
      : dtype_(derivative_dtype(arguments.input)),
        one_direction_(arguments.one_direction()),
        cell_(arguments.cell),
        groups_(groups_of(arguments)),
        hidden_(arguments.h0.sym_size(-1)),
        arguments_(ordered(arguments)),
        steps_(op, arguments_) {
    const int64_t count = arguments_.h0.sym_size(0).guard_int(__FILE__, __LINE__);
    directions_.reserve(count);
    for (int64_t d = 0; d < count; ++d) directions_.emplace_back(steps_, arguments_, d);
  }
  LayerComposition(const LayerComposition&) = delete;  // directions_ refer to its members

  LayerOutputs jvp(const LayerArguments& tangents, bool with_gates = false) {
    const LayerArguments v = ordered(tangents);
    std::vector<LayerOutputs> found;
    for (auto& direction : directions_) found.push_back(direction.jvp(v, with_gates));
    const auto each = [&](Tensor LayerOutputs::* member) {
      std::vector<Tensor> parts;
      for (const auto& one : found) parts.push_back(one.*member);
      return parts;
    };
    // If only reset states have tangents, the results of one direction may have none.
    const auto joined = [](std::vector<Tensor> parts, auto join) {
      Tensor any;
      for (const auto& part : parts) any = part.defined() ? part : any;
      if (!any.defined()) return any;
      for (auto& part : parts) part = part.defined() ? part : at::zeros_like(any);
      return join(parts);
    };
    const auto beside = [](const std::vector<Tensor>& parts) { return at::cat(parts, -1); };
    const auto stacked = [](const std::vector<Tensor>& parts) { return at::stack(parts, 0); };
    const CellInfo& cell = cell_info(cell_);
    const auto units = [&](const Tensor& t, int64_t blocks) {
      return from_groups(t, groups_, blocks, -1);
    };
    return {joined(each(&LayerOutputs::output), beside),
            units(stack_directions(each(&LayerOutputs::h_n), arguments_.h0), 1),
            units(stack_directions(each(&LayerOutputs::c_n), arguments_.c0), cell.c_parts),
            joined(each(&LayerOutputs::gates), stacked)};
  }

  LayerArguments vjp_tangent(const LayerOutputs& grads, const LayerOutputs& tangents) {
    const int parts = cell_info(cell_).c_parts;
    const auto own = [&](const LayerOutputs& given) {
      LayerOutputs found = given.map([&](const Tensor& t) { return cast(t, dtype_); });
      found.h_n = in_groups(found.h_n, groups_, 1, -1);
      found.c_n = in_groups(found.c_n, groups_, parts, -1);
      return found;
    };
    const LayerOutputs g = own(grads), g_tangent = own(tangents);
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
    LayerArguments result;
    result.input = input;
    for (const auto member :
         {&LayerArguments::h0, &LayerArguments::c0, &LayerArguments::weight_ih,
          &LayerArguments::weight_hh, &LayerArguments::bias_ih, &LayerArguments::bias_hh,
          &LayerArguments::reset_h, &LayerArguments::reset_c}) {
      result.*member = stacked(member);
    }
    result = map_units(result, cell_info(cell_), [&](const Tensor& t, int64_t blocks, int64_t dim) {
      return from_groups(t, groups_, blocks, dim);
    });
    result.weight_hh = in_gate_order(result.weight_hh, cell_, -hidden_, 1);
    result.bias_hh = in_gate_order(result.bias_hh, cell_, -hidden_, 1);
    if (one_direction_) each_parameter(result, [](const Tensor& t) { return t.squeeze(0); });
    return result;
  }

 private:
  ScalarType dtype_;
  bool one_direction_;  // whether the caller's parameters lack the dimension D
  CellKind cell_;
  int64_t groups_;
  c10::SymInt hidden_;        // H of all groups together
  LayerArguments arguments_;  // divided into groups
  LayerSteps steps_;
  std::vector<LayerDirection> directions_;

  // The arguments, or their tangents, in the dtype of derivatives, with dimension D, with blocks in
  // the order of the gates, and in groups.
  LayerArguments ordered(const LayerArguments& a) const {
    LayerArguments found = a.map([&](const Tensor& t) { return cast(t, dtype_); });
    if (one_direction_) each_parameter(found, [](const Tensor& t) { return t.unsqueeze(0); });
    found.weight_hh = in_gate_order(found.weight_hh, cell_, hidden_, 1);
    found.bias_hh = in_gate_order(found.bias_hh, cell_, hidden_, 1);
    found = map_units(found, cell_info(cell_), [&](const Tensor& t, int64_t blocks, int64_t dim) {
      return in_groups(t, groups_, blocks, dim);
    });
    found.groups = groups_;
    return found;
  }
};

}  // namespace treadle
