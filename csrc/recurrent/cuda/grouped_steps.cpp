// Runs a direction of algorithm "step", forward or backward, with a StepGraph (step_groups.h). This
// file defines the launches of one step.
#include <ATen/Functions.h>
#include <ATen/OpMathType.h>

#include <algorithm>

#include "kernels/recurrent/step/step_group.h"
#include "recurrent/cuda/step_groups.h"

namespace treadle {

// Every step of a graph reads its states where the previous step wrote them, so the first states
// are copied there.
static void begin_with(void* state, const void* first, int64_t bytes, cudaStream_t stream) {
  if (first == nullptr) return;
  C10_CUDA_CHECK(cudaMemcpyAsync(state, first, bytes, cudaMemcpyDeviceToDevice, stream));
}

void run_grouped_forward(const char* op, const RecurrenceForward& args, const GroupedSteps& steps,
                         const at::Tensor& input, const at::Tensor& weight_ih,
                         const at::Tensor& weight_hh, const RecurrencePlan& plan,
                         const void* first_h, std::optional<bool> tf32, cudaStream_t stream) {
  const CellInfo& cell = cell_info(args.cell);
  const at::Tensor x = with_matrix(input), w_ih = with_matrix(weight_ih);
  const at::Tensor w_hh = weight_hh.contiguous();
  const Matrix rows = matrix_of(x), of_input = matrix_of(w_ih).t();
  const auto acc = weight_hh.options().dtype(at::toOpMathType(weight_hh.scalar_type()));
  const int64_t batch = args.batch, hidden = args.hidden;
  const int64_t chunk = std::min(
      args.step_count, std::max(kGroupSteps, plan.steps_per_chunk / kGroupSteps * kGroupSteps));
  const int64_t width = cell.input_gates * hidden, state_width = cell.state_gates * hidden;
  const at::Tensor products = at::empty({chunk * batch, width}, acc);
  const at::Tensor of_h = at::empty({batch, state_width}, acc);
  // A view [rows, columns], stored by columns if the plan is transposed.
  const auto laid_out = [&](const at::Tensor& t, int64_t rows, int64_t columns) {
    return plan.transposed ? MatrixView{t.const_data_ptr(), 1, rows}
                           : MatrixView{t.const_data_ptr(), columns, 1};
  };
  const MatrixView all_products = laid_out(products, chunk * batch, width);
  const MatrixView state_products = laid_out(of_h, batch, state_width);
  int64_t products_row = 0;  // the row of the sequence [S, ...] that is row 0 of `products`
  const auto step = [&](const Gemm& gemm, int64_t first_row, const int64_t* base,
                        cudaStream_t stream) {
    gemm.multiply(matrix_of(state_products, batch, state_width, acc_bytes(args.dtype)),
                  Matrix::of(args.h, batch, hidden, hidden, 1, size_of(args.dtype)),
                  matrix_of(w_hh).t(), /*add=*/false, /*wide=*/true);
    const RecurrenceStep one[2] = {{first_row, batch}, {}};
    RecurrenceForward own = args;
    own.steps = one;
    own.step_count = 1;
    own.first_c = nullptr;
    own.products = all_products;
    own.state_products = state_products;
    // Steps count rows from row 0 of the sequence, so this moves the pointer to where that row
    // would be.
    if (base == nullptr) {
      own.products.data = static_cast<const char*>(all_products.data) -
                          products_row * all_products.row_stride * acc_bytes(args.dtype);
    }
    check_launch(op, launch_grouped_forward(own, {base, nullptr}, stream));
  };
  StepGroups groups(op, args.dtype, tf32, steps, input.device(), stream, step);
  begin_with(args.h, first_h, batch * hidden * size_of(args.dtype), stream);
  begin_with(args.c, args.first_c, batch * hidden * cell.c_parts * acc_bytes(args.dtype), stream);
  for (int64_t begin = 0; begin < args.step_count; begin += chunk) {
    const int64_t count = std::min(chunk, args.step_count - begin);
    products_row = std::min(args.steps[begin].start, args.steps[begin + count - 1].start);
    const Matrix to = Matrix::of(all_products.data, count * batch, width, all_products.row_stride,
                                 all_products.column_stride, acc_bytes(args.dtype));
    Gemm(args.dtype, tf32)
        .multiply(to, rows.rows_from(products_row, count * batch), of_input,
                  /*add=*/false, /*wide=*/true);
    groups.run(args.steps + begin, count, products_row);
  }
}

void run_grouped_backward(const char* op, const RecurrenceBackward& args, const GroupedSteps& steps,
                          const at::Tensor& weight, std::optional<bool> tf32, cudaStream_t stream) {
  const CellInfo& cell = cell_info(args.cell);
  const int64_t width = cell.gates * args.hidden;
  const at::Tensor gates = at::empty({args.batch, width}, weight.options());
  const Matrix of_state =
      matrix_of(gates).columns_from(cell.state_first * args.hidden, weight.size(0));
  const auto step = [&](const Gemm& gemm, int64_t first_row, const int64_t* base,
                        cudaStream_t stream) {
    const RecurrenceStep one{first_row, args.batch};
    RecurrenceBackward own = args;
    own.steps = &one;
    own.step_count = 1;
    check_launch(op, launch_grouped_backward(own, {base, gates.mutable_data_ptr()}, stream));
    gemm.multiply(matrix_of(args.grad_h, args.batch, args.hidden, acc_bytes(args.dtype)), of_state,
                  matrix_of(weight), /*add=*/false, /*wide=*/true);
  };
  StepGroups groups(op, args.dtype, tf32, steps, weight.device(), stream, step);
  groups.run(args.steps, args.step_count, /*products_row=*/0);
}

}  // namespace treadle
