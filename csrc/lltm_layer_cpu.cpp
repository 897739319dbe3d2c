// lltm_layer on the CPU: its products over all steps by ATen, its steps by cpu/lltm_layer.cpp.
#include <ATen/Functions.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>

#include "cpu/lltm_layer.h"
#include "lltm_layer_run.h"

namespace treadle {
namespace {

RecurrenceDevice device_cpu(at::Device) {
  RecurrenceDevice device;
  // Of the input product's chunks: more than this is not worth a call less.
  device.l2_bytes = 32 << 20;
  return device;
}

// Half types are widened once, not at every step.
ScalarType work_dtype_cpu(ScalarType dtype) { return at::toOpMathType(dtype); }

Tensor input_product_cpu(const Tensor& x, const Tensor& weight_ih, bool) {
  const auto acc = work_dtype_cpu(x.scalar_type());
  return x.to(acc).mm(weight_ih.to(acc).t());
}

Tensor empty_panels(const Tensor& weight_hh) {
  const auto acc = work_dtype_cpu(weight_hh.scalar_type());
  const auto bytes = cpu::lltm_panel_bytes(weight_hh.size(1), c10::elementSize(acc));
  return at::empty({bytes}, weight_hh.options().dtype(at::kByte));
}

// f(begin, end) over the rows of the batch. Threads share them if there is work for several.
template <class F>
void over_rows(int64_t batch, int64_t steps, int64_t hidden, const F& f) {
  // About 50 us of multiplications.
  constexpr int64_t kWork = int64_t{1} << 21;
  const int64_t blocks = (batch + cpu::kRowBlock - 1) / cpu::kRowBlock;
  const int64_t of_block = std::max<int64_t>(cpu::kRowBlock * steps * 3 * hidden * hidden, 1);
  at::parallel_for(0, blocks, std::max<int64_t>(1, kWork / of_block),
                   [&](int64_t begin, int64_t end) {
                     f(begin * cpu::kRowBlock, std::min(end * cpu::kRowBlock, batch));
                   });
}

void forward_cpu(const RecurrenceForward& args, const Tensor& weight_hh, const RecurrencePlan&) {
  const Tensor panels = empty_panels(weight_hh);
  cpu::lltm_pack_forward(args.dtype, matrix_view(weight_hh), args.hidden, panels.data_ptr());
  over_rows(args.batch, args.step_count, args.hidden, [&](int64_t begin, int64_t end) {
    cpu::lltm_layer_forward(args, panels.data_ptr(), begin, end);
  });
}

void backward_cpu(const RecurrenceBackward& args, const Tensor& weight_hh, const RecurrencePlan&) {
  const Tensor panels = empty_panels(weight_hh);
  cpu::lltm_pack_backward(args.dtype, matrix_view(weight_hh), args.hidden, panels.data_ptr());
  over_rows(args.batch, args.step_count, args.hidden, [&](int64_t begin, int64_t end) {
    cpu::lltm_layer_backward(args, panels.data_ptr(), begin, end);
  });
}

void cells_cpu(const RecurrenceCells& args, at::Device, const RecurrencePlan&) {
  over_rows(args.batch, args.step_count, 16,
            [&](int64_t begin, int64_t end) { cpu::lltm_layer_cells(args, begin, end); });
}

constexpr RecurrenceBackend kCpuBackend{device_cpu,  work_dtype_cpu, input_product_cpu,
                                        forward_cpu, backward_cpu,   cells_cpu};

}  // namespace

TORCH_LIBRARY_IMPL(treadle, CPU, m) { register_lltm_layer<kCpuBackend>(m); }

}  // namespace treadle
