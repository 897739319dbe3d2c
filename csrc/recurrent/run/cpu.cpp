// recurrent_layer on the CPU: ATen computes products over all steps, cpu/rows.cpp runs the steps.
// Twin: cuda/layer.cpp.
#include <ATen/Functions.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "kernels/common/cpu/subnormals.h"
#include "kernels/recurrent/cpu/rows.h"
#include "recurrent/run/run.h"

namespace treadle {
namespace {

RecurrencePlan plan_cpu(const RecurrenceSizes& sizes, at::Device, std::string_view algorithm,
                        bool backward) {
  RecurrenceDevice device;
  // Limits the chunks of the input product: larger ones are not faster.
  device.l2_bytes = 32 << 20;
  return make_plan(layer_op_name(), sizes, device, algorithm, backward);
}

std::optional<bool> tf32_cpu(CellKind, Dtype) { return {}; }

Tensor product_in_acc_cpu(const Tensor& a, const Tensor& b) {
  const auto acc = at::toOpMathType(a.scalar_type());
  return a.to(acc).mm(b.to(acc));
}

Tensor empty_panels(const Tensor& weight_hh) {
  const auto acc = at::toOpMathType(weight_hh.scalar_type());
  const auto bytes =
      cpu::recurrent_panel_bytes(weight_hh.size(0), weight_hh.size(1), c10::elementSize(acc));
  return at::empty({bytes}, weight_hh.options().dtype(at::kByte));
}

// f(begin, end) over the rows of the batch, in whole blocks. If there is work for several threads,
// each takes about the same number of steps: rows of a packed batch have different numbers of
// steps.
template <class Args, class F>
void over_rows(const Args& args, int64_t step_work, const F& f) {
  // The minimum work of a thread: about 50 us of multiplications.
  constexpr int64_t kWork = int64_t{1} << 21, kRows = cpu::kRowBlock;
  const int64_t blocks = (args.batch + kRows - 1) / kRows;
  // before[b]: the steps that blocks 0 .. b - 1 take.
  std::vector<int64_t> before(blocks + 1);
  for (int64_t s = 0; s < args.step_count; ++s) ++before[(args.steps[s].rows + kRows - 1) / kRows];
  for (int64_t b = blocks - 1; b > 0; --b) before[b] += before[b + 1];
  before[0] = 0;
  for (int64_t b = 1; b <= blocks; ++b) before[b] += before[b - 1];
  const int64_t total = before[blocks];
  const int64_t most = std::min<int64_t>(blocks, total * step_work * kRows / kWork);
  const int64_t threads = std::clamp<int64_t>(most, 1, at::get_num_threads());
  const auto first_block = [&](int64_t thread) {
    const double share = static_cast<double>(total) * thread / threads;
    const auto above = std::lower_bound(before.begin(), before.end(), share);
    const bool below = above != before.begin() && share - *(above - 1) < *above - share;
    return (above - before.begin()) - (below ? 1 : 0);
  };
  at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    const int64_t row = begin == 0 ? 0 : first_block(begin) * kRows;
    const int64_t last = end == threads ? args.batch : first_block(end) * kRows;
    const cpu::FlushSubnormals flush;
    if (row < last) f(row, std::min(last, args.batch));
  });
}

// Whether to pack W_hh for the kernels' products. A single step of few rows takes BLAS's, which
// reads W_hh once, in less time than packing does.
template <class Args>
bool packs(const Args& args) {
  // More rows make up for packing; of fewer units, a call of BLAS takes longer.
  constexpr int64_t kRows = 32, kHidden = 32;
  return args.step_count > 1 || args.steps[0].rows >= kRows || args.hidden < kHidden ||
         args.resets.marks != nullptr;
}

// [rows, H] of the state that `data` points to.
Tensor state_rows(void* data, int64_t rows, int64_t hidden, const at::TensorOptions& options) {
  return at::from_blob(data, {rows, hidden}, options);
}

void forward_packed(const RecurrenceForward& args, const Tensor& weight_hh) {
  const Tensor panels = empty_panels(weight_hh);
  cpu::recurrent_pack_forward(args.cell, args.dtype, matrix_view(weight_hh), args.hidden,
                              panels.data_ptr());
  over_rows(args, weight_hh.numel(), [&](int64_t begin, int64_t end) {
    cpu::recurrent_layer_forward(args, panels.data_ptr(), begin, end);
  });
}

void forward_cpu(const RecurrenceForward& args, const Tensor& weight_hh, const void*) {
  if (packs(args)) return forward_packed(args, weight_hh);
  const Tensor h = state_rows(args.h, args.steps[0].rows, args.hidden, weight_hh.options());
  const Tensor products = product_in_acc_cpu(h, weight_hh.t());
  RecurrenceForward step = args;
  step.state_products = matrix_view(products);
  over_rows(step, 64 * args.hidden, [&](int64_t begin, int64_t end) {
    cpu::recurrent_layer_forward(step, nullptr, begin, end);
  });
}

void backward_packed(const RecurrenceBackward& args, const Tensor& weight_hh) {
  const Tensor panels = empty_panels(weight_hh);
  cpu::recurrent_pack_backward(args.cell, args.dtype, matrix_view(weight_hh), args.hidden,
                               panels.data_ptr());
  over_rows(args, weight_hh.numel(), [&](int64_t begin, int64_t end) {
    cpu::recurrent_layer_backward(args, panels.data_ptr(), begin, end);
  });
}

void backward_cpu(const RecurrenceBackward& args, const Tensor& weight_hh) {
  if (packs(args)) return backward_packed(args, weight_hh);
  over_rows(args, 64 * args.hidden, [&](int64_t begin, int64_t end) {
    cpu::recurrent_layer_backward(args, nullptr, begin, end);
  });
  const CellInfo& cell = cell_info(args.cell);
  const int64_t rows = args.steps[0].rows, hidden = args.hidden;
  const auto acc = at::toOpMathType(weight_hh.scalar_type());
  const auto options = weight_hh.options().dtype(acc);
  const Tensor weight = weight_hh.to(acc);
  Tensor grad_h = state_rows(const_cast<void*>(args.grad_h.data), rows, hidden, options);
  const Tensor gates = state_rows(args.grad_gates, rows, cell.gates * hidden, options)
                           .narrow(1, cell.state_first * hidden, cell.state_gates * hidden);
  // The gates are W_hh's blocks of rows, rolled.
  const int64_t moved = cell.torch_shift * hidden, rest = cell.state_gates * hidden - moved;
  at::mm_out(grad_h, gates.narrow(1, moved, rest), weight.narrow(0, 0, rest));
  if (moved > 0) grad_h.addmm_(gates.narrow(1, 0, moved), weight.narrow(0, rest, moved));
}

void c_states_cpu(const RecurrenceCStates& args, int64_t, const Sequence&, at::Device) {
  over_rows(args, 64 * args.hidden,
            [&](int64_t begin, int64_t end) { cpu::recurrent_layer_c_states(args, begin, end); });
}

constexpr RecurrenceBackend kCpuBackend{
    /*widens_half=*/true,        plan_cpu,           tf32_cpu,
    /*multiply=*/nullptr,        product_in_acc_cpu, forward_cpu,
    /*grouped_forward=*/nullptr, backward_cpu,       c_states_cpu};

}  // namespace

TORCH_LIBRARY_IMPL(treadle, CPU, m) { register_recurrent_layer<kCpuBackend>(m); }

}  // namespace treadle
