// The regime "cluster" in float32 of one block, backward, for any cell: block_float.cuh says how.
#pragma once

#include "kernels/block_float.cuh"

namespace treadle {

// K: by gate, unit.
template <int gates, int units>
using BlockBackward = BlockFloat<units, 1, gates * units, gates + 2>;

template <template <class> class CellOf, int units>
__global__ void __launch_bounds__(kBlockFloatThreads, 1)
    block_float_backward(const __grid_constant__ PersistentBackward args, int rows_each) {
  begin_kernel();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  using Cell = CellOf<float>;
  static_assert(!Cell::kReadsOldCell, "the cell before is not fetched");
  constexpr int kGates = Cell::kGates;
  using Is = BlockBackward<kGates, units>;
  extern __shared__ __align__(128) unsigned char memory[];
  auto* const states = reinterpret_cast<float*>(memory);
  float* const slots = states + 2 * Is::kStateFloats + threadIdx.x;
  const Group group(args.sizes, static_cast<int>(blockIdx.x), rows_each);
  const GroupRows& rows = group.rows;
  const int64_t hidden = args.sizes.hidden, d = group.direction;
  const int steps = static_cast<int>(args.sizes.steps);
  const BlockThread<Is> thread;
  const int unit = thread.unit, row = thread.row;
  const bool real = row < rows.count && row < rows_each && unit < hidden;

  float weights[1][Is::kOwn][Is::kDepth];
#pragma unroll
  for (int o = 0; o < Is::kOwn; ++o) {
    const int64_t u = thread.first_unit + o;
#pragma unroll
    for (int i = 0; i < Is::kDepth; ++i) {
      const int64_t v = block_k(i) % units + thread.share * 4, m = block_k(i) / units;
      weights[0][o][i] = u < hidden && v < hidden
                             ? __ldg(static_cast<const float*>(args.weight_hh) +
                                     ((d * kGates + m) * hidden + v) * hidden + u)
                             : 0.0f;
    }
  }
  for (int e = threadIdx.x; e < Is::kStateFloats; e += kBlockFloatThreads) states[e] = 0;
  const int64_t own_state = (d * args.sizes.batch + rows.first + row) * hidden + unit;
  float grad_h = 0, grad_c = 0;
  if (real && args.grad_h_n != nullptr) {
    grad_h = static_cast<const float*>(args.grad_h_n)[own_state];
  }
  if (real && args.grad_c_n != nullptr) {
    grad_c = static_cast<const float*>(args.grad_c_n)[own_state];
  }
  const int place = row * Is::kRowFloats + unit;

  // Direction 1 ran backward in time.
  const BlockRow own(rows, row, steps, real, d == 0);
  const int64_t begin = rows.start(own.backward ? steps - 1 : 0) + rows.first + row;
  const bool any_grad = args.grad_output != nullptr;
  const auto* gates_at = static_cast<const float*>(args.gates) + d * args.gate_direction +
                         begin * args.gate_row + unit;
  const auto* cells_at = static_cast<const float*>(args.cells) + d * args.cell_direction +
                         begin * args.cell_row + unit;
  const auto* grad_at = static_cast<const float*>(args.grad_output) + d * args.grad_direction +
                        begin * args.grad_row + unit;
  const auto fetch = [&](int s) {
    if (own.runs(s)) {
      const uint32_t slot = ptx::shared_address(slots + s % Is::kSlots * Is::kSlotFloats);
#pragma unroll
      for (int m = 0; m < kGates; ++m) {
        ptx::copy4_async(slot + m * kBlockFloatThreads * 4, gates_at + m * args.gate_gate);
      }
      ptx::copy4_async(slot + kGates * kBlockFloatThreads * 4, cells_at);
      if (any_grad) ptx::copy4_async(slot + (kGates + 1) * kBlockFloatThreads * 4, grad_at);
    }
    ptx::commit_copies();
    const int64_t rows_on = rows_to_next(args.sizes, own.backward, s);
    gates_at += rows_on * args.gate_row;
    cells_at += rows_on * args.cell_row;
    grad_at += rows_on * args.grad_row;
  };
#pragma unroll 1
  for (int s = 0; s < Is::kAhead; ++s) fetch(s);
  auto* to = static_cast<float*>(args.grad_gates) +
             (d * rows.start(steps) + begin) * kGates * hidden + unit;
  __syncthreads();
  float given[kGates] = {};
  // What a step gives is stored while the next one waits for its sums.
  const auto store = [&](int s) {
    if (own.runs(s)) {
#pragma unroll
      for (int m = 0; m < kGates; ++m) to[m * hidden] = given[m];
    }
    to += rows_to_next(args.sizes, own.backward, s) * kGates * hidden;
  };

  // One more than there are steps, for the gradient of h before the first.
#pragma unroll 1
  for (int s = 0; s <= steps; ++s) {
    ptx::wait_copies<Is::kAhead - 1>();
    const float* const slot = slots + s % Is::kSlots * Is::kSlotFloats;
    float gates[kGates];
#pragma unroll
    for (int m = 0; m < kGates; ++m) gates[m] = slot[m * kBlockFloatThreads];
    const float new_cell = slot[kGates * kBlockFloatThreads];
    const float grad_output = any_grad ? slot[(kGates + 1) * kBlockFloatThreads] : 0.0f;
    if (s > 0) store(s - 1);
    fetch(s + Is::kAhead);
    const auto slopes = Cell::slopes(gates, 0.0f, new_cell);
    const float* const state = states + (s & 1) * Is::kStateFloats;
    float by_h[1];
    multiply_state<Is>(weights, state, rows_each, thread, by_h);
    // Of a row that gave nothing the step before, not even 0 x inf counts.
    if (own.runs(s - 1)) grad_h += by_h[0];
    if (s == steps) break;
    // A row that has no such step keeps its gradients, and gives none.
    const auto grad = Cell::backward(slopes, grad_h + grad_output, grad_c);
    const bool runs = own.runs(s);
    if (runs) {
      grad_c = grad.old_cell;
      grad_h = 0;
    }
#pragma unroll
    for (int m = 0; m < kGates; ++m) {
      given[m] = runs ? grad.gates[m] : 0.0f;
      states[(~s & 1) * Is::kStateFloats + place + m * units] = given[m];
    }
    __syncthreads();
  }
  if (real && args.grad_h0 != nullptr) static_cast<float*>(args.grad_h0)[own_state] = grad_h;
  if (real && args.grad_c0 != nullptr) static_cast<float*>(args.grad_c0)[own_state] = grad_c;
#endif
}

}  // namespace treadle
