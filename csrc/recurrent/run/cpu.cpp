// recurrent_layer on the CPU: ATen computes products over all steps, and kernels/recurrent/cpu runs
// the steps. Twin: cuda/layer.cpp.
#include "recurrent/formula/cpu.h"

#include <ATen/Functions.h>
#include <ATen/OpMathType.h>

#include <vector>

#include "common/gemm.h"
#include "kernels/recurrent/formula/cells.h"
#include "recurrent/run/cpu_parts.h"
#include "recurrent/run/run.h"

namespace treadle {
namespace {

RecurrencePlan plan_cpu(const RecurrenceSizes& sizes, at::Device, std::string_view algorithm,
                        bool backward, std::optional<bool>*) {
  RecurrenceDevice device;
  // Limits the size of an input product's chunks; larger chunks are not faster.
  device.l2_bytes = 32 << 20;
  return make_plan(layer_op_name(), sizes, device, planned(algorithm), backward);
}

Tensor product_cpu(const LayerRun& run, const Tensor& a, const Tensor& b) {
  return a.to(run.acc).mm(b.to(run.acc));
}

int64_t acc_bytes(const Tensor& t) {
  return static_cast<int64_t>(c10::elementSize(at::toOpMathType(t.scalar_type())));
}

Tensor packed(const CpuParts& parts, cpu::RowsFunctions::Pack pack, CellKind cell, Dtype dtype,
              const Tensor& weight_hh) {
  const int64_t hidden = weight_hh.size(1);
  const Tensor panels = at::empty(
      {cpu::recurrent_panel_bytes(weight_hh.size(0), hidden, acc_bytes(weight_hh))}, at::kByte);
  parts.over_units(weight_hh.numel(), [&](int64_t first, int64_t last) {
    pack(cell, dtype, matrix_view(weight_hh), hidden, first, last, panels.data_ptr());
  });
  return panels;
}

// Whether a call has a single step, which multiplies by W_hh only once. A reset would have to
// replace h before the product, or cut the gradient after it.
template <class Args>
bool single_step(const Args& args) {
  return args.step_count == 1 && args.resets.marks == nullptr;
}

// Steps without a product of h. The activations of a unit take as long as 64 multiplications.
template <class Args>
CpuSteps pointwise_steps(const Args& args, const Tensor& weight_hh) {
  return cpu_steps(args, acc_bytes(weight_hh), 64 * args.hidden, /*reads_all_units=*/false);
}

Tensor matrix_at(void* data, int64_t rows, int64_t columns, const at::TensorOptions& options) {
  return at::from_blob(data, {rows, columns}, options);
}

// The compiled functions of a cell; null for a formula if there is no compiler.
const cpu::RowsFunctions* rows_of(CellKind cell, Dtype dtype) {
  static constexpr cpu::RowsFunctions kCompiled{
      cpu::recurrent_pack_forward,  cpu::recurrent_pack_backward,  cpu::recurrent_pack_input,
      cpu::recurrent_layer_forward, cpu::recurrent_layer_backward, cpu::recurrent_layer_c_states,
      cpu::recurrent_products};
  return is_formula(cell) ? formula_rows(cell, dtype) : &kCompiled;
}

// `work`: the multiplications for a step of a row.
template <class Args>
CpuParts parts_of(const Args& args, const Tensor& weight_hh, int64_t work) {
  return CpuParts(cpu_steps(args, acc_bytes(weight_hh), work, /*reads_all_units=*/true));
}

void packed_steps(const cpu::RowsFunctions& rows, const CpuParts& parts,
                  const RecurrenceForward& args, const Tensor& weight_hh) {
  const Tensor panels = packed(parts, rows.pack_forward, args.cell, args.dtype, weight_hh);
  parts.run([&](const cpu::RowsPart& part) { rows.forward(args, panels.data_ptr(), part); });
}

// x [R, K] in the dtype of sums, with the elements of a row next to each other.
Tensor readable_rows(const LayerRun& run, const Tensor& x) {
  const Tensor found = x.to(run.acc);
  return found.stride(1) == 1 ? found : found.contiguous();
}

// Steps that also compute their products with the input, which then need no memory. This pays off
// if a thread has enough rows for the time of reading W_ih in every step, and enough rows of all
// steps for the time of packing W_ih. Returns whether it ran.
bool steps_with_input(const cpu::RowsFunctions& rows, const LayerRun& run,
                      const ForwardDirection& direction) {
  constexpr int64_t kRows = 12, kRowsOfAllSteps = 128;
  RecurrenceForward args = direction.all;
  const Tensor &weight_ih = direction.weight_ih, &weight_hh = direction.weight_hh;
  const int64_t inputs = weight_ih.size(1), bytes = acc_bytes(weight_hh);
  if (inputs == 0 || run.sequence.rows < kRowsOfAllSteps) return false;
  const CpuParts parts = parts_of(args, weight_hh, weight_hh.numel() + weight_ih.numel());
  if (parts.rows_of_a_step() < kRows) return false;
  const Tensor x = readable_rows(run, direction.input);
  const Tensor input_panels = at::empty(
      {cpu::recurrent_panel_bytes(run.cell.input_gates * inputs, args.hidden, bytes)}, at::kByte);
  parts.over_units(weight_ih.numel(), [&](int64_t first, int64_t last) {
    rows.pack_input(args.cell, args.dtype, matrix_view(weight_ih), inputs, args.hidden, first, last,
                    input_panels.data_ptr());
  });
  args.input = matrix_view(x);
  args.input_size = inputs;
  args.input_panels = input_panels.data_ptr();
  packed_steps(rows, parts, args, weight_hh);
  return true;
}

// A product with a weight that is not packed as a whole, written to `out`.
void multiply_rows(const cpu::RowsFunctions& rows, const LayerRun& run, cpu::ProductOf product,
                   const Tensor& weight, const Tensor& x, const Tensor& out) {
  constexpr int64_t kWork = int64_t{1} << 18;  // the least multiplications for a task
  const int64_t hidden = run.sizes.hidden, count = x.size(0), depth = x.size(1);
  const int64_t x_stride = x.stride(0), out_stride = out.stride(0);
  const int64_t bytes = acc_bytes(x), block = cpu::unit_block(bytes);
  // Packing a weight takes as long as multiplying 8 rows by it.
  const int64_t most = weight.numel() * (count + 8) / kWork;
  const int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  const int64_t parts = std::clamp<int64_t>(most, 1, threads);
  // Threads share the units. If there are too few, they share the rows, too.
  const int64_t unit_blocks = (hidden + block - 1) / block;
  const int64_t unit_parts = std::min(parts, unit_blocks);
  const int64_t row_parts = std::clamp<int64_t>(parts / unit_parts, 1, count);
  const MatrixView w = matrix_view(weight);
  const auto* const data = static_cast<const char*>(x.const_data_ptr());
  auto* const result = static_cast<char*>(out.mutable_data_ptr());
  at::parallel_for(0, unit_parts * row_parts, 1, [&](int64_t begin, int64_t end) {
    const cpu::FlushSubnormals flush;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row_part = task / unit_parts, unit_part = task % unit_parts;
      const int64_t row = count * row_part / row_parts, last = count * (row_part + 1) / row_parts;
      const auto unit = [&](int64_t part) {
        return std::min(unit_blocks * part / unit_parts * block, hidden);
      };
      const cpu::RowProducts args{w,
                                  hidden,
                                  depth,
                                  data + row * x_stride * bytes,
                                  x_stride,
                                  last - row,
                                  result + row * out_stride * bytes,
                                  out_stride};
      rows.products(run.sizes.cell, run.sizes.dtype, product, args, unit(unit_part),
                    unit(unit_part + 1));
    }
  });
}

// x W^T; `out` may be undefined.
Tensor products_of(const cpu::RowsFunctions& rows, const LayerRun& run, cpu::ProductOf product,
                   const Tensor& weight, const Tensor& x, const Tensor& out = {}) {
  const Tensor in = readable_rows(run, x);
  const Tensor found = out.defined() ? out : at::empty({in.size(0), weight.size(0)}, in.options());
  multiply_rows(rows, run, product, weight, in, found);
  return found;
}

void run_single_step(const cpu::RowsFunctions& rows, const LayerRun& run,
                     const RecurrenceForward& args, const Tensor& weight_hh) {
  const Tensor h = matrix_at(args.h, args.steps[0].rows, args.hidden, weight_hh.options());
  const Tensor products = products_of(rows, run, cpu::ProductOf::kState, weight_hh, h);
  RecurrenceForward step = args;
  step.state_products = matrix_view(products);
  CpuParts(pointwise_steps(step, weight_hh)).run([&](const cpu::RowsPart& part) {
    rows.forward(step, nullptr, part);
  });
}

void forward_direction(const LayerRun& run, const ForwardDirection& direction) {
  const RecurrenceForward& all = direction.all;
  const Tensor& weight_hh = direction.weight_hh;
  const cpu::RowsFunctions* const rows = rows_of(all.cell, all.dtype);
  if (rows != nullptr && steps_with_input(*rows, run, direction)) return;
  // BLAS multiplies by W_ih in the dtype of sums; it is cast once here instead of for every chunk.
  const Tensor weight_ih =
      rows == nullptr ? cast(direction.weight_ih, run.acc) : direction.weight_ih;
  // Gates that are saved in the dtype of products share their memory with the products: each
  // product is read before its gate is written.
  const auto products = [&](const Tensor& x, const Tensor& gates) {
    if (rows == nullptr) return product_cpu(run, x, weight_ih.t());
    const bool shared = gates.defined() && gates.scalar_type() == run.acc;
    return products_of(*rows, run, cpu::ProductOf::kInput, weight_ih, x,
                       shared ? run.input_window(gates) : Tensor());
  };
  in_chunks(run, direction, products, [&](const RecurrenceForward& args, bool) {
    if (rows == nullptr) return formula_forward_cpu(args, weight_hh);
    if (single_step(all)) return run_single_step(*rows, run, args, weight_hh);
    packed_steps(*rows, parts_of(args, weight_hh, weight_hh.numel()), args, weight_hh);
  });
}

LayerSaved forward_cpu(const LayerRun& run, bool save) {
  return forward_by_steps(
      run, save, /*reads_h0=*/false, /*reads_c0=*/false,
      [&](const ForwardDirection& direction) { forward_direction(run, direction); });
}

void single_step_backward(const cpu::RowsFunctions& rows, const LayerRun& run,
                          const BackwardDirection& direction) {
  RecurrenceBackward args = direction.all;
  args.c_states = direction.c_states.c;  // c before the only step is c0
  CpuParts(pointwise_steps(args, direction.weight_hh)).run([&](const cpu::RowsPart& part) {
    rows.backward(args, nullptr, part);
  });
  const int64_t count = args.steps[0].rows;
  const Tensor grad_h = direction.grad_h.narrow(0, 0, count);
  const Tensor gates = matrix_at(args.grad_gates, count, run.width(), grad_h.options());
  multiply_rows(rows, run, cpu::ProductOf::kGradient, direction.weight_hh, run.state_window(gates),
                grad_h);
}

void steps_backward_cpu(const LayerRun& run, const BackwardDirection& direction) {
  const RecurrenceBackward& args = direction.all;
  const cpu::RowsFunctions* const rows = rows_of(args.cell, args.dtype);
  if (rows == nullptr) {
    formula_c_states_cpu(direction.c_states);
    return formula_backward_cpu(args, direction.weight_hh);
  }
  if (single_step(args)) return single_step_backward(*rows, run, direction);
  CpuParts(pointwise_steps(direction.c_states, direction.weight_hh))
      .run([&](const cpu::RowsPart& part) { rows->c_states(direction.c_states, part); });
  const CpuParts parts = parts_of(args, direction.weight_hh, direction.weight_hh.numel());
  const Tensor panels =
      packed(parts, rows->pack_backward, args.cell, args.dtype, direction.weight_hh);
  parts.run([&](const cpu::RowsPart& part) { rows->backward(args, panels.data_ptr(), part); });
}

// BLAS adds the terms of a small result one after another, so rounding errors grow with the number
// of rows. So this adds up parts of the rows.
bool in_parts(const Tensor& a, const Tensor& b) {
  constexpr int64_t kSmall = 1 << 12, kRows = 512;
  return a.size(0) >= kRows && a.size(1) * b.size(1) <= kSmall;
}

Tensor sum_of_parts(const Tensor& a, const Tensor& b) {
  constexpr int64_t kRows = 128;
  const int64_t parts = a.size(0) / kRows, whole = parts * kRows, rest = a.size(0) - whole;
  const auto divided = [&](const Tensor& t) {
    return t.narrow(0, 0, whole).reshape({parts, kRows, t.size(1)});
  };
  const Tensor sum = at::bmm(divided(a).transpose(1, 2), divided(b)).sum(0);
  return rest == 0 ? sum : sum.addmm_(a.narrow(0, whole, rest).t(), b.narrow(0, whole, rest));
}

// a^T b, a sum over rows.
Tensor sum_over_rows(const Tensor& a, const Tensor& b) {
  return in_parts(a, b) ? sum_of_parts(a, b) : mm_few_columns(a.t(), b);
}

// The gradients of the input and, for each direction, of the parameters, in dtype `work`.
struct ParametersCpu {
  const BackwardPass& pass;
  Tensor input;
  std::vector<Tensor> weight_ih, weight_hh, bias_ih, bias_hh;

  void add(int64_t d, const Tensor& grad_gates, const Tensor& known_h) {
    const LayerRun& run = pass.run;
    const LayerArguments& a = run.arguments;
    const LayerMask& mask = pass.mask;
    const Tensor of_input = run.input_window(grad_gates), of_state = run.state_window(grad_gates);
    if (mask[0]) {
      const Tensor w = cast(parameter_of(a, a.weight_ih, d), run.work);
      const Tensor own = mm_few_columns(of_input, w);
      input = input.defined() ? input.add_(own) : own;
    }
    if (mask[3]) {
      weight_ih.push_back(sum_over_rows(of_input, cast(run.rows(a.input), run.work)));
    }
    if (mask[4]) {
      const Tensor previous = known_h.defined() ? known_h : pass.previous_h(d);
      const Tensor h = cast(previous, run.work);
      weight_hh.push_back(of_weight_hh(of_state, h));
    }
    if (!mask[5] && !mask[6]) return;
    const Tensor total = grad_gates.sum(0);
    // Each gradient must have memory of its own.
    const bool whole = run.cell.same_gates();
    const Tensor of_bias = run.input_window(total);
    if (mask[5]) bias_ih.push_back(whole ? of_bias : of_bias.clone());
    if (mask[6]) bias_hh.push_back(run.state_window(mask[5] && whole ? total.clone() : total));
  }

  // The gradient of W_hh, whose blocks are rotated relative to those of `of_state`. Two products
  // write the blocks directly in W_hh's order. Rotating them afterwards would write them twice,
  // which takes longer than a product of few rows.
  Tensor of_weight_hh(const Tensor& of_state, const Tensor& h) const {
    const LayerRun& run = pass.run;
    const int64_t rows = of_state.size(1), moved = run.cell.torch_shift * run.sizes.hidden;
    if (moved == 0) return sum_over_rows(of_state, h);
    if (in_parts(of_state, h)) return sum_of_parts(of_state.roll(-moved, 1), h);
    const Tensor found = at::empty({rows, h.size(1)}, h.options());
    Tensor first = found.narrow(0, 0, rows - moved), last = found.narrow(0, rows - moved, moved);
    at::mm_out(first, of_state.narrow(1, moved, rows - moved).t(), h);
    at::mm_out(last, of_state.narrow(1, 0, moved).t(), h);
    return found;
  }

  // Joins the gradients of a parameter's directions to the parameter's shape.
  Tensor stacked(const std::vector<Tensor>& t) const {
    if (t.empty()) return Tensor();
    const LayerArguments& a = pass.run.arguments;
    const auto dtype = a.input.scalar_type();
    if (a.one_direction()) return cast(t[0], dtype);
    return cast(t.size() == 1 ? t[0].unsqueeze(0) : at::stack(t), dtype);
  }

  LayerGradients whole() const {
    const LayerArguments& a = pass.run.arguments;
    Tensor of_input;
    if (pass.mask[0]) of_input = cast(input, a.input.scalar_type()).view(a.input.sizes());
    return {of_input, stacked(weight_ih), stacked(weight_hh), stacked(bias_ih),
            from_gate_order(stacked(bias_hh), a)};
  }
};

LayerGradients backward_cpu(const BackwardPass& pass, const StateGradients& states) {
  ParametersCpu parameters{pass, {}, {}, {}, {}, {}};
  backward_by_steps(
      pass, states, [&](const BackwardDirection& each) { steps_backward_cpu(pass.run, each); },
      [&](int64_t d, const Tensor& grad_gates, const Tensor& previous) {
        parameters.add(d, grad_gates, previous);
      });
  return parameters.whole();
}

constexpr RecurrenceBackend kCpuBackend{/*widens_half=*/true, plan_cpu, product_cpu, forward_cpu,
                                        backward_cpu};

}  // namespace

TORCH_LIBRARY_IMPL(treadle, CPU, m) { register_recurrent_layer<kCpuBackend>(m, at::kCPU); }

}  // namespace treadle
