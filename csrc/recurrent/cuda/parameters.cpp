// The gradients of the input and the parameters on CUDA, computed from those of the gates by cuBLAS
// products and two kernels. Operands are pointers and strides: creating views of tensors would take
// longer than the products of a short sequence. layer/layer.h explains the sizes, such as S.
#include <ATen/Functions.h>

#include "common/cuda/gemm.h"
#include "kernels/recurrent/gradients/gradients_args.h"
#include "kernels/recurrent/launchers.h"
#include "recurrent/cuda/layer.h"

namespace treadle {
namespace {

constexpr const char* kOp = "recurrent_layer_backward";
// Below this number of elements of h, copying every h_{t-1} to one buffer is faster than launching
// a second GEMM.
constexpr int64_t kManyStates = int64_t{1} << 19;
// Above this number of rows, torch's reduction is faster, because it distributes rows over blocks.
constexpr int64_t kRowsOfOneBlock = 2048;

// The operands and results of one direction. A result whose data is null is not needed.
struct ParameterGradients {
  CellKind cell;
  Dtype dtype;
  int64_t direction, batch, hidden;
  Matrix grad_gates;        // [S, GH]
  Matrix bias_sums;         // [parts, GH] with the same column sums as grad_gates; or none
  Matrix input, weight_ih;  // [S, I], [K H, I], where K gates have a product of the input
  Matrix previous_h;        // [S, H], h before each step; if none, h0 and output are read
  Matrix h0, output;        // [B, H], [S, H], if every row takes every step
  const bool* marks;        // [S], where rows reset to zeros; null: nowhere
  Matrix of_input;          // [S, I]
  bool adds;                // whether to add to of_input or to overwrite it
  Matrix of_weight_ih, of_weight_hh;
  void *of_bias_ih, *of_bias_hh;
};

// The columns of the gates [S, GH] to which h's product or the input's product contributes.
Matrix state_window(const ParameterGradients& args) {
  const CellInfo& cell = cell_info(args.cell);
  return args.grad_gates.columns_from(cell.state_first * args.hidden,
                                      cell.state_gates * args.hidden);
}
Matrix input_window(const ParameterGradients& args) {
  const CellInfo& cell = cell_info(args.cell);
  return args.grad_gates.columns_from(cell.input_first * args.hidden,
                                      cell.input_gates * args.hidden);
}

struct Products {
  const ParameterGradients& args;
  const Gemm& gemm;
  at::TensorOptions options;  // dtype and device of the gates
  cudaStream_t stream;

  // Computes to = gates^T h. `to` has torch's order of gates, which is that of `gates` rotated. So
  // there is one product for each part of the gates that is contiguous in both orders.
  void weight_hh(const Matrix& to, const Matrix& gates, const Matrix& h, bool add,
                 bool wide = false) const {
    const int64_t first = cell_info(args.cell).torch_shift * args.hidden;
    const int64_t rest = gates.columns - first;
    gemm.multiply(to.rows_from(0, rest), gates.columns_from(first, rest).t(), h, add, wide);
    if (first == 0) return;
    gemm.multiply(to.rows_from(rest, first), gates.columns_from(0, first).t(), h, add, wide);
  }

  // h before a step is h0 for the first step, and the output of the previous step for the others.
  // So there are two products, whose sum is rounded once.
  void by_parts(const Matrix& to, bool wide) const {
    const Matrix gates = state_window(args);
    const int64_t batch = args.batch, rest = gates.rows - batch;
    const bool forward = args.direction == 0;
    weight_hh(to, gates.rows_from(forward ? 0 : rest, batch), args.h0, /*add=*/false, wide);
    weight_hh(to, gates.rows_from(forward ? batch : 0, rest),
              args.output.rows_from(forward ? 0 : batch, rest), /*add=*/true, wide);
  }

  void weight_hh() const {
    const Matrix &to = args.of_weight_hh, gates = state_window(args);
    if (to.data == nullptr) return;
    if (args.previous_h.data != nullptr || gates.rows == 0) {
      return weight_hh(to, gates, gates.rows == 0 ? args.output : args.previous_h, /*add=*/false);
    }
    const bool copies = args.marks != nullptr;
    if (!copies && !is_half(args.dtype)) return by_parts(to, /*wide=*/false);
    if (!copies && gates.rows * args.hidden >= kManyStates) {
      const at::Tensor sum = at::empty({to.rows, to.columns}, options.dtype(at::kFloat));
      by_parts(matrix_of(sum), /*wide=*/true);
      at::from_blob(to.data, {to.rows, to.columns}, options).copy_(sum);
      return;
    }
    const at::Tensor previous = at::empty({gates.rows, args.hidden}, options);
    check_launch(
        kOp, launch_previous_h({static_cast<int>(to.element_size), static_cast<int>(args.direction),
                                gates.rows, args.batch, args.hidden, args.h0.data, args.output.data,
                                args.output.row_stride, args.marks, previous.mutable_data_ptr()},
                               stream));
    weight_hh(to, gates, matrix_of(previous), /*add=*/false);
  }

  void biases() const {
    const CellInfo& cell = cell_info(args.cell);
    const int64_t hidden = args.hidden;
    const BiasTarget of_input{args.of_bias_ih, cell.input_first * hidden, cell.input_gates * hidden,
                              0};
    const BiasTarget of_state{args.of_bias_hh, cell.state_first * hidden, cell.state_gates * hidden,
                              cell.torch_shift * hidden};
    if (of_input.data == nullptr && of_state.data == nullptr) return;
    const Matrix& gates = args.grad_gates;
    BiasSums sums{args.dtype, gates.rows, gates.columns, gates.data, {of_input, of_state}};
    at::Tensor total;
    if (args.bias_sums.data != nullptr) {
      sums.rows = args.bias_sums.rows;
      sums.grad_gates = args.bias_sums.data;
    } else if (gates.rows > kRowsOfOneBlock) {
      total = at::from_blob(gates.data, {gates.rows, gates.columns}, options).sum(0);
      sums.rows = 1;
      sums.grad_gates = total.const_data_ptr();
    }
    check_launch(kOp, launch_bias_sums(sums, stream));
  }
};

// Direction d of a weight, its gradient, or a state.
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

// Allocates a gradient even for a missing bias.
void make_bias(bool needed, const Tensor& weight, Tensor& found) {
  if (!needed || found.defined()) return;
  found = at::empty(weight.sizes().slice(0, weight.dim() - 1), weight.options());
}

}  // namespace

void multiply_cuda(const LayerRun& run, const Matrix& out, const Matrix& a, const Matrix& b) {
  Gemm(run.sizes.dtype, run.tf32).multiply(out, a, b, /*add=*/false);
}

void add_parameters_cuda(const BackwardPass& pass, int64_t d, const Tensor& grad_gates,
                         const Tensor& known_h, const Tensor& bias_sums, LayerGradients& found,
                         cudaStream_t stream) {
  const LayerRun& run = pass.run;
  const LayerArguments& a = run.arguments;
  const LayerMask& mask = pass.mask;
  const bool one = a.one_direction(), adds = found.input.defined();
  const int64_t hidden = run.sizes.hidden;
  make(mask[0], a.input, found.input);
  make(mask[3], a.weight_ih, found.weight_ih);
  make(mask[4], a.weight_hh, found.weight_hh);
  make_bias(mask[5], a.weight_ih, found.bias_ih);
  make_bias(mask[6], a.weight_hh, found.bias_hh);
  const Tensor input = with_matrix(a.input);
  const Tensor weight = one ? with_matrix(a.weight_ih) : a.weight_ih.contiguous();
  const Tensor h0 = a.h0.contiguous(), states = pass.output.contiguous();
  const auto size = static_cast<int64_t>(input.element_size());
  ParameterGradients args{};
  args.cell = run.sizes.cell;
  args.dtype = run.sizes.dtype;
  args.direction = a.time_direction(d);
  args.batch = run.sizes.batch;
  args.hidden = hidden;
  args.grad_gates =
      Matrix::of(grad_gates.const_data_ptr(), run.sequence.rows, run.width(), run.width(), 1, size);
  if (bias_sums.defined()) args.bias_sums = matrix_of(bias_sums);
  args.input = matrix_of(input);
  args.weight_ih = direction_of(weight, d, one);
  // Only packed batches, and rows that reset to given states, need h before each step in a separate
  // tensor. In other cases it is read from h0 and output.
  const bool moved = a.batch_sizes.defined() || run.resets.h.defined();
  const Tensor previous = mask[4] && moved && !known_h.defined() ? pass.previous_h(d) : known_h;
  if (previous.defined()) {
    args.previous_h = matrix_of(previous);
  } else {
    args.h0 = direction_of(h0, d, /*one_direction=*/false);
    args.output = matrix_of(states).columns_from(d * hidden, hidden);
    args.marks = run.resets.from(d).marks;
  }
  if (mask[0]) args.of_input = matrix_of(found.input);
  args.adds = adds;
  args.of_weight_ih = direction_of(found.weight_ih, d, one);
  args.of_weight_hh = direction_of(found.weight_hh, d, one);
  args.of_bias_ih = bias_grad_data(found.bias_ih, d, one);
  args.of_bias_hh = bias_grad_data(found.bias_hh, d, one);
  const Gemm gemm(args.dtype, run.tf32);
  const Products products{args, gemm, a.input.options(), stream};
  const Matrix of_input = input_window(args);
  if (args.of_input.data != nullptr) {
    gemm.multiply(args.of_input, of_input, args.weight_ih, args.adds);
  }
  if (args.of_weight_ih.data != nullptr) {
    gemm.multiply(args.of_weight_ih, of_input.t(), args.input, /*add=*/false);
  }
  products.weight_hh();
  products.biases();
}

}  // namespace treadle
