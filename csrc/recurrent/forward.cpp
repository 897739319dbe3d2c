// lltm_layer: LLTM cells over a sequence. Formula: lltm_cell.cpp; shapes: lltm_layer.h. This file
// has the forward pass that all devices share; lltm_layer_backward.cpp has the backward pass.
// Twins: lltm_layer_cpu.cpp, cuda/lltm_layer.cpp. Derivatives: lltm_layer_autograd.cpp.
#include <ATen/Functions.h>
#include <ATen/OpMathType.h>

#include <algorithm>

#include "lltm_layer_run.h"

namespace treadle {

Layer::Layer(const RecurrenceBackend& backend, const Tensor& input,
             const OptionalTensor& batch_sizes, const Tensor& h0, const Tensor& c0,
             const Tensor& weight_ih, const Tensor& weight_hh, const OptionalTensor& bias,
             std::string_view regime, bool backward)
    : backend(backend),
      input(input),
      h0(h0),
      c0(c0),
      weight_ih(weight_ih),
      weight_hh(weight_hh),
      bias(bias),
      sequence(input, batch_sizes),
      directions(h0.size(0)),
      batch(h0.size(1)),
      hidden(h0.size(2)),
      dtype(to_dtype(input.scalar_type())),
      acc(at::toOpMathType(input.scalar_type())),
      work(backend.work_dtype(input.scalar_type())),
      plan(backend.plan(
          {static_cast<int64_t>(sequence.steps.size()), batch, hidden, kGates, directions, dtype},
          input.device(), regime, backward)) {}

void Layer::forward(int64_t d, const Tensor& output, const Tensor& h, const Tensor& c,
                    const Tensor& gates) const {
  const auto data = [](const Tensor& t) { return t.defined() ? t.mutable_data_ptr() : nullptr; };
  const Tensor x = rows(input), w_hh = weight_hh[d];
  // Once, and not for every chunk.
  const Tensor w_ih = weight_ih[d].to(work);
  const Tensor b = has(bias) ? (*bias)[d].contiguous() : Tensor();
  const auto steps = sequence.in_order(d);
  const auto count = static_cast<int64_t>(steps.size());
  for (int64_t begin = 0; begin < count; begin += plan.steps_per_chunk) {
    const int64_t end = std::min(count, begin + plan.steps_per_chunk);
    const auto &one = steps[begin], &other = steps[end - 1];
    const int64_t first = std::min(one.start, other.start);
    const int64_t last = std::max(one.start + one.rows, other.start + other.rows);
    if (first == last) continue;
    const Tensor products =
        backend.input_product(x.narrow(0, first, last - first), w_ih, plan.transposed);
    MatrixView view = plan.transposed ? matrix_view(products.t()) : matrix_view(products);
    // As if it had all rows of S.
    view.data = static_cast<const char*>(view.data) -
                first * view.row_stride * static_cast<int64_t>(products.element_size());
    char* const own_output = static_cast<char*>(output.mutable_data_ptr()) +
                             d * hidden * static_cast<int64_t>(output.element_size());
    backend.forward(
        {dtype, batch, hidden, &one, end - begin, view, b.defined() ? b.const_data_ptr() : nullptr,
         data(h), data(c), own_output, directions * hidden, data(gates)},
        w_hh, plan);
  }
}

LayerSaved lltm_layer_forward_with(const RecurrenceBackend& backend, const Tensor& input,
                                   const OptionalTensor& batch_sizes, const Tensor& h0,
                                   const Tensor& c0, const Tensor& weight_ih,
                                   const Tensor& weight_hh, const OptionalTensor& bias, bool save,
                                   std::string_view regime) {
  constexpr const char* op = "lltm_layer";
  check_lltm_layer(op, input, batch_sizes, h0, c0, weight_ih, weight_hh, bias);
  check_layer_storages(op, input, h0, c0, weight_ih, weight_hh, bias);
  if (has(batch_sizes)) check_batch_sizes(op, input, *batch_sizes, h0.size(1));
  const Layer layer(backend, input, batch_sizes, h0, c0, weight_ih, weight_hh, bias, regime,
                    /*backward=*/false);
  auto shape = input.sizes().vec();
  shape.back() = layer.directions * layer.hidden;
  const Tensor output = at::empty(shape, input.options());
  const bool one_launch = layer.plan.persistent() && !layer.idle();
  const Tensor h =
      one_launch ? at::empty(h0.sizes(), h0.options()) : h0.clone(at::MemoryFormat::Contiguous);
  const Tensor c = one_launch ? at::empty(c0.sizes(), c0.options())
                              : c0.to(layer.acc, /*non_blocking=*/false, /*copy=*/true,
                                      at::MemoryFormat::Contiguous);
  const Tensor gates =
      at::empty_symint(save ? layer_gates_shape(input, h0) : c10::SymDimVector{0}, input.options());
  if (one_launch) {
    layer.persistent_forward(output, h, c, save ? gates : Tensor());
  } else {
    for (int64_t d = 0; d < layer.directions && !layer.idle(); ++d) {
      layer.forward(d, output, h[d], c[d], save ? gates[d] : Tensor());
    }
  }
  return {output, h, c.to(c0.scalar_type()), gates};
}

// ---- empty results

static LayerSaved lltm_layer_forward_empty(const Tensor& input, const OptionalTensor& batch_sizes,
                                           const Tensor& h0, const Tensor& c0,
                                           const Tensor& weight_ih, const Tensor& weight_hh,
                                           const OptionalTensor& bias, bool recompute,
                                           c10::string_view) {
  check_lltm_layer("lltm_layer", input, batch_sizes, h0, c0, weight_ih, weight_hh, bias);
  const auto gates = recompute ? c10::SymDimVector{0} : layer_gates_shape(input, h0);
  return {at::empty_symint(layer_output_shape(input, h0), input.options()),
          at::empty_symint(h0.sym_sizes(), h0.options()),
          at::empty_symint(c0.sym_sizes(), c0.options()), at::empty_symint(gates, input.options())};
}

static LayerGrads lltm_layer_backward_empty(const OptionalTensor& grad_output,
                                            const OptionalTensor& grad_h_n,
                                            const OptionalTensor& grad_c_n, const Tensor& input,
                                            const OptionalTensor& batch_sizes, const Tensor& h0,
                                            const Tensor& c0, const Tensor& weight_ih,
                                            const Tensor& weight_hh, const OptionalTensor& bias,
                                            const Tensor& output, const Tensor& gates,
                                            bool recompute, c10::string_view, LayerMask mask) {
  check_lltm_layer_backward(grad_output, grad_h_n, grad_c_n, input, batch_sizes, h0, c0, weight_ih,
                            weight_hh, bias, output, gates, recompute);
  const auto like = [](const Tensor& t, bool needed) {
    return needed ? at::empty_symint(t.sym_sizes(), t.options()) : Tensor();
  };
  Tensor grad_bias;
  if (mask[5]) grad_bias = at::empty_symint(weight_hh.sym_sizes().slice(0, 2), weight_hh.options());
  return {like(input, mask[0]),     like(h0, mask[1]),        like(c0, mask[2]),
          like(weight_ih, mask[3]), like(weight_hh, mask[4]), grad_bias};
}

TORCH_LIBRARY_IMPL(treadle, CompositeImplicitAutograd, m) {
  m.impl("lltm_layer_forward_empty", lltm_layer_forward_empty);
  m.impl("lltm_layer_backward_empty", lltm_layer_backward_empty);
}

}  // namespace treadle
