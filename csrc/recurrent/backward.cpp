// The backward pass of lltm_layer that all devices share: the steps give the gradients of all
// gates; products and sums over all steps make of them those of input, weights and bias.
#include <ATen/Functions.h>

#include "lltm_layer_run.h"

namespace treadle {

// All h are known, so that one product computes the gates of all steps.
Tensor Layer::gates_again(int64_t d, const Tensor& previous_h) const {
  const Tensor x = at::cat({previous_h, rows(input)}, 1).to(work);
  const Tensor w = at::cat({weight_hh[d], weight_ih[d]}, 1).to(work);
  const Tensor gates = has(bias) ? at::addmm((*bias)[d].to(work), x, w.t()) : x.mm(w.t());
  return gates.to(input.scalar_type());
}

// A running sum of what the gates let in, which is cheaper to compute again than to keep.
Tensor Layer::cells_again(int64_t d, const Tensor& gates) const {
  const Tensor cells = at::empty({sequence.rows, hidden}, input.options().dtype(acc));
  const Tensor c =
      c0[d].to(acc, /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::Contiguous);
  const auto steps = sequence.in_order(d);
  backend.cells({dtype, batch, hidden, steps.data(), static_cast<int64_t>(steps.size()),
                 gates.const_data_ptr(), c.mutable_data_ptr(), cells.mutable_data_ptr()},
                d, sequence, input.device(), plan);
  return cells;
}

namespace {

// MKL takes four times as long where the result has a few columns only, unless it is transposed.
Tensor product(const Tensor& a, const Tensor& b) {
  const bool few_columns = a.is_cpu() && b.size(1) > 1 && b.size(1) <= 8;
  return few_columns ? b.t().mm(a.t()).t().contiguous() : a.mm(b);
}

struct Gradients {
  Tensor input, h0, c0;
  std::vector<Tensor> weight_ih, weight_hh, bias;  // one a direction
};

struct Backward {
  const Layer& layer;
  const OptionalTensor &grad_output, &grad_h_n, &grad_c_n;
  const Tensor &output, &gates;
  bool recompute;
  LayerMask mask;

  // The gradient of a state, [B, H] in acc, to begin with.
  Tensor state(const OptionalTensor& grad, int64_t d, bool transposed) const {
    const auto options = layer.input.options().dtype(layer.acc);
    const Tensor t = transposed ? at::empty({layer.hidden, layer.batch}, options).t()
                                : at::empty({layer.batch, layer.hidden}, options);
    return has(grad) ? t.copy_((*grad)[d]) : t.zero_();
  }

  // [S, 3H] of direction d; dh and dc become the gradients of h0 and c0.
  Tensor grad_gates(int64_t d, const Tensor& previous_h, const Tensor& dh, const Tensor& dc) const {
    const auto options = layer.input.options().dtype(layer.work);
    const int64_t s = layer.sequence.rows, width = Layer::kGates * layer.hidden;
    if (layer.idle()) return at::empty({s, width}, options);
    const Tensor g = recompute ? layer.gates_again(d, previous_h) : gates[d];
    const Tensor c = layer.cells_again(d, g);
    // Gates that nobody else sees are overwritten, each by its gradient.
    const bool in_place = recompute && layer.work == g.scalar_type();
    const Tensor result = in_place ? g : at::empty({s, width}, options);
    MatrixView grad;
    const Tensor grad_rows = has(grad_output) ? layer.rows(*grad_output) : Tensor();
    if (grad_rows.defined()) {
      grad = matrix_view(grad_rows.narrow(1, d * layer.hidden, layer.hidden));
    }
    const auto steps = layer.sequence.in_order(1 - d);
    layer.backend.backward(
        {layer.dtype, layer.batch, layer.hidden, steps.data(), static_cast<int64_t>(steps.size()),
         g.const_data_ptr(), c.const_data_ptr(), grad, matrix_view(dh), dc.mutable_data_ptr(),
         result.mutable_data_ptr()},
        layer.weight_hh[d], layer.plan);
    return result;
  }

  // [S, H]: h before each step of direction d.
  Tensor previous_h(int64_t d) const {
    const Tensor own = layer.rows(output).narrow(1, d * layer.hidden, layer.hidden);
    return layer.sequence.previous_h(layer.h0[d], own, d);
  }

  // What follows from grad_gates [S, 3H] by products and sums over all steps. `previous` is that of
  // direction d, if it is known.
  void parameters(int64_t d, const Tensor& dg, Tensor previous, Gradients& grads) const {
    if (mask[0]) {
      const Tensor w = layer.weight_ih[d].to(layer.work);
      if (!grads.input.defined()) {
        grads.input = product(dg, w);
      } else if (dg.is_cpu()) {
        grads.input.add_(product(dg, w));
      } else {
        grads.input.addmm_(dg, w);
      }
    }
    if (mask[3]) grads.weight_ih.push_back(product(dg.t(), layer.rows(layer.input).to(layer.work)));
    if (mask[4]) {
      if (!previous.defined()) previous = previous_h(d);
      grads.weight_hh.push_back(dg.t().mm(previous.to(layer.work)));
    }
    if (mask[5]) grads.bias.push_back(dg.sum(0));
  }

  void direction(int64_t d, Gradients& grads) const {
    const Tensor previous = mask[4] || recompute ? previous_h(d) : Tensor();
    const Tensor dh = state(grad_h_n, d, layer.plan.transposed), dc = state(grad_c_n, d, false);
    const Tensor dg = grad_gates(d, previous, dh, dc);
    if (mask[1]) grads.h0[d].copy_(dh);
    if (mask[2]) grads.c0[d].copy_(dc);
    parameters(d, dg, previous, grads);
  }

  // [D, S, 3H]; those of h0 and c0 too, where they are needed.
  Tensor persistent_grad_gates(Gradients& grads) const {
    const std::vector<int64_t> shape{layer.directions, layer.sequence.rows,
                                     Layer::kGates * layer.hidden};
    const Tensor result = at::empty(shape, layer.input.options());
    // Gates that nobody else sees are overwritten here, too.
    for (int64_t d = 0; d < layer.directions && recompute; ++d) {
      result[d].copy_(layer.gates_again(d, previous_h(d)));
    }
    const Tensor rows = has(grad_output) ? layer.rows(*grad_output) : Tensor();
    const auto contiguous = [](const OptionalTensor& t) {
      return has(t) ? t->contiguous() : Tensor();
    };
    layer.persistent_backward(recompute ? result : gates.view(shape), rows, contiguous(grad_h_n),
                              contiguous(grad_c_n), grads.h0, grads.c0, result);
    return result;
  }

  Gradients run() const {
    Gradients grads;
    if (mask[1]) grads.h0 = at::empty(layer.h0.sizes(), layer.h0.options());
    if (mask[2]) grads.c0 = at::empty(layer.c0.sizes(), layer.c0.options());
    if (layer.plan.persistent() && !layer.idle()) {
      const Tensor dg = persistent_grad_gates(grads);
      for (int64_t d = 0; d < layer.directions; ++d) parameters(d, dg[d], Tensor(), grads);
      return grads;
    }
    for (int64_t d = 0; d < layer.directions; ++d) direction(d, grads);
    return grads;
  }
};

Tensor stacked(const std::vector<Tensor>& t, ScalarType dtype) {
  if (t.empty()) return Tensor();
  return (t.size() == 1 ? t[0].unsqueeze(0) : at::stack(t)).to(dtype);
}

}  // namespace

LayerGrads lltm_layer_backward_with(const RecurrenceBackend& backend,
                                    const OptionalTensor& grad_output,
                                    const OptionalTensor& grad_h_n, const OptionalTensor& grad_c_n,
                                    const Tensor& input, const OptionalTensor& batch_sizes,
                                    const Tensor& h0, const Tensor& c0, const Tensor& weight_ih,
                                    const Tensor& weight_hh, const OptionalTensor& bias,
                                    const Tensor& output, const Tensor& gates, bool recompute,
                                    std::string_view regime, LayerMask mask) {
  constexpr const char* op = "lltm_layer_backward";
  check_lltm_layer_backward(grad_output, grad_h_n, grad_c_n, input, batch_sizes, h0, c0, weight_ih,
                            weight_hh, bias, output, gates, recompute);
  check_layer_storages(op, input, h0, c0, weight_ih, weight_hh, bias);
  check_storage_if_any(op, "grad_output", grad_output);
  check_storage_if_any(op, "grad_h_n", grad_h_n);
  check_storage_if_any(op, "grad_c_n", grad_c_n);
  check_storage(op, "output", output);
  check_storage(op, "gates", gates);
  if (has(batch_sizes)) check_batch_sizes(op, input, *batch_sizes, h0.size(1));
  // Within autocast the products, too, are of the dtype that the forward pass had.
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
  const Layer layer(backend, input, batch_sizes, h0, c0, weight_ih, weight_hh, bias, regime,
                    /*backward=*/true);
  const Tensor whole_gates = gates.contiguous();
  const Backward backward{layer,  grad_output, grad_h_n,  grad_c_n,
                          output, whole_gates, recompute, mask};
  Gradients grads = backward.run();
  const auto dtype = input.scalar_type();
  if (mask[0]) grads.input = grads.input.to(dtype).view(input.sizes());
  return {grads.input,
          grads.h0,
          grads.c0,
          stacked(grads.weight_ih, dtype),
          stacked(grads.weight_hh, dtype),
          stacked(grads.bias, dtype)};
}

}  // namespace treadle
