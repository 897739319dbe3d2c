// recurrent_layer on CUDA: algorithm "step" launches a matrix product and a kernel per step,
// "tiles" and "warp" one kernel per step, the others one launch. Kernels:
// kernels/recurrent/launchers.h. Twin: cpu.cpp.
#include "recurrent/cuda/layer.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <vector>

#include "common/cuda/gemm.h"
#include "common/cuda/launch.h"
#include "common/tf32.h"
#include "kernels/common/launches.h"
#include "kernels/recurrent/launchers.h"
#include "recurrent/cuda/parameters.h"
#include "recurrent/cuda/step_groups.h"
#include "recurrent/run/run.h"

namespace treadle {
namespace {

// Whether the device, or the part of it that this process may use, has room for the launch.
bool fits(const RecurrenceSizes& sizes, const RecurrencePlan& plan, bool backward) {
  const char* const op = layer_op_name();
  if (plan.is("tiles")) return tiles_supported();
  if (plan.is("cluster")) {
    int clusters = 0;
    check_launch(op, clusters_at_once(sizes.cell, sizes.dtype, backward, plan.clusters, &clusters));
    return clusters > 0;
  }
  PersistentSizes own = persistent_sizes(sizes, /*half_c=*/false);
  own.row_count = std::min<int64_t>(sizes.batch, plan.grid_groups * plan.grid_rows);
  set_grid(own, plan);
  bool found = false;
  check_launch(op, grid_fits(backward, own, plan.grid_rows, &found));
  return found;
}

// LSTM and GRU follow the switch that torch's layers follow, LLTM that of matrix products.
std::optional<bool> tf32_cuda(CellKind cell, Dtype dtype) {
  if (cell == CellKind::kLltm || dtype != Dtype::kFloat) return {};
  const bool wanted = tf32_allowed_in_rnn();
  return wanted == tf32_allowed() ? std::optional<bool>() : wanted;
}

RecurrencePlan plan_cuda(const RecurrenceSizes& sizes, at::Device device,
                         std::string_view algorithm, bool backward) {
  const char* const op = layer_op_name();
  const c10::cuda::CUDAGuard guard(device);
  RecurrenceDevice found;
  check_launch(op, describe_device(device.index(), &found));
  found.tf32 = tf32_cuda(sizes.cell, sizes.dtype).value_or(tf32_allowed());
  const RecurrencePlan plan = make_plan(op, sizes, found, algorithm, backward);
  if (plan.is("step") || plan.is("warp") || fits(sizes, plan, backward)) return plan;
  TORCH_CHECK(algorithm == "auto", op, ": algorithm '", algorithm, "' does not fit on ",
              at::cuda::getDeviceProperties(device.index())->name, " for these sizes");
  RecurrencePlan other = make_plan(op, sizes, found, "step", backward);
  other.reason = plan.is("tiles")     ? "the library has no tiles for this device"
                 : plan.is("cluster") ? "the clusters do not fit on this device"
                                      : "the grid does not fit on this device";
  return other;
}

// Products of half types are floats, so that the sum with h W_hh^T is rounded once.
Tensor product_in_acc_cuda(const Tensor& a, const Tensor& b) {
  const auto acc = at::toOpMathType(a.scalar_type());
  return acc == a.scalar_type() ? at::mm(a, b) : at::mm(a, b, acc);
}

// f(args of one step, its first row, its number of rows), for each step that has rows.
template <class Args, class F>
void each_step(const Args& args, const F& f) {
  Args one = args;
  one.step_count = 1;
  for (int64_t s = 0; s < args.step_count; ++s) {
    one.steps = args.steps + s;
    if constexpr (std::is_same_v<Args, RecurrenceBackward>) {
      if (s > 0) one.last = args.steps[s - 1];
    }
    if (one.steps->rows > 0) f(one, one.steps->start, one.steps->rows);
  }
}

void fused_forward_cuda(const FusedForward& args, at::Device device, const RecurrencePlan& plan) {
  const char* const op = layer_op_name();
  check_units(op, args.layer.batch, args.layer.hidden);
  with_stream(device, [&](cudaStream_t stream) {
    if (plan.is("warp")) return check_launch(op, launch_warp_forward(args, stream));
    const int processors = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
    check_launch(op, launch_tiles_forward(args, processors, stream));
  });
}

void forward_cuda(const RecurrenceForward& args, const Tensor& weight, const void* first_h) {
  const char* const op = layer_op_name();
  check_units(op, args.batch, args.hidden);
  with_stream(weight.device(), [&](cudaStream_t stream) {
    const Gemm gemm(args.dtype, tf32_cuda(args.cell, args.dtype));
    const bool add = cell_info(args.cell).same_gates();
    // For cells in which some gates lack a product: h W_hh^T, in the layout of the input's
    // products.
    const bool transposed = args.products.column_stride != 1;
    const auto options = weight.options().dtype(at::toOpMathType(weight.scalar_type()));
    const Tensor apart = add          ? Tensor()
                         : transposed ? at::empty({weight.size(0), args.batch}, options).t()
                                      : at::empty({args.batch, weight.size(0)}, options);
    const int64_t size = acc_bytes(args.dtype), columns = weight.size(0);
    each_step(args, [&](RecurrenceForward one, int64_t start, int64_t rows) {
      if (!add) one.state_products = matrix_view(apart);
      const Matrix to =
          add ? matrix_of(args.products, start + rows, columns, size).rows_from(start, rows)
              : matrix_of(one.state_products, rows, columns, size);
      const void* h = first_h != nullptr && one.steps == args.steps ? first_h : args.h;
      gemm.multiply(to, Matrix::of(h, rows, args.hidden, args.hidden, 1, size_of(args.dtype)),
                    matrix_of(weight).t(), add, /*wide=*/true);
      check_launch(op, launch_step_forward(one, stream));
    });
  });
}

bool grouped_forward_cuda(const RecurrenceForward& args, const Tensor& input,
                          const Tensor& weight_ih, const Tensor& weight_hh,
                          const RecurrencePlan& plan, const void* first_h) {
  const auto tf32 = tf32_cuda(args.cell, args.dtype);
  const GroupedSteps steps(args.cell, args.dtype, args.batch, args.hidden, args.steps,
                           args.step_count, args.resets, tf32);
  if (!steps.any) return false;
  const char* const op = layer_op_name();
  check_units(op, args.batch, args.hidden);
  with_stream(weight_hh.device(), [&](cudaStream_t stream) {
    run_grouped_forward(op, args, steps, input, weight_ih, weight_hh, plan, first_h, tf32, stream);
  });
  return true;
}

void backward_cuda(const RecurrenceBackward& args, const Tensor& weight_hh) {
  constexpr const char* op = "recurrent_layer_backward";
  check_units(op, args.batch, args.hidden);
  with_stream(weight_hh.device(), [&](cudaStream_t stream) {
    const Tensor weight = in_gate_order(weight_hh, args.cell, args.hidden, 0).contiguous();
    const auto tf32 = tf32_cuda(args.cell, args.dtype);
    const GroupedSteps steps(args.cell, args.dtype, args.batch, args.hidden, args.steps,
                             args.step_count, args.resets, tf32);
    if (steps.any) {
      return run_grouped_backward(op, args, steps, weight, tf32, stream);
    }
    const Gemm gemm(args.dtype, tf32);
    const MatrixView gates{args.grad_gates, cell_info(args.cell).gates * args.hidden, 1};
    each_step(args, [&](const RecurrenceBackward& one, int64_t start, int64_t rows) {
      check_launch(op, launch_step_backward(one, stream));
      gemm.multiply(matrix_of(args.grad_h, rows, args.hidden, acc_bytes(args.dtype)),
                    matrix_of(gates, start + rows, weight.size(0), size_of(args.dtype))
                        .rows_from(start, rows),
                    matrix_of(weight), /*add=*/false, /*wide=*/true);
    });
  });
}

constexpr RecurrenceBackend kCudaBackend{/*widens_half=*/false,
                                         plan_cuda,
                                         tf32_cuda,
                                         multiply_cuda,
                                         product_in_acc_cuda,
                                         forward_cuda,
                                         grouped_forward_cuda,
                                         backward_cuda,
                                         c_states_cuda,
                                         parameters_cuda,
                                         fused_forward_cuda,
                                         persistent_forward_cuda,
                                         pad_rows_cuda,
                                         persistent_backward_cuda};

}  // namespace

TORCH_LIBRARY_IMPL(treadle, CUDA, m) { register_recurrent_layer<kCudaBackend>(m); }

}  // namespace treadle
