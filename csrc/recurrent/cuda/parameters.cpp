// The gradients of the input and the parameters of a direction on CUDA: cuBLAS products with two
// kernels between them.
#include "recurrent/cuda/parameters.h"

#include <ATen/Functions.h>
#include <ATen/OpMathType.h>

#include "common/check.h"
#include "common/cuda/gemm.h"
#include "common/cuda/launch.h"
#include "kernels/recurrent/launchers.h"
#include "recurrent/layer/check.h"

namespace treadle {
namespace {

constexpr const char* kOp = "recurrent_layer_backward";
// Below this size, copying every h_{t-1} into one buffer beats launching a second GEMM.
constexpr int64_t kManyStates = int64_t{1} << 19;
// Above this many rows torch's reduction, which distributes rows over blocks, is faster.
constexpr int64_t kRowsOfOneBlock = 2048;

at::TensorOptions options_of(at::Device device, Dtype dtype) {
  const auto type = dtype == Dtype::kHalf       ? at::kHalf
                    : dtype == Dtype::kBFloat16 ? at::kBFloat16
                    : dtype == Dtype::kFloat    ? at::kFloat
                                                : at::kDouble;
  return at::TensorOptions(device).dtype(type);
}

// The columns of the gates [S, GH] to which h's product contributes, or the input's.
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
  at::TensorOptions options;  // of the gates
  cudaStream_t stream;

  // to = (columns of the gates)^T h, in torch's order of the gates, by one product for each run of
  // gates that stays contiguous.
  void weight_hh(const Matrix& to, const Matrix& gates, const Matrix& h, bool add,
                 bool wide = false) const {
    const int64_t first = cell_info(args.cell).torch_shift * args.hidden;
    const int64_t rest = gates.columns - first;
    gemm.multiply(to.rows_from(0, rest), gates.columns_from(first, rest).t(), h, add, wide);
    if (first == 0) return;
    gemm.multiply(to.rows_from(rest, first), gates.columns_from(0, first).t(), h, add, wide);
  }

  // h before a step is h0 for the first step, else the output of the previous one: two products,
  // whose sum is rounded once.
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
    if (!is_half(args.dtype)) return by_parts(to, /*wide=*/false);
    if (gates.rows * args.hidden >= kManyStates) {
      const at::Tensor sum = at::empty({to.rows, to.columns}, options.dtype(at::kFloat));
      by_parts(matrix_of(sum), /*wide=*/true);
      at::from_blob(to.data, {to.rows, to.columns}, options).copy_(sum);
      return;
    }
    const at::Tensor previous = at::empty({gates.rows, args.hidden}, options);
    check_launch(
        kOp, launch_previous_h({static_cast<int>(to.element_size), static_cast<int>(args.direction),
                                gates.rows, args.batch, args.hidden, args.h0.data, args.output.data,
                                args.output.row_stride, previous.mutable_data_ptr()},
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

}  // namespace

void multiply_cuda(const Matrix& out, const Matrix& a, const Matrix& b, Dtype dtype,
                   at::Device device, std::optional<bool> tf32) {
  const c10::cuda::CUDAGuard guard(device);
  Gemm(dtype, tf32).multiply(out, a, b, /*add=*/false);
}

void pad_rows_cuda(const PadRows& args, at::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  check_launch(layer_op_name(), launch_pad_rows(args, at::cuda::getCurrentCUDAStream()));
}

void parameters_cuda(const ParameterGradients& args, at::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  const Gemm gemm(args.dtype, args.tf32);
  const Products products{args, gemm, options_of(device, args.dtype),
                          at::cuda::getCurrentCUDAStream()};
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
