// The gradients of the input and the parameters, from those of the gates, for backends that write
// them in place: views of tensors would take longer than the products of a short sequence.
#include <ATen/Functions.h>

#include "recurrent/run/run.h"

namespace treadle {
namespace {

// Direction d of a weight of `layer` or its gradient, or of a state.
Matrix direction_of(const Tensor& t, int64_t d, bool one_direction) {
  if (!t.defined()) return {};
  if (one_direction) return matrix_of(t);
  const auto size = static_cast<int64_t>(t.element_size());
  const auto* const data = static_cast<const char*>(t.const_data_ptr()) + d * t.stride(0) * size;
  return Matrix::of(data, t.size(1), t.size(2), t.stride(1), t.stride(2), size);
}

void* bias_grad_data(const Tensor& bias, int64_t d, bool one_direction) {
  if (!bias.defined()) return nullptr;
  auto* const data = static_cast<char*>(bias.mutable_data_ptr());
  return one_direction ? data : data + d * bias.size(1) * static_cast<int64_t>(bias.element_size());
}

void make(bool needed, const Tensor& like, Tensor& found) {
  if (needed && !found.defined()) found = at::empty(like.sizes(), like.options());
}

// Also makes the gradient of a missing bias.
void make_bias(bool needed, const Tensor& weight, Tensor& found) {
  if (!needed || found.defined()) return;
  found = at::empty(weight.sizes().slice(0, weight.dim() - 1), weight.options());
}

}  // namespace

void add_parameters(const LayerRun& run, const LayerMask& mask, int64_t d, const void* grad_gates,
                    const Tensor& bias_sums, const Tensor& output, const Tensor& previous,
                    LayerGradients& found) {
  const LayerArguments& a = run.arguments;
  const bool one = a.one_direction(), adds = found.input.defined();
  const int64_t hidden = run.sizes.hidden;
  make(mask[0], a.input, found.input);
  make(mask[3], a.weight_ih, found.weight_ih);
  make(mask[4], a.weight_hh, found.weight_hh);
  make_bias(mask[5], a.weight_ih, found.bias_ih);
  make_bias(mask[6], a.weight_hh, found.bias_hh);
  const Tensor input = with_matrix(a.input);
  const Tensor weight = one ? with_matrix(a.weight_ih) : a.weight_ih.contiguous();
  const Tensor h0 = a.h0.contiguous(), states = output.contiguous();
  const auto size = static_cast<int64_t>(input.element_size());
  ParameterGradients args{};
  args.cell = run.sizes.cell;
  args.dtype = run.sizes.dtype;
  args.direction = d;
  args.batch = run.sizes.batch;
  args.hidden = hidden;
  args.tf32 = run.tf32;
  args.grad_gates = Matrix::of(grad_gates, run.sequence.rows, run.width(), run.width(), 1, size);
  if (bias_sums.defined()) args.bias_sums = matrix_of(bias_sums[d]);
  args.input = matrix_of(input);
  args.weight_ih = direction_of(weight, d, one);
  if (previous.defined()) {
    args.previous_h = matrix_of(previous);
  } else {
    args.h0 = direction_of(h0, d, /*one_direction=*/false);
    args.output = matrix_of(states).columns_from(d * hidden, hidden);
  }
  if (mask[0]) args.of_input = matrix_of(found.input);
  args.adds = adds;
  args.of_weight_ih = direction_of(found.weight_ih, d, one);
  args.of_weight_hh = direction_of(found.weight_hh, d, one);
  args.of_bias_ih = bias_grad_data(found.bias_ih, d, one);
  args.of_bias_hh = bias_grad_data(found.bias_hh, d, one);
  run.backend.parameters(args, input.device());
}

}  // namespace treadle
