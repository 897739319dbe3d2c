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
  // Limits the chunks of the input product, because larger ones are not faster.
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
  // before[b]: the number of steps of blocks 0 .. b - 1.
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

void forward_cpu(const RecurrenceForward& args, const Tensor& weight_hh, const void*) {
  const Tensor panels = empty_panels(weight_hh);
  cpu::recurrent_pack_forward(args.cell, args.dtype, matrix_view(weight_hh), args.hidden,
                              panels.data_ptr());
  over_rows(args, weight_hh.numel(), [&](int64_t begin, int64_t end) {
    cpu::recurrent_layer_forward(args, panels.data_ptr(), begin, end);
  });
}

void backward_cpu(const RecurrenceBackward& args, const Tensor& weight_hh) {
  const Tensor panels = empty_panels(weight_hh);
  cpu::recurrent_pack_backward(args.cell, args.dtype, matrix_view(weight_hh), args.hidden,
                               panels.data_ptr());
  over_rows(args, weight_hh.numel(), [&](int64_t begin, int64_t end) {
    cpu::recurrent_layer_backward(args, panels.data_ptr(), begin, end);
  });
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

TORCH_LIBRARY_IMPL(treadle, CPU, m) { register_recurrent_layer<kCpuBackend>(m, at::kCPU); }

}  // namespace treadle
