// The passes of recurrent_layer that run all steps and directions in one launch: the input product
// of all steps before it, and copies of tensors that are not aligned for the kernels' 16-byte
// loads.
#include <ATen/Functions.h>

#include <limits>

#include "kernels/recurrent/block/word_halves.h"
#include "recurrent/run/run.h"

namespace treadle {
namespace {

// Elements that the kernels load at a time. Kernels of a single block load them one by one.
int64_t chunk(const LayerRun& run) { return run.plan.one_block() ? 1 : 8; }

// H padded to whole chunks.
int64_t padded_width(const LayerRun& run) {
  return (run.sizes.hidden + chunk(run) - 1) / chunk(run) * chunk(run);
}

// Whether the last word of t's elements reaches beyond t's memory.
bool ends_within_a_word(const Tensor& t) {
  if (t.numel() == 0) return false;
  int64_t last = 0;
  for (int64_t i = 0; i < t.dim(); ++i) last += (t.size(i) - 1) * t.stride(i);
  const auto at = reinterpret_cast<uintptr_t>(t.const_data_ptr()) + 2 * last;
  const auto begin = reinterpret_cast<uintptr_t>(t.storage().data());
  return word_of(at) + 4 > begin + t.storage().nbytes();
}

// Whether the kernels' loads of t stay in its memory and are aligned.
bool aligned(const LayerRun& run, const Tensor& t) {
  if (run.reads_words()) return !ends_within_a_word(t);
  return run.plan.one_block() || begins_at_16_bytes(t);
}

// Allocates room for the last word if kernels read words of two elements.
Tensor empty_words(const LayerRun& run, at::IntArrayRef sizes, const at::TensorOptions& options) {
  const int64_t elements = c10::multiply_integers(sizes);
  if (!run.reads_words() || elements % 2 == 0) return at::empty(sizes, options);
  return at::empty({elements + 1}, options).narrow(0, 0, elements).view(sizes);
}

// t, which consists of contiguous rows of `columns`, with each row padded by zeros.
Tensor widened(const LayerRun& run, const Tensor& given, int64_t columns, int64_t width) {
  const Tensor t = given.contiguous();
  const int64_t rows = columns == 0 ? 0 : t.numel() / columns;
  const Tensor wide = empty_words(run, {rows, width}, t.options());
  run.backend.pad_rows({static_cast<int>(t.element_size()), rows, columns, width,
                        t.const_data_ptr(), wide.mutable_data_ptr()},
                       t.device());
  return wide;
}

PersistentSizes sizes_of(const LayerRun& run) {
  const LayerArguments& a = run.arguments;
  return persistent_sizes(run.sizes, a.c0.scalar_type() == a.input.scalar_type());
}

// x W_ih^T of all steps [D, S, G * width], in `gates` [D, S, GH] if that has room and the kernel
// may overwrite each product by its gate.
Tensor products_of_all_steps(const LayerRun& run, int64_t width, const Tensor& gates) {
  const LayerArguments& a = run.arguments;
  const int64_t directions = run.sizes.directions, hidden = run.sizes.hidden;
  const int64_t rows = run.sequence.rows, row = run.cell.gates * width, features = a.input.size(-1);
  const bool padded = width != hidden;
  const bool in_place = gates.defined() && !padded && !run.reads_words();
  const Tensor products =
      in_place ? gates : empty_words(run, {directions, rows, row}, a.input.options());
  Tensor weights = a.weight_ih;
  const int64_t blocks = run.cell.input_gates;
  // Treats each block of H rows as one row.
  if (padded) weights = widened(run, weights, hidden * features, width * features);
  const Tensor x = with_matrix(a.input);
  weights = a.one_direction() && !padded ? with_matrix(weights) : weights.contiguous();
  const auto size = static_cast<int64_t>(x.element_size());
  const Matrix all = Matrix::of(products.const_data_ptr(), directions * rows, row, row, 1, size);
  for (int64_t d = 0; d < directions; ++d) {
    // The weights of all directions.
    const Matrix weight = padded ? Matrix::of(weights.const_data_ptr(), directions * blocks * width,
                                              features, features, 1, size)
                                 : matrix_of(weights);
    run.multiply(
        all.rows_from(d * rows, rows).columns_from(run.cell.input_first * width, blocks * width),
        matrix_of(x), weight.rows_from(d * blocks * width, blocks * width).t());
  }
  return products;
}

}  // namespace

void persistent_forward(const LayerRun& run, const Tensor& output, const Tensor& h, const Tensor& c,
                        const Tensor& gates) {
  const LayerArguments& a = run.arguments;
  const int64_t width = padded_width(run), row = run.cell.gates * width;
  const Tensor products = products_of_all_steps(run, width, gates);
  const Tensor weight = a.weight_hh.contiguous(), h0 = a.h0.contiguous(), c0 = a.c0.contiguous();
  const Tensor bias_ih = contiguous(a.bias_ih), bias_hh = contiguous(a.bias_hh);
  PersistentForward args{};
  args.sizes = sizes_of(run);
  args.products = products.const_data_ptr();
  args.product_direction = run.sequence.rows * row;
  args.product_row = row;
  args.product_gate = width;
  args.weight_hh = weight.const_data_ptr();
  args.bias_ih = const_data_of(bias_ih);
  args.bias_hh = const_data_of(bias_hh);
  args.h0 = h0.const_data_ptr();
  args.h = h.mutable_data_ptr();
  args.c0 = c0.const_data_ptr();
  args.c = c.mutable_data_ptr();
  args.output = output.mutable_data_ptr();
  args.output_row = run.sizes.directions * run.sizes.hidden;
  args.gates = data_of(gates);
  args.resets = run.resets.from(0);
  run.backend.persistent_forward(args, run.sequence, a.input.device(), run.plan);
}

void persistent_backward(const LayerRun& run, const Tensor& gates, const LayerOutputs& grads,
                         const StateGradients& states, const Tensor& grad_gates,
                         const Tensor& bias_sums) {
  const LayerArguments& a = run.arguments;
  const int64_t rows = run.sequence.rows, directions = run.sizes.directions;
  const int64_t hidden = run.sizes.hidden, width = padded_width(run), row = run.cell.gates * width;
  const bool padded = width != hidden;
  const Tensor c0 = a.c0.contiguous(), weight = a.weight_hh.contiguous();
  PersistentCStates c_states{};
  c_states.sizes = sizes_of(run);
  c_states.gates = gates.const_data_ptr();
  c_states.c0 = c0.const_data_ptr();
  const auto options = a.input.options().dtype(run.acc);
  // The kernels also load the padding, and ignore it.
  const Tensor c = padded ? at::zeros({directions, rows, width}, options)
                          : at::empty({directions, rows, width}, options);
  c_states.c_states = c.mutable_data_ptr();
  c_states.c_direction = rows * width;
  c_states.resets = run.resets.from(0);
  c_states.c_row = width;

  PersistentBackward args{};
  args.sizes = c_states.sizes;
  Tensor chunks = gates;
  if (padded || !aligned(run, gates)) {
    chunks = widened(run, gates, hidden, width);
  }
  args.gates = chunks.const_data_ptr();
  args.gate_direction = rows * row;
  args.gate_row = row;
  args.gate_gate = width;
  args.c_states = c_states.c_states;
  args.c_direction = c_states.c_direction;
  args.c_row = c_states.c_row;
  Tensor grad = grads.output;
  if (grad.defined()) {
    args.grad_direction = width;
    const Matrix own = matrix_of(grad);
    args.grad_row = own.row_stride;
    if (padded || !aligned(run, grad) || own.column_stride != 1 ||
        own.row_stride % chunk(run) != 0 ||
        own.row_stride > std::numeric_limits<int>::max()) {  // the kernels keep it in an int
      grad = widened(run, grad, hidden, width);
      args.grad_row = directions * width;
    }
    args.grad_output = grad.const_data_ptr();
  }
  args.weight_hh = weight.const_data_ptr();
  args.grad_h_n = data_of(grads.h_n);
  args.grad_c_n = data_of(grads.c_n);
  args.grad_h0 = data_of(states.h0);
  args.grad_c0 = data_of(states.c0);
  args.grad_gates = grad_gates.mutable_data_ptr();
  if (bias_sums.defined()) {
    args.bias_sums = bias_sums.mutable_data_ptr<float>();
    args.bias_parts = bias_sums.size(1);
  }
  args.resets = run.resets.from(0, states.reset_h, states.reset_c);
  run.backend.persistent_backward(c_states, args, run.sequence, a.input.device(), run.plan);
}

}  // namespace treadle
