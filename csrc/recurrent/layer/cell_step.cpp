// cell_step: one step of torch's cells. The modules call it on a GPU, where the host limits the
// speed of a cell, and most of its time goes into autograd and launches. torch records a Node for
// each product and activation, but cell_step only one. For few rows, it calls treadle's kernels,
// which need one launch in the forward pass and two in the backward pass; otherwise torch's.
#include "recurrent/layer/cell_step.h"

#include <ATen/OpMathType.h>
#include <ATen/functorch/DynamicLayer.h>
#include <torch/csrc/autograd/autograd.h>

#include "recurrent/layer/layer.h"

namespace treadle {

const CellStepKernels*& cell_step_kernels() {
  static const CellStepKernels* kernels = nullptr;
  return kernels;
}

namespace {

std::vector<Tensor> torchs_step(CellKind cell, const StepArguments& a) {
  const auto bias_ih = optional(a.bias_ih), bias_hh = optional(a.bias_hh);
  if (cell == CellKind::kLstm) {
    auto [h, c] = at::lstm_cell(a.input, {a.h, a.c}, a.weight_ih, a.weight_hh, bias_ih, bias_hh);
    return {h, c};
  }
  const auto step = cell == CellKind::kGru       ? at::gru_cell
                    : cell == CellKind::kRnnTanh ? at::rnn_tanh_cell
                                                 : at::rnn_relu_cell;
  return {step(a.input, a.h, a.weight_ih, a.weight_hh, bias_ih, bias_hh)};
}

// ---- values and gradients by torch's fused kernels

StepValues fused_step(CellKind cell, const StepArguments& a) {
  const auto bias_ih = optional(a.bias_ih), bias_hh = optional(a.bias_hh);
  if (cell == CellKind::kLstm) {
    const Tensor of_x = at::mm(a.input, a.weight_ih.t()), of_h = at::mm(a.h, a.weight_hh.t());
    auto [h, c, gates] = at::_thnn_fused_lstm_cell(of_x, of_h, a.c, bias_ih, bias_hh);
    return {{h, c}, c, gates};
  }
  if (cell == CellKind::kGru) {
    const Tensor of_x = at::mm(a.input, a.weight_ih.t()), of_h = at::mm(a.h, a.weight_hh.t());
    auto [h, gates] = at::_thnn_fused_gru_cell(of_x, of_h, a.h, bias_ih, bias_hh);
    return {{h}, {}, gates};
  }
  Tensor h = at::linear(a.input, a.weight_ih, bias_ih).add_(at::linear(a.h, a.weight_hh, bias_hh));
  cell == CellKind::kRnnTanh ? h.tanh_() : h.relu_();
  return {{h}, h, {}};
}

bool kernels_take(const StepArguments& a) {
  return cell_step_kernels() != nullptr && cell_step_kernels()->take(a);
}

struct GateGrads {
  Tensor of_x, of_h;  // of W_ih x and W_hh h
  Tensor h;           // the part of h's gradient that does not come from of_h; may be undefined
  Tensor c, bias_ih, bias_hh;
};

GateGrads fused_gradients(CellKind cell, const variable_list& grads, const Tensor& c,
                          const Tensor& result, const Tensor& workspace, bool has_biases) {
  if (cell == CellKind::kGru) {
    auto [of_x, of_h, h, bias_ih, bias_hh] =
        at::_thnn_fused_gru_cell_backward(grads[0], workspace, has_biases);
    return {of_x, of_h, h, {}, bias_ih, bias_hh};
  }
  if (cell == CellKind::kLstm) {
    auto [gates, old_c, bias] = at::_thnn_fused_lstm_cell_backward_impl(
        optional(grads[0]), optional(grads[1]), c, result, workspace, has_biases);
    return {gates, gates, {}, old_c, bias, bias};
  }
  const Tensor gate = cell == CellKind::kRnnTanh ? at::tanh_backward(grads[0], result)
                                                 : at::threshold_backward(grads[0], result, 0);
  const Tensor bias = has_biases ? gate.sum(0) : Tensor();
  return {gate, gate, {}, {}, bias, bias};
}

// The same from the gates that treadle's kernels save, by ATen ops, which a mode or a tracer sees.
GateGrads traced_gradients(CellKind cell, const variable_list& grads, const StepArguments& a,
                           const Tensor& saved, bool has_biases) {
  const auto dtype = saved.scalar_type(), wide = at::toOpMathType(dtype);
  const auto widened = [&](const Tensor& t) { return t.defined() ? t.to(wide) : t; };
  const auto slope = [](const Tensor& sigmoid) { return sigmoid * (1 - sigmoid); };
  const Tensor all = saved.to(wide), grad_h = widened(grads[0]);
  const std::vector<Tensor> g = all.chunk(cell_info(cell).gates, -1);
  Tensor of_x, of_h, h, c;
  if (cell == CellKind::kLstm) {
    const Tensor i = g[0].sigmoid(), f = g[1].sigmoid(), n = g[2].tanh(), o = g[3].sigmoid();
    const Tensor old_c = a.c.to(wide), t = (f * old_c + i * n).tanh();
    const Tensor of_output = grad_h.defined() ? grad_h : at::zeros_like(i);
    const Tensor through = of_output * o * (1 - t * t);
    const Tensor of_c = grads[1].defined() ? through + grads[1].to(wide) : through;
    of_x = of_h = at::cat({of_c * n * slope(i), of_c * old_c * slope(f), of_c * i * (1 - n * n),
                           of_output * t * slope(o)},
                          -1);
    c = of_c * f;
  } else if (cell == CellKind::kGru) {
    const Tensor r = g[1].sigmoid(), z = g[2].sigmoid(), n = (g[3] + r * g[0]).tanh();
    const Tensor of_n = grad_h * (1 - z) * (1 - n * n);
    const Tensor of_r = of_n * g[0] * slope(r), of_z = grad_h * (a.h.to(wide) - n) * slope(z);
    of_x = at::cat({of_r, of_z, of_n}, -1);
    of_h = at::cat({of_r, of_z, of_n * r}, -1);
    h = grad_h * z;
  } else {
    of_x = of_h = cell == CellKind::kRnnTanh ? at::tanh_backward(grad_h, all.tanh())
                                             : at::threshold_backward(grad_h, all, 0);
  }
  const auto narrowed = [&](const Tensor& t) { return t.defined() ? t.to(dtype) : t; };
  const auto sum = [&](const Tensor& t) { return has_biases ? t.sum(0).to(dtype) : Tensor(); };
  return {narrowed(of_x), narrowed(of_h), narrowed(h), narrowed(c), sum(of_x), sum(of_h)};
}

// Whether no mode and no tracer must see the ops of this step.
bool are_dense(const variable_list& tensors) {
  const auto local = c10::impl::tls_local_dispatch_key_set();
  c10::DispatchKeySet keys = local.included_;
  for (const Tensor& t : tensors) {
    if (t.defined()) keys = keys | t.key_set();
  }
  return are_dense_keys(keys - local.excluded_);
}

// ---- derivatives

// Gradients that can be differentiated again.
variable_list differentiable_gradients(CellKind cell, const variable_list& grads, const Need& need,
                                       const StepArguments& arguments) {
  // One argument may have been computed from another. The gradient of an alias contains only the
  // paths that do not go through other arguments.
  variable_list aliases = arguments.list(), wanted;
  for (size_t i = 0; i < aliases.size(); ++i) {
    if (!need[i]) continue;
    aliases[i] = aliases[i].view_as(aliases[i]);
    wanted.push_back(aliases[i]);
  }
  const auto states = torchs_step(
      cell, {aliases[0], aliases[1], aliases[2], aliases[3], aliases[4], aliases[5], aliases[6]});
  variable_list outputs, given;
  for (size_t i = 0; i < states.size(); ++i) {
    if (!grads[i].defined()) continue;
    outputs.push_back(states[i]);
    given.push_back(grads[i]);
  }
  const auto found = torch::autograd::grad(outputs, wanted, given, /*retain_graph=*/true,
                                           /*create_graph=*/true, /*allow_unused=*/true);
  variable_list result(need.size());
  for (size_t i = 0, next = 0; i < result.size(); ++i) {
    if (need[i]) result[i] = found[next++];
  }
  return result;
}

struct CellStepBackward : OpNode<CellStepBackward, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
                                 Tensor, Output, Tensor, std::string, bool> {
  static constexpr const char* kName = "CellStepBackward";

  static variable_list backward(const variable_list& grads, const Need& need, const Tensor& input,
                                const Tensor& h, const Tensor& c, const Tensor& weight_ih,
                                const Tensor& weight_hh, const Tensor& bias_ih,
                                const Tensor& bias_hh, const Tensor& state, const Tensor& workspace,
                                const std::string& name, bool by_kernels) {
    const CellKind cell = find_cell(kStepOp, name);
    const StepArguments arguments{input, h, c, weight_ih, weight_hh, bias_ih, bias_hh};
    // If the backward pass runs under autocast, a product below autograd would put a copy of a
    // weight without history into autocast's cache.
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    if (at::GradMode::is_enabled()) {
      return differentiable_gradients(cell, grads, need, arguments);
    }
    at::AutoDispatchBelowADInplaceOrView guard;
    if (by_kernels && are_dense(arguments.list()) && are_dense(grads)) {
      return cell_step_kernels()->backward(cell, arguments, workspace, grads, need);
    }
    const bool has_biases = need[5] || need[6];
    const GateGrads of = by_kernels
                             ? traced_gradients(cell, grads, arguments, workspace, has_biases)
                             : fused_gradients(cell, grads, c, state, workspace, has_biases);
    variable_list result(need.size());
    if (need[0]) result[0] = at::mm(of.of_x, weight_ih);
    if (need[1]) {
      result[1] = of.h.defined() ? at::addmm(of.h, of.of_h, weight_hh) : at::mm(of.of_h, weight_hh);
    }
    if (need[2]) result[2] = of.c;
    if (need[3]) result[3] = at::mm(of.of_x.t(), input);
    if (need[4]) result[4] = at::mm(of.of_h.t(), h);
    if (need[5]) result[5] = of.bias_ih;
    if (need[6]) {
      // make_graphed_callables would let both parameters keep a gradient that they share.
      result[6] = need[5] && of.bias_hh.is_same(of.bias_ih) ? of.bias_hh.clone() : of.bias_hh;
    }
    return result;
  }
};

// Whether the fused kernels support the arguments. If not, torch's op runs, or raises its error.
bool fits(CellKind cell, const StepArguments& a) {
  const bool lstm = cell == CellKind::kLstm;
  if (lstm != a.c.defined() || a.bias_ih.defined() != a.bias_hh.defined()) return false;
  if (!a.input.is_floating_point()) return false;
  for (const Tensor& t : a.list()) {
    if (!t.defined()) continue;
    const bool same = t.device() == a.input.device() && t.scalar_type() == a.input.scalar_type();
    // A compiler's symbolic sizes cannot be compared here.
    const bool symbolic = t.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
    if (!t.is_cuda() || !same || symbolic || t.numel() == 0) return false;
  }
  if (!are_dense(a.list())) return false;
  if (a.input.dim() != 2 || a.h.dim() != 2) return false;
  const int64_t rows = a.h.size(0), hidden = a.h.size(1);
  const int64_t of_x = cell_info(cell).input_gates * hidden;
  const int64_t of_h = cell_info(cell).state_gates * hidden;
  const auto has_size = [](const Tensor& t, at::IntArrayRef size) {
    return !t.defined() || t.sizes() == size;
  };
  return a.input.size(0) == rows && has_size(a.c, {rows, hidden}) &&
         has_size(a.weight_ih, {of_x, a.input.size(1)}) && has_size(a.weight_hh, {of_h, hidden}) &&
         has_size(a.bias_ih, {of_x}) && has_size(a.bias_hh, {of_h});
}

// A step below autograd.
std::vector<Tensor> cell_step_cuda(const StepArguments& a, CellKind cell) {
  if (!fits(cell, a) || !kernels_take(a)) return torchs_step(cell, a);
  return cell_step_kernels()->forward(cell, a, /*training=*/false).states;
}

std::vector<Tensor> cell_step_autograd(const StepArguments& a, CellKind cell) {
  const bool plain =
      !has_tangent(a.input, a.h, a.c, a.weight_ih, a.weight_hh, a.bias_ih, a.bias_hh) &&
      !at::functorch::maybeCurrentDynamicLayer().has_value() && fits(cell, a);
  if (!plain) return torchs_step(cell, a);
  auto node =
      CellStepBackward::record(a.input, a.h, a.c, a.weight_ih, a.weight_hh, a.bias_ih, a.bias_hh);
  StepValues found;
  if (!node) {
    at::AutoDispatchBelowADInplaceOrView guard;
    return cell_step_cuda(a, cell);
  }
  // If weights are frozen, torch's op does not save input and h, so they may be written over.
  if (!a.weight_ih.requires_grad() || !a.weight_hh.requires_grad()) return torchs_step(cell, a);
  const bool by_kernels = kernels_take(a);
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    found =
        by_kernels ? cell_step_kernels()->forward(cell, a, /*training=*/true) : fused_step(cell, a);
  }
  set_history(found.states, node);
  node->save(a.input, a.h, a.c, a.weight_ih, a.weight_hh, a.bias_ih, a.bias_hh, found.result,
             found.workspace, cell_info(cell).name, by_kernels);
  return found.states;
}

template <std::vector<Tensor> (*run)(const StepArguments&, CellKind)>
std::vector<Tensor> cell_step(const Tensor& input, const Tensor& h, const OptionalTensor& c,
                              const Tensor& weight_ih, const Tensor& weight_hh,
                              const OptionalTensor& bias_ih, const OptionalTensor& bias_hh,
                              c10::string_view name) {
  const CellKind cell = find_cell(kStepOp, name);
  const bool torchs = cell == CellKind::kLstm || cell == CellKind::kGru ||
                      cell == CellKind::kRnnTanh || cell == CellKind::kRnnRelu;
  TORCH_CHECK(torchs, kStepOp, ": cell must be lstm, gru, rnn_tanh or rnn_relu, got ", name);
  TORCH_CHECK((cell == CellKind::kLstm) == c.has_value(), kStepOp, ": c must ",
              c.has_value() ? "not be given" : "be a tensor", " if cell is ", name);
  return run({input, h, value_or_undefined(c), weight_ih, weight_hh, value_or_undefined(bias_ih),
              value_or_undefined(bias_hh)},
             cell);
}

std::vector<Tensor> composed_step(const StepArguments& a, CellKind cell) {
  return torchs_step(cell, a);
}

}  // namespace

TORCH_LIBRARY_IMPL(treadle, CompositeImplicitAutograd, m) {
  m.impl("cell_step", cell_step<composed_step>);
}
TORCH_LIBRARY_IMPL(treadle, CUDA, m) { m.impl("cell_step", cell_step<cell_step_cuda>); }
TORCH_LIBRARY_IMPL(treadle, AutogradCUDA, m) { m.impl("cell_step", cell_step<cell_step_autograd>); }
TORCH_LIBRARY_IMPL(treadle, AutocastCUDA, m) {
  m.impl("cell_step", TREADLE_RULE(autocast_rule<c10::DeviceType::CUDA, kNoneKept>));
}

}  // namespace treadle
