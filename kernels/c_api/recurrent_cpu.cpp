// Recurrent layers of kernels.h on the CPU. The rows of the batch are divided among threads. Twin
// that uses ATen: csrc/recurrent/run/cpu.cpp.
#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/c_api/recurrent.h"
#include "kernels/c_api/threads.h"
#include "kernels/common/cpu/subnormals.h"
#include "kernels/recurrent/cpu/rows.h"

namespace treadle {
namespace {

// All steps in order, or from the last to the first if `from_end`.
std::vector<RecurrenceStep> steps_of(const CLayer& layer, bool from_end) {
  std::vector<RecurrenceStep> steps;
  steps.reserve(static_cast<size_t>(layer.sizes.steps));
  for (int64_t t = 0; t < layer.sizes.steps; ++t) {
    const int64_t at = from_end ? layer.sizes.steps - 1 - t : t;
    steps.push_back({at * layer.sizes.batch, layer.sizes.batch});
  }
  return steps;
}

size_t panel_bytes(const CLayer& layer) {
  const int64_t bytes = cpu::recurrent_panel_bytes(layer.cell.state_gates * layer.sizes.hidden,
                                                   layer.sizes.hidden, size_of(layer.sizes.dtype));
  return static_cast<size_t>((bytes + 255) / 256 * 256);
}

// Part `index` of an array [D, ...] whose parts have `elements` elements; null if `data` is null.
template <class Pointer>
Pointer part(const CLayer& layer, Pointer data, int64_t index, int64_t elements) {
  using Byte =
      std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const char, char>;
  if (data == nullptr) return nullptr;
  return static_cast<Byte*>(data) + index * elements * size_of(layer.sizes.dtype);
}

int64_t weight_size(const CLayer& layer) {
  return layer.cell.state_gates * layer.sizes.hidden * layer.sizes.hidden;
}

MatrixView weight_of(const CLayer& layer, const void* weight_hh, int64_t direction) {
  return {part(layer, weight_hh, direction, weight_size(layer)), layer.sizes.hidden, 1};
}

// Calls f(part) for parts of the batch that have all units of some blocks of rows.
template <class F>
void over_rows(const CLayer& layer, int64_t step_work, const F& f) {
  constexpr int64_t kRows = cpu::kRowBlock;
  constexpr int64_t kWork = int64_t{1} << 21;  // minimum multiplications per thread
  const int64_t blocks = (layer.sizes.batch + kRows - 1) / kRows;
  const int64_t each = std::max<int64_t>(layer.sizes.steps * step_work * kRows, 1);
  in_parallel(layer.device, blocks, kWork / each + 1, [&](int64_t begin, int64_t end) {
    const cpu::FlushSubnormals flush;
    f(cpu::RowsPart{begin * kRows, std::min(end * kRows, layer.sizes.batch), 0,
                    layer.sizes.hidden});
  });
}

}  // namespace

// Bytes for one direction: the weight, packed in panels (kernels/recurrent/cpu/gemm.h), and for the
// backward pass the current c and the c before each step.
size_t workspace_on_cpu(const CLayer& layer) {
  return panel_bytes(layer) +
         static_cast<size_t>(layer.rows() * layer.sizes.hidden * size_of(layer.sizes.dtype)) +
         static_cast<size_t>(layer.units() * size_of(layer.sizes.dtype));
}

void forward_on_cpu(const CLayer& layer, const CForward& call) {
  const auto& [in, out, panels] = call;
  const auto& sizes = layer.sizes;
  const int64_t hidden = sizes.hidden, given = layer.cell.input_gates * hidden;
  const size_t state_bytes = static_cast<size_t>(sizes.directions * layer.units()) *
                             static_cast<size_t>(size_of(sizes.dtype));
  std::memcpy(out.h_n, in.h0, state_bytes);
  std::memcpy(out.c_n, in.c0, state_bytes);
  for (int64_t d = 0; d < sizes.directions; ++d) {
    cpu::recurrent_pack_forward(sizes.cell, sizes.dtype, weight_of(layer, in.weight_hh, d), hidden,
                                0, hidden, panels);
    const std::vector<RecurrenceStep> steps = steps_of(layer, /*from_end=*/d == 1);
    const RecurrenceForward args{sizes.cell,
                                 sizes.dtype,
                                 sizes.batch,
                                 hidden,
                                 steps.data(),
                                 sizes.steps,
                                 {part(layer, in.products, d, layer.rows() * given), given, 1},
                                 /*state_products=*/{},
                                 part(layer, in.bias_ih, d, given),
                                 part(layer, in.bias_hh, d, layer.cell.state_gates * hidden),
                                 part(layer, out.h_n, d, layer.units()),
                                 part(layer, out.c_n, d, layer.units()),
                                 part(layer, out.output, d, hidden),
                                 sizes.directions * hidden,
                                 part(layer, out.gates, d, layer.rows() * layer.width())};
    over_rows(layer, weight_size(layer),
              [&](const cpu::RowsPart& part) { cpu::recurrent_layer_forward(args, panels, part); });
  }
}

void backward_on_cpu(const CLayer& layer, const CBackward& call) {
  const auto& [in, out, workspace] = call;
  const auto& sizes = layer.sizes;
  const int64_t hidden = sizes.hidden, size = size_of(sizes.dtype);
  const size_t state_bytes = static_cast<size_t>(sizes.directions * layer.units() * size);
  const auto begin_with = [&](void* to, const void* from) {
    from != nullptr ? std::memcpy(to, from, state_bytes) : std::memset(to, 0, state_bytes);
  };
  begin_with(out.h0, in.grad_h_n);
  begin_with(out.c0, in.grad_c_n);
  char* const c_states = static_cast<char*>(workspace) + panel_bytes(layer);
  char* const c = c_states + layer.rows() * hidden * size;
  for (int64_t d = 0; d < sizes.directions; ++d) {
    cpu::recurrent_pack_backward(sizes.cell, sizes.dtype, weight_of(layer, in.weight_hh, d), hidden,
                                 0, hidden, workspace);
    const void* const gates = part(layer, in.gates, d, layer.rows() * layer.width());
    std::memcpy(c, part(layer, in.c0, d, layer.units()), static_cast<size_t>(layer.units() * size));
    const std::vector<RecurrenceStep> forward = steps_of(layer, /*from_end=*/d == 1);
    const RecurrenceCStates before{sizes.cell,  sizes.dtype, sizes.batch, hidden,  forward.data(),
                                   sizes.steps, gates,       c,           c_states};
    over_rows(layer, 64 * hidden,
              [&](const cpu::RowsPart& part) { cpu::recurrent_layer_c_states(before, part); });
    const std::vector<RecurrenceStep> backward = steps_of(layer, /*from_end=*/d == 0);
    const int64_t row = sizes.directions * hidden;
    const RecurrenceBackward args{sizes.cell,
                                  sizes.dtype,
                                  sizes.batch,
                                  hidden,
                                  backward.data(),
                                  sizes.steps,
                                  gates,
                                  c_states,
                                  {part(layer, in.grad_output, d, hidden), row, 1},
                                  {part(layer, out.h0, d, layer.units()), hidden, 1},
                                  part(layer, out.c0, d, layer.units()),
                                  part(layer, out.gates, d, layer.rows() * layer.width())};
    over_rows(layer, weight_size(layer), [&](const cpu::RowsPart& part) {
      cpu::recurrent_layer_backward(args, workspace, part);
    });
  }
}

}  // namespace treadle
