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
      const int64_t v = thread.k(i) % units, m = thread.k(i) / units;
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
  const auto time = [&](int s) { return d == 0 ? steps - 1 - s : s; };
  const int64_t all_rows = rows.start(steps);
  const bool any_grad = args.grad_output != nullptr;
  const auto fetch = [&](int s) {
    if (s < steps && real && row < rows.active(time(s))) {
      const int64_t at = rows.start(time(s)) + rows.first + row;
      const uint32_t slot = ptx::shared_address(slots + s % Is::kSlots * Is::kSlotFloats);
      const auto* const gates = static_cast<const float*>(args.gates) + d * args.gate_direction;
#pragma unroll
      for (int m = 0; m < kGates; ++m) {
        ptx::copy4_async(slot + m * kBlockFloatThreads * 4,
                         gates + at * args.gate_row + m * args.gate_gate + unit);
      }
      ptx::copy4_async(slot + kGates * kBlockFloatThreads * 4,
                       static_cast<const float*>(args.cells) + d * args.cell_direction +
                           at * args.cell_row + unit);
      if (any_grad) {
        ptx::copy4_async(slot + (kGates + 1) * kBlockFloatThreads * 4,
                         static_cast<const float*>(args.grad_output) + d * args.grad_direction +
                             at * args.grad_row + unit);
      }
    }
    ptx::commit_copies();
  };
#pragma unroll 1
  for (int s = 0; s < Is::kAhead; ++s) fetch(s);
  __syncthreads();
  int given = 0;  // rows that gave gradients the step before; of others not even 0 x inf counts

  // One more than there are steps, for the gradient of h before the first.
#pragma unroll 1
  for (int s = 0; s <= steps; ++s) {
    const float* const state = states + (s & 1) * Is::kStateFloats;
    float by_h[1];
    multiply_state<Is>(weights, state, rows_each, thread, by_h);
    if (row < given) grad_h += by_h[0];
    if (s == steps) break;
    const int active = rows.active(time(s));
    const bool runs = real && row < active;
    ptx::wait_copies<Is::kAhead - 1>();
    // A row that has no such step keeps its gradients, and gives none.
    float grads[kGates] = {};
    if (runs) {
      const float* const slot = slots + s % Is::kSlots * Is::kSlotFloats;
      float gates[kGates];
#pragma unroll
      for (int m = 0; m < kGates; ++m) gates[m] = slot[m * kBlockFloatThreads];
      const float new_cell = slot[kGates * kBlockFloatThreads];
      if (any_grad) grad_h += slot[(kGates + 1) * kBlockFloatThreads];
      const auto grad = Cell::backward(Cell::slopes(gates, 0.0f, new_cell), grad_h, grad_c);
      grad_c = grad.old_cell;
      grad_h = 0;
#pragma unroll
      for (int m = 0; m < kGates; ++m) grads[m] = grad.gates[m];
    }
#pragma unroll
    for (int m = 0; m < kGates; ++m) {
      states[(~s & 1) * Is::kStateFloats + place + m * units] = grads[m];
    }
    if (runs) {
      const int64_t at = d * all_rows + rows.start(time(s)) + rows.first + row;
#pragma unroll
      for (int m = 0; m < kGates; ++m) {
        static_cast<float*>(args.grad_gates)[(at * kGates + m) * hidden + unit] = grads[m];
      }
    }
    given = active;
    fetch(s + Is::kAhead);
    __syncthreads();
  }
  if (real && args.grad_h0 != nullptr) static_cast<float*>(args.grad_h0)[own_state] = grad_h;
  if (real && args.grad_c0 != nullptr) static_cast<float*>(args.grad_c0)[own_state] = grad_c;
#endif
}

}  // namespace treadle
