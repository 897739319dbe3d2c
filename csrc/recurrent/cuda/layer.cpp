// recurrent_layer on CUDA: algorithm "step" launches a matrix product and a kernel per step,
// "tiles" and "warp" launch one kernel per step, and the others one kernel for all steps. Kernels:
// kernels/recurrent/launchers.h. Twin: run/cpu.cpp.
#include "recurrent/cuda/layer.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <vector>

#include "common/cuda/gemm.h"
#include "common/cuda/launch.h"
#include "common/tf32.h"
#include "kernels/common/driver.h"
#include "kernels/common/launches.h"
#include "kernels/recurrent/launchers.h"
#include "kernels/recurrent/run.h"
#include "recurrent/cuda/step_groups.h"
#include "recurrent/run/run.h"

namespace treadle {
namespace {

// The TF32 setting of a layer, if it differs from that of matrix products. LSTM, GRU and RNN use
// the setting of torch's layers. LLTM and formulas, for which torch has no layers, use that of
// matrix products.
std::optional<bool> tf32_cuda(CellKind cell, Dtype dtype) {
  if (cell == CellKind::kLltm || is_formula(cell) || dtype != Dtype::kFloat) return {};
  const bool wanted = tf32_allowed_in_rnn();
  return wanted == tf32_allowed() ? std::optional<bool>() : wanted;
}

// A cache of the plans of a thread's last layers. Only the driver knows whether a plan fits in the
// current context, and asking it takes as much host time as a launch.
class KnownPlans {
 public:
  struct Key {
    const void* context;
    RecurrenceSizes sizes;
    bool tf32, backward;

    bool operator==(const Key& other) const {
      return context == other.context && sizes == other.sizes && tf32 == other.tf32 &&
             backward == other.backward;
    }
  };

  const RecurrencePlan* find(const Key& key) const {
    for (const auto& [known, plan] : all_) {
      if (known == key) return &plan;
    }
    return nullptr;
  }
  void add(const Key& key, const RecurrencePlan& plan) {
    if (all_.size() < kMost) {
      all_.emplace_back(key, plan);
    } else {
      all_[oldest_++ % kMost] = {key, plan};
    }
  }

 private:
  static constexpr size_t kMost = 32;
  std::vector<std::pair<Key, RecurrencePlan>> all_;
  size_t oldest_ = 0;
};

RecurrencePlan new_plan(const RecurrenceSizes& sizes, const RecurrenceDevice& found,
                        at::Device device, std::string_view algorithm, bool backward) {
  const char* const op = layer_op_name();
  const RecurrencePlan plan = make_plan(op, sizes, found, algorithm, backward);
  bool fits = false;
  check_launch(op, plan_fits(sizes, plan, backward, &fits));
  if (fits) return plan;
  TORCH_CHECK(algorithm == "auto", op, ": algorithm '", algorithm, "' does not fit on ",
              at::cuda::getDeviceProperties(device.index())->name, " for these sizes");
  RecurrencePlan other = make_plan(op, sizes, found, "step", backward);
  other.reason = plan.fused()  ? "the library has no tiles for this device"
                 : plan.grid() ? "the grid does not fit on this device"
                               : "the clusters do not fit on this device";
  return other;
}

RecurrencePlan plan_cuda(const RecurrenceSizes& sizes, at::Device device,
                         std::string_view algorithm, bool backward, std::optional<bool>* tf32) {
  const c10::cuda::CUDAGuard guard(device);
  RecurrenceDevice found;
  check_launch(layer_op_name(), describe_device(device.index(), &found));
  *tf32 = algorithm == kCellAlgorithm ? std::nullopt : tf32_cuda(sizes.cell, sizes.dtype);
  algorithm = planned(algorithm);
  found.tf32 = tf32->value_or(tf32_allowed());
  static thread_local KnownPlans plans;
  const KnownPlans::Key key{current_context(), sizes, found.tf32, backward};
  if (key.context == nullptr || algorithm != "auto") {
    return new_plan(sizes, found, device, algorithm, backward);
  }
  if (const RecurrencePlan* const known = plans.find(key)) return *known;
  const RecurrencePlan plan = new_plan(sizes, found, device, algorithm, backward);
  plans.add(key, plan);
  return plan;
}

// Products of half types are returned in float32, so that their sum with h W_hh^T is rounded only
// once.
Tensor product_cuda(const LayerRun& run, const Tensor& a, const Tensor& b) {
  if (run.tf32) {
    const Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
    const Tensor of_a = with_matrix(a), of_b = with_matrix(b);
    Gemm(run.sizes.dtype, run.tf32)
        .multiply(matrix_of(out), matrix_of(of_a), matrix_of(of_b), /*add=*/false);
    return out;
  }
  return run.acc == a.scalar_type() ? at::mm(a, b) : at::mm(a, b, run.acc);
}

// Calls f(args of one step, its first row, its number of rows) for each step that has rows.
template <class Args, class F>
void each_step(const Args& args, const F& f) {
  Args one = args;
  one.step_count = 1;
  for (int64_t s = 0; s < args.step_count; ++s) {
    one.steps = args.steps + s;
    if (s > 0) {
      if constexpr (std::is_same_v<Args, RecurrenceBackward>) {
        one.last = args.steps[s - 1];
      } else {
        one.first_c = nullptr;
      }
    }
    if (one.steps->rows > 0) f(one, one.steps->start, one.steps->rows);
  }
}

// Replaces the states before a direction's first step in the rows that reset there.
void replace_first(const LayerRun& run, const ForwardDirection& direction) {
  const LayerResets& resets = run.resets;
  const RecurrenceStep& step = direction.steps[0];
  const int64_t d = direction.d;
  if (!resets.marks.defined() || step.marked_rows == 0) return;
  const Tensor mark = run.rows(resets.marks).narrow(0, step.marks, step.marked_rows);
  const auto replace = [&](const Tensor& state, const Tensor& by) {
    Tensor rows = state[d].narrow(0, 0, step.marked_rows);
    if (!by.defined()) {
      rows.masked_fill_(mark, 0);
    } else {
      const Tensor own = run.rows_or_batch(by[d]);
      rows.copy_(
          at::where(mark, own.narrow(0, resets.per_step ? step.start : 0, step.marked_rows), rows));
    }
  };
  replace(direction.h, resets.h);
  replace(direction.c, resets.c);
}

// In rows where a reset replaced the state before the first step, moves the gradient of this state
// to the replacement.
void cut_first(const LayerRun& run, const RecurrenceStep& step, const Tensor& grad,
               Tensor of_reset) {
  if (!run.resets.marks.defined() || step.marked_rows == 0) return;
  const Tensor mark = run.rows(run.resets.marks).narrow(0, step.marks, step.marked_rows);
  Tensor rows = grad.narrow(0, 0, step.marked_rows);
  if (of_reset.defined()) {
    of_reset = of_reset.narrow(0, step.start, step.marked_rows);
    of_reset.copy_(at::where(mark, rows, of_reset));
  }
  rows.masked_fill_(mark, 0);
}

// W_hh for the products of all steps, stored by columns if the plan says so, otherwise by rows.
Tensor as_multiplied(const LayerRun& run, const Tensor& w_hh) {
  if (run.plan.weight_by_columns) return w_hh.t().contiguous().t();
  return w_hh.contiguous();
}

// Runs the steps of a chunk one by one. The first step reads first_h instead of args.h, unless
// first_h is null.
void steps_forward(const LayerRun& run, const RecurrenceForward& args, const Tensor& weight,
                   const void* first_h, cudaStream_t stream) {
  const char* const op = layer_op_name();
  const Gemm gemm(args.dtype, run.tf32);
  const bool add = run.cell.same_gates();
  // In some cells, a gate has only one of the two products. The products h W_hh^T then have memory
  // of their own, in the layout of the input's products.
  const bool transposed = args.products.column_stride != 1;
  const auto options = weight.options().dtype(run.acc);
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
}

void direction_forward(const LayerRun& run, const ForwardDirection& direction,
                       cudaStream_t stream) {
  const RecurrenceForward& all = direction.all;
  replace_first(run, direction);
  if (run.plan.fused()) return fused_forward_cuda(run, direction, stream);
  const void* const first_h = direction.first_h_data(run);
  const GroupedSteps grouped(all.cell, all.dtype, all.batch, all.hidden, all.steps, all.step_count,
                             all.resets, run.tf32);
  if (grouped.any) {
    return run_grouped_forward(layer_op_name(), all, grouped, run.arguments.input,
                               direction.weight_ih, direction.weight_hh, run.plan, first_h,
                               run.tf32, stream);
  }
  const Tensor weight = as_multiplied(run, direction.weight_hh);
  const auto products = [&](const Tensor& x, const Tensor&) {
    const Tensor& w = direction.weight_ih;
    if (!run.plan.transposed) return run.backend.product(run, x, w.t());
    return run.backend.product(run, w, x.t()).t();
  };
  in_chunks(run, direction, products, [&](const RecurrenceForward& chunk, bool first) {
    steps_forward(run, chunk, weight, first ? first_h : nullptr, stream);
  });
}

LayerSaved forward_cuda(const LayerRun& run, bool save) {
  const c10::cuda::CUDAGuard guard(run.arguments.input.device());
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream().stream();
  if (!run.idle()) check_units(layer_op_name(), run.sizes.batch, run.sizes.hidden);
  if (run.persistent()) return persistent_forward_cuda(run, save, stream);
  // The kernels write h, and only the products read it. So if all rows take the first step without
  // a reset, its product can read h0 without a copy.
  const bool reads_h0 =
      !run.idle() && !run.arguments.batch_sizes.defined() && !run.resets.marks.defined();
  const bool reads_c0 =
      reads_h0 && run.arguments.c0.scalar_type() == run.acc && run.plan.kernel != KernelId::kTiles;
  return forward_by_steps(run, save, reads_h0, reads_c0, [&](const ForwardDirection& direction) {
    direction_forward(run, direction, stream);
  });
}

void direction_backward(const LayerRun& run, const BackwardDirection& direction,
                        const StateGradients& states, cudaStream_t stream) {
  constexpr const char* op = "recurrent_layer_backward";
  const RecurrenceBackward& args = direction.all;
  c_states_cuda(run, direction, stream);
  const Tensor weight = in_gate_order(direction.weight_hh, args.cell, args.hidden, 0).contiguous();
  const GroupedSteps grouped(args.cell, args.dtype, args.batch, args.hidden, args.steps,
                             args.step_count, args.resets, run.tf32);
  if (grouped.any) {
    run_grouped_backward(op, args, grouped, weight, run.tf32, stream);
  } else {
    const Gemm gemm(args.dtype, run.tf32);
    const MatrixView gates{args.grad_gates, run.width(), 1};
    each_step(args, [&](const RecurrenceBackward& one, int64_t start, int64_t rows) {
      check_launch(op, launch_step_backward(one, stream));
      gemm.multiply(matrix_of(args.grad_h, rows, args.hidden, acc_bytes(args.dtype)),
                    matrix_of(gates, start + rows, weight.size(0), size_of(args.dtype))
                        .rows_from(start, rows),
                    matrix_of(weight), /*add=*/false, /*wide=*/true);
    });
  }
  const RecurrenceStep& first = direction.steps[run.sizes.steps - 1];
  cut_first(run, first, direction.grad_h, of_direction(states.reset_h, direction.d));
  cut_first(run, first, direction.grad_c, of_direction(states.reset_c, direction.d));
}

LayerGradients backward_cuda(const BackwardPass& pass, const StateGradients& states) {
  const LayerRun& run = pass.run;
  const c10::cuda::CUDAGuard guard(run.arguments.input.device());
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream().stream();
  if (!run.idle()) {
    check_units("recurrent_layer_backward", run.sizes.batch, run.sizes.hidden);
  }
  if (run.persistent()) return persistent_backward_cuda(pass, states, stream);
  LayerGradients found;
  backward_by_steps(
      pass, states,
      [&](const BackwardDirection& direction) {
        direction_backward(run, direction, states, stream);
      },
      [&](int64_t d, const Tensor& grad_gates, const Tensor& previous) {
        add_parameters_cuda(pass, d, /*count=*/1, grad_gates, previous, Tensor(), found, stream);
      });
  return found;
}

constexpr RecurrenceBackend kCudaBackend{/*widens_half=*/false, plan_cuda, product_cuda,
                                         forward_cuda, backward_cuda};

}  // namespace

TORCH_LIBRARY_IMPL(treadle, CUDA, m) { register_recurrent_layer<kCudaBackend>(m, at::kCUDA); }

}  // namespace treadle
