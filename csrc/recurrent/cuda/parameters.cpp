// The gradients of the input and the parameters on CUDA, computed from those of the gates by cuBLAS
// products and two kernels. Operands are pointers and strides: creating views of tensors would take
// longer than the products of a short sequence. layer/layer.h explains the sizes, such as S.
#include <ATen/Functions.h>

#include <vector>

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

// The operands and results of `count` directions, which run the same way in time. Matrices have one
// matrix for each of them. A result whose data is null is not needed.
struct ParameterGradients {
  CellKind cell;
  Dtype dtype;
  int64_t count, time_direction, batch, hidden;
  Matrices grad_gates;  // [S, GH]
  Matrices bias_sums;   // [parts, GH] with the same column sums as grad_gates; or none
  Matrix input;         // [S, I]
  Matrices weight_ih;   // [K H, I], where K gates have a product of the input
  Matrices previous_h;  // [S, H], h before each step; if none, h0 and output are read
  Matrices h0, output;  // [B, H], [S, H], if every row takes every step
  const bool* marks;    // [S], where rows reset to zeros; null: nowhere
  Matrix of_input;      // [S, I]
  bool adds;            // whether to add to of_input or to overwrite it
  Matrices of_weight_ih, of_weight_hh, of_bias_ih, of_bias_hh;
};

// The columns of the gates [S, GH] to which h's product or the input's product contributes.
Matrices state_window(const ParameterGradients& args) {
  const CellInfo& cell = cell_info(args.cell);
  return args.grad_gates.columns_from(cell.state_first * args.hidden,
                                      cell.state_gates * args.hidden);
}
Matrices input_window(const ParameterGradients& args) {
  const CellInfo& cell = cell_info(args.cell);
  return args.grad_gates.columns_from(cell.input_first * args.hidden,
                                      cell.input_gates * args.hidden);
}

// The matrices of a tensor [D, rows, columns] from direction d on, or of a tensor that lacks D. A
// bias [D, columns] gives matrices of one row.
Matrices from_direction(const Tensor& t, int64_t d, bool one_direction = false) {
  if (!t.defined()) return {};
  const auto size = static_cast<int64_t>(t.element_size());
  const int64_t dim = one_direction ? 0 : 1, apart = one_direction ? 0 : t.stride(0);
  const auto* const data = static_cast<const char*>(t.const_data_ptr()) + d * apart * size;
  const bool bias = t.dim() == dim + 1;
  if (bias) return {Matrix::of(data, 1, t.size(dim), t.size(dim), t.stride(dim), size), apart};
  return {Matrix::of(data, t.size(dim), t.size(dim + 1), t.stride(dim), t.stride(dim + 1), size),
          apart};
}

struct Products {
  const ParameterGradients& args;
  const Gemm& gemm;
  at::TensorOptions options;  // dtype and device of the gates
  cudaStream_t stream;

  // A tensor [count, rows, columns] that shares memory with matrices.
  Tensor tensor_of(const Matrices& all) const {
    const Matrix& one = all.first;
    return at::from_blob(one.data, {args.count, one.rows, one.columns},
                         {all.apart, one.row_stride, one.column_stride}, options);
  }

  // With several directions, the gradients of their gates are copied to [S, count * KH]. So the
  // gradient of the input is a single product, which is rounded only once.
  void input_and_weight_ih() const {
    Matrices gates = input_window(args);
    Matrix weight = args.weight_ih.first, of_weight = args.of_weight_ih.first;
    Tensor joined;
    const bool any = args.of_input.data != nullptr || of_weight.data != nullptr;
    if (args.count > 1 && any) {
      const int64_t columns = args.count * gates.first.columns;
      joined = tensor_of(gates).transpose(0, 1).reshape({gates.first.rows, columns});
      gates.first = matrix_of(joined);
      weight = Matrix::of(weight.data, columns, weight.columns, weight.row_stride, 1,
                          weight.element_size);
      of_weight.rows = columns;
    }
    if (args.of_input.data != nullptr) {
      gemm.multiply(args.of_input, gates.first, weight, args.adds);
    }
    if (of_weight.data != nullptr) {
      gemm.multiply(of_weight, gates.first.t(), args.input, /*add=*/false);
    }
  }

  // Computes to = gates^T h. `to` has torch's order of gates, which is that of `gates` rotated. So
  // there is one product for each part of the gates that is contiguous in both orders.
  void weight_hh(const Matrices& to, const Matrices& gates, const Matrices& h, bool add,
                 bool wide = false) const {
    const int64_t first = cell_info(args.cell).torch_shift * args.hidden;
    const int64_t rest = gates.first.columns - first;
    const auto multiply = [&](int64_t row, int64_t column, int64_t count) {
      gemm.multiply_each(args.count, to.rows_from(row, count),
                         gates.columns_from(column, count).t(), h, add, wide);
    };
    multiply(0, first, rest);
    if (first != 0) multiply(rest, 0, first);
  }

  // h before a step is h0 for the first step, and the output of the previous step for the others.
  // So there are two products, whose sum is rounded once.
  void by_parts(const Matrices& to, bool wide) const {
    const Matrices gates = state_window(args);
    const int64_t batch = args.batch, rest = gates.first.rows - batch;
    const bool forward = args.time_direction == 0;
    weight_hh(to, gates.rows_from(forward ? 0 : rest, batch), args.h0, /*add=*/false, wide);
    weight_hh(to, gates.rows_from(forward ? batch : 0, rest),
              args.output.rows_from(forward ? 0 : batch, rest), /*add=*/true, wide);
  }

  // h before each step, [count, S, H], if rows reset to zeros or nowhere.
  Tensor copied_h() const {
    const int64_t rows = args.grad_gates.first.rows;
    const Tensor all = at::empty({args.count, rows, args.hidden}, options);
    const Matrices to = from_direction(all, 0);
    for (int64_t i = 0; i < args.count; ++i) {
      check_launch(kOp, launch_previous_h({static_cast<int>(to.first.element_size),
                                           static_cast<int>(args.time_direction), rows, args.batch,
                                           args.hidden, args.h0.data(i), args.output.data(i),
                                           args.output.first.row_stride, args.marks, to.data(i)},
                                          stream));
    }
    return all;
  }

  void weight_hh() const {
    const Matrices &to = args.of_weight_hh, gates = state_window(args);
    const int64_t rows = gates.first.rows;
    if (to.first.data == nullptr) return;
    if (args.previous_h.first.data != nullptr || rows == 0) {
      return weight_hh(to, gates, rows == 0 ? args.output : args.previous_h, /*add=*/false);
    }
    if (args.marks == nullptr && !is_half(args.dtype)) return by_parts(to, /*wide=*/false);
    if (args.marks == nullptr && (args.count > 1 || rows * args.hidden >= kManyStates)) {
      const Tensor sum =
          at::empty({args.count, to.first.rows, to.first.columns}, options.dtype(at::kFloat));
      by_parts(from_direction(sum, 0), /*wide=*/true);
      tensor_of(to).copy_(sum);
      return;
    }
    weight_hh(to, gates, from_direction(copied_h(), 0), /*add=*/false);
  }

  void biases() const {
    const CellInfo& cell = cell_info(args.cell);
    const int64_t hidden = args.hidden;
    const Matrices &of_ih = args.of_bias_ih, &of_hh = args.of_bias_hh;
    if (of_ih.first.data == nullptr && of_hh.first.data == nullptr) return;
    Matrices gates = args.bias_sums.first.data != nullptr ? args.bias_sums : args.grad_gates;
    Tensor total;
    if (args.bias_sums.first.data == nullptr && gates.first.rows > kRowsOfOneBlock) {
      total = tensor_of(gates).sum(1, /*keepdim=*/true);
      gates = from_direction(total, 0);
    }
    for (int64_t i = 0; i < args.count; ++i) {
      const BiasTarget of_input{of_ih.data(i), cell.input_first * hidden, cell.input_gates * hidden,
                                0};
      const BiasTarget of_state{of_hh.data(i), cell.state_first * hidden, cell.state_gates * hidden,
                                cell.torch_shift * hidden};
      check_launch(kOp, launch_bias_sums({args.dtype,
                                          gates.first.rows,
                                          gates.first.columns,
                                          gates.data(i),
                                          {of_input, of_state}},
                                         stream));
    }
  }
};

void make(bool needed, const Tensor& like, Tensor& found) {
  if (needed && !found.defined()) found = at::empty(like.sizes(), like.options());
}

// Allocates a gradient even for a missing bias.
void make_bias(bool needed, const Tensor& weight, Tensor& found) {
  if (!needed || found.defined()) return;
  found = at::empty(weight.sizes().slice(0, weight.dim() - 1), weight.options());
}

// h before each step of several directions, [count, S, H].
Tensor previous_of(const BackwardPass& pass, int64_t d, int64_t count) {
  std::vector<Tensor> each;
  for (int64_t i = 0; i < count; ++i) each.push_back(pass.previous_h(d + i));
  return at::stack(each);
}

}  // namespace

void add_parameters_cuda(const BackwardPass& pass, int64_t d, int64_t count,
                         const Tensor& grad_gates, const Tensor& known_h, const Tensor& bias_sums,
                         LayerGradients& found, cudaStream_t stream) {
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
  args.count = count;
  args.time_direction = a.time_direction(d);
  args.batch = run.sizes.batch;
  args.hidden = hidden;
  const int64_t of_gates = run.sequence.rows * run.width();
  const auto* const gates = static_cast<const char*>(grad_gates.const_data_ptr()) +
                            (grad_gates.dim() == 3 ? d * of_gates * size : 0);
  args.grad_gates = {Matrix::of(gates, run.sequence.rows, run.width(), run.width(), 1, size),
                     of_gates};
  args.bias_sums = from_direction(bias_sums, d);
  args.input = matrix_of(input);
  args.weight_ih = from_direction(weight, d, one);
  // Only packed batches, and rows that reset to given states, need h before each step in a separate
  // tensor. In other cases it is read from h0 and output.
  const bool moved = a.batch_sizes.defined() || run.resets.h.defined();
  Tensor previous = known_h;
  if (mask[4] && moved && !known_h.defined()) {
    previous = count == 1 ? pass.previous_h(d) : previous_of(pass, d, count);
  }
  if (previous.defined()) {
    args.previous_h = count == 1 ? Matrices{matrix_of(previous)} : from_direction(previous, 0);
  } else {
    args.h0 = from_direction(h0, d);
    args.output = {matrix_of(states).columns_from(d * hidden, hidden), hidden};
    args.marks = run.resets.from(d).marks;
  }
  if (mask[0]) args.of_input = matrix_of(found.input);
  args.adds = adds;
  args.of_weight_ih = from_direction(found.weight_ih, d, one);
  args.of_weight_hh = from_direction(found.weight_hh, d, one);
  args.of_bias_ih = from_direction(found.bias_ih, d, one);
  args.of_bias_hh = from_direction(found.bias_hh, d, one);
  const Gemm gemm(args.dtype, run.tf32);
  const Products products{args, gemm, a.input.options(), stream};
  products.input_and_weight_ih();
  products.weight_hh();
  products.biases();
}

}  // namespace treadle
