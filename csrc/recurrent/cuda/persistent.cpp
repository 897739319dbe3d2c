// Algorithms "cluster" and "grid" on CUDA, which run all steps in one launch. This file computes
// the input products of all steps, and copies operands that are not aligned for the kernels'
// 16-byte loads. Then functions of kernels/recurrent/run.h launch the kernels. c_states_cuda
// computes c before every step.
#include <ATen/Functions.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "common/cuda/gemm.h"
#include "kernels/recurrent/block/word_halves.h"
#include "kernels/recurrent/launchers.h"
#include "kernels/recurrent/run.h"
#include "recurrent/cuda/layer.h"

namespace treadle {
namespace {

// The number of elements that the kernels load at a time. Single-block kernels load one at a time.
int64_t chunk(const LayerRun& run) { return run.plan.one_block() ? 1 : 8; }

// H padded to whole chunks.
int64_t padded_width(const LayerRun& run) {
  return (run.sizes.hidden + chunk(run) - 1) / chunk(run) * chunk(run);
}

// Whether the word of two elements that contains t's last element extends past the end of t's
// memory. Single-block kernels read half types in such words.
bool ends_within_a_word(const Tensor& t) {
  if (t.numel() == 0) return false;
  int64_t last = 0;
  for (int64_t i = 0; i < t.dim(); ++i) last += (t.size(i) - 1) * t.stride(i);
  const auto at = reinterpret_cast<uintptr_t>(t.const_data_ptr()) + 2 * last;
  const auto begin = reinterpret_cast<uintptr_t>(t.storage().data());
  return word_of(at) + 4 > begin + t.storage().nbytes();
}

// Whether the kernels' loads of t are aligned and stay within its memory.
bool aligned(const LayerRun& run, const Tensor& t) {
  if (run.reads_words()) return !ends_within_a_word(t);
  return run.plan.one_block() || begins_at_16_bytes(t);
}

// An empty tensor. If the kernels read words of two elements, its memory includes the whole last
// word.
Tensor empty_words(const LayerRun& run, at::IntArrayRef sizes, const at::TensorOptions& options) {
  const int64_t elements = c10::multiply_integers(sizes);
  if (!run.reads_words() || elements % 2 == 0) return at::empty(sizes, options);
  return at::empty({elements + 1}, options).narrow(0, 0, elements).view(sizes);
}

// A copy of `given`, whose rows of `columns` elements are padded with zeros to `width`.
Tensor widened(const LayerRun& run, const Tensor& given, int64_t columns, int64_t width) {
  const Tensor t = given.contiguous();
  const int64_t rows = columns == 0 ? 0 : t.numel() / columns;
  const Tensor wide = empty_words(run, {rows, width}, t.options());
  check_launch(layer_op_name(),
               launch_pad_rows({static_cast<int>(t.element_size()), rows, columns, width,
                                t.const_data_ptr(), wide.mutable_data_ptr()},
                               at::cuda::getCurrentCUDAStream()));
  return wide;
}

// x W_ih^T of all steps, [D, S, G * width]. The result is written to `gates` [D, S, GH] if that has
// the same shape and the kernel may overwrite each product with its gate.
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
  // widened() treats each block of H rows as one long row, so that it appends rows of zeros.
  if (padded) weights = widened(run, weights, hidden * features, width * features);
  const Tensor x = with_matrix(a.input);
  weights = a.one_direction() && !padded ? with_matrix(weights) : weights.contiguous();
  const auto size = static_cast<int64_t>(x.element_size());
  const Matrix all = Matrix::of(products.const_data_ptr(), directions * rows, row, row, 1, size);
  // The weights of all directions.
  const Matrix weight = padded ? Matrix::of(weights.const_data_ptr(), directions * blocks * width,
                                            features, features, 1, size)
                               : matrix_of(weights);
  const Gemm gemm(run.sizes.dtype, run.tf32);
  const int64_t each = blocks * width;
  for (int64_t d = 0; d < directions; d += a.groups) {
    const Matrix to =
        all.rows_from(d * rows, rows).columns_from(run.cell.input_first * width, each);
    gemm.multiply_each(a.groups, {to, rows * row}, {matrix_of(x), 0},
                       {weight.rows_from(d * each, each).t(), each * weight.row_stride},
                       /*add=*/false);
  }
  return products;
}

// The first row of each step, on the device; undefined unless the batch is packed.
Tensor device_starts(const LayerRun& run, cudaStream_t stream) {
  const Sequence& sequence = run.sequence;
  const auto count = static_cast<int64_t>(sequence.steps.size());
  if (!run.sizes.packed) return Tensor();
  std::vector<int64_t> host;
  host.reserve(count + 1);
  for (const auto& step : sequence.steps) host.push_back(step.start);
  host.push_back(sequence.rows);
  const Tensor starts = at::empty({count + 1}, run.arguments.input.options().dtype(at::kLong));
  check_launch(layer_op_name(), launch_upload_table(host.data(), count + 1,
                                                    starts.mutable_data_ptr<int64_t>(), stream));
  return starts;
}

const int64_t* starts_of(const Tensor& starts) {
  return static_cast<const int64_t*>(const_data_of(starts));
}

PersistentSizes sizes_of(const LayerRun& run, const Tensor& starts) {
  const LayerArguments& a = run.arguments;
  PersistentSizes sizes =
      persistent_sizes(run.sizes, /*half_c=*/a.c0.scalar_type() == a.input.scalar_type());
  sizes.starts = starts_of(starts);
  return sizes;
}

// The memory through which the blocks of a grid exchange packets; undefined if none is needed.
Tensor workspace_of(const LayerRun& run) {
  const auto bytes = static_cast<int64_t>(workspace_bytes(run.sizes, run.plan));
  return bytes == 0 ? Tensor() : at::empty({bytes}, run.arguments.input.options().dtype(at::kByte));
}

// The gates [D, S, GH], saved or recomputed. Recomputed gates are written to `result`, where their
// gradients later overwrite them, unless the kernels read half types in pairs: then the recomputed
// gates get memory of their own.
Tensor whole_gates(const BackwardPass& pass, const Tensor& result) {
  const LayerRun& run = pass.run;
  if (!pass.recompute) return pass.gates;
  const Tensor again = run.reads_words() ? at::empty_like(result) : result;
  for (int64_t d = 0; d < run.sizes.directions; ++d) {
    again[d].copy_(pass.recompute_gates(d, pass.previous_h(d)));
  }
  return again;
}

// Memory for the sums [D, parts, GH] of the gradients of the gates. Undefined if the kernel does
// not compute these sums, or if no bias needs them.
Tensor new_bias_sums(const BackwardPass& pass, const Tensor& grad_gates) {
  const LayerRun& run = pass.run;
  const bool sums = run.plan.kernel == KernelId::kGridFp16x2 && (pass.mask[5] || pass.mask[6]);
  if (!sums || run.sizes.batch == 0) return Tensor();
  const int64_t parts = (run.sizes.batch - 1) / run.plan.rows + 1;
  return at::empty({run.sizes.directions, parts, run.width()}, grad_gates.options());
}

// Sets the gradients of the output in `args`. `rows` has those of all steps as a matrix, or is
// undefined. Returns the tensor that `args` points to.
Tensor set_grad_output(const LayerRun& run, const Tensor& rows, int64_t width,
                       PersistentBackward& args) {
  if (!rows.defined()) return rows;
  Tensor grad = rows;
  const Matrix own = matrix_of(grad);
  args.grad_row = own.row_stride;
  if (width != run.sizes.hidden || !aligned(run, grad) || own.column_stride != 1 ||
      own.row_stride % chunk(run) != 0 ||
      own.row_stride > std::numeric_limits<int>::max()) {  // the kernels use an int for it
    grad = widened(run, grad, run.sizes.hidden, width);
    args.grad_row = run.sizes.directions * width;
  }
  args.grad_output = grad.const_data_ptr();
  return grad;
}

}  // namespace

void c_states_cuda(const LayerRun& run, const BackwardDirection& direction, cudaStream_t stream) {
  const Tensor starts = device_starts(run, stream);
  const RecurrenceCStates& args = direction.c_states;
  PersistentCStates one{};
  one.sizes = persistent_sizes(run.sizes, /*half_c=*/false);
  one.sizes.directions = 1;
  one.sizes.starts = starts_of(starts);
  one.direction = static_cast<int>(direction.d);
  one.gates = args.gates;
  one.c0 = args.c;
  one.c_states = args.c_states;
  one.c_row = run.c_width();
  one.resets = args.resets;
  check_launch("recurrent_layer_backward", launch_c_states(one, stream));
}

LayerSaved persistent_forward_cuda(const LayerRun& run, bool save, cudaStream_t stream) {
  const LayerArguments& a = run.arguments;
  const auto [output, h, c, gates] = new_outputs(run, save);
  const int64_t width = padded_width(run);
  const Tensor products = products_of_all_steps(run, width, gates),
               starts = device_starts(run, stream);
  const Tensor weight = a.weight_hh.contiguous();
  const Tensor h0 = run.null_states() ? Tensor() : a.h0.contiguous();
  const Tensor c0 = run.null_states() ? Tensor() : a.c0.contiguous();
  const Tensor bias_ih = contiguous(a.bias_ih), bias_hh = contiguous(a.bias_hh);
  PersistentForward args =
      forward_arguments(sizes_of(run, starts), run.sequence.rows, width, run.cell.gates);
  args.products = products.const_data_ptr();
  args.weight_hh = weight.const_data_ptr();
  args.bias_ih = const_data_of(bias_ih);
  args.bias_hh = const_data_of(bias_hh);
  args.h0 = const_data_of(h0);
  args.h = h.mutable_data_ptr();
  args.c0 = const_data_of(c0);
  args.c = c.mutable_data_ptr();
  args.output = output.mutable_data_ptr();
  args.gates = data_of(gates);
  args.resets = run.resets.from(0);
  const Tensor workspace = workspace_of(run);
  check_launch(layer_op_name(), run_forward(args, run.plan, data_of(workspace), stream));
  return {output, h, c, gates};
}

namespace {

// Writes grad_gates, the gradients of states and bias_sums. All other memory that the kernels need
// is freed on return, before the products for the parameters.
void run_steps_backward(const BackwardPass& pass, const StateGradients& states,
                        const Tensor& grad_gates, const Tensor& bias_sums, cudaStream_t stream) {
  const LayerRun& run = pass.run;
  const LayerArguments& a = run.arguments;
  const int64_t rows = run.sequence.rows, directions = run.sizes.directions;
  const int64_t hidden = run.sizes.hidden, width = padded_width(run);
  const bool padded = width != hidden;
  const Tensor gates = whole_gates(pass, grad_gates);
  const Tensor chunks = padded || !aligned(run, gates) ? widened(run, gates, hidden, width) : gates;
  const Tensor c0 = a.c0.contiguous(), weight = a.weight_hh.contiguous();
  // The kernels also load the padding, but ignore it.
  const auto options = a.input.options().dtype(run.acc);
  const int64_t of_c = run.cell.c_parts * width;
  const Tensor c = padded ? at::zeros({directions, rows, of_c}, options)
                          : at::empty({directions, rows, of_c}, options);
  const Tensor starts = device_starts(run, stream);
  BackwardArguments args = backward_arguments(sizes_of(run, starts), rows, width);
  args.c_states.gates = gates.const_data_ptr();
  args.c_states.c0 = c0.const_data_ptr();
  args.c_states.c_states = c.mutable_data_ptr();
  args.c_states.resets = run.resets.from(0);
  PersistentBackward& steps = args.steps;
  steps.gates = chunks.const_data_ptr();
  const LayerOutputs& grads = pass.grads;
  const Tensor grad = set_grad_output(
      run, grads.output.defined() ? with_matrix(grads.output) : Tensor(), width, steps);
  const Tensor grad_h_n = contiguous(grads.h_n), grad_c_n = contiguous(grads.c_n);
  steps.weight_hh = weight.const_data_ptr();
  steps.grad_h_n = const_data_of(grad_h_n);
  steps.grad_c_n = const_data_of(grad_c_n);
  steps.grad_h0 = data_of(states.h0);
  steps.grad_c0 = data_of(states.c0);
  steps.grad_gates = grad_gates.mutable_data_ptr();
  if (bias_sums.defined()) {
    steps.bias_sums = bias_sums.mutable_data_ptr<float>();
    steps.bias_parts = bias_sums.size(1);
  }
  steps.resets = run.resets.from(0, states.reset_h, states.reset_c);
  const Tensor workspace = workspace_of(run);
  check_launch("recurrent_layer_backward",
               run_backward(args, run.plan, data_of(workspace), stream));
}

}  // namespace

LayerGradients persistent_backward_cuda(const BackwardPass& pass, const StateGradients& states,
                                        cudaStream_t stream) {
  const LayerRun& run = pass.run;
  const int64_t directions = run.sizes.directions;
  const Tensor grad_gates =
      at::empty({directions, run.sequence.rows, run.width()}, run.arguments.input.options());
  const Tensor bias_sums = new_bias_sums(pass, grad_gates);
  run_steps_backward(pass, states, grad_gates, bias_sums, stream);
  LayerGradients found;
  const int64_t count = run.arguments.groups;
  for (int64_t d = 0; d < directions; d += count) {
    add_parameters_cuda(pass, d, count, grad_gates, Tensor(), bias_sums, found, stream);
  }
  return found;
}

}  // namespace treadle
