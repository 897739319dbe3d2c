// The regime "cluster" in float32 of one block, backward, for any cell: block_float.cuh says how.
#pragma once

#include "kernels/block_float.cuh"

namespace treadle {

// K: by gate, unit.
template <int gates, int units>
using BlockBackward = BlockFloat<units, 1, gates * units, gates + 2>;

template <template <class> class CellOf, int units>
__global__ void __launch_bounds__(2 * units, 1)
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
  // This thread's half of K and row; its unit.
  const int half = static_cast<int>(threadIdx.x) % 2, row = half;
  const int unit = static_cast<int>(threadIdx.x) / 2;
  const bool real = row < rows.count && row < rows_each && unit < hidden;

  float weights[1][Is::kDepth];
#pragma unroll
  for (int i = 0; i < Is::kDepth; ++i) {
    const int64_t v = block_k(i) % units + half * 4, m = block_k(i) / units;
    weights[0][i] = unit < hidden && v < hidden
                        ? __ldg(static_cast<const float*>(args.weight_hh) +
                                ((d * kGates + m) * hidden + v) * hidden + unit)
                        : 0.0f;
  }
  for (int e = threadIdx.x; e < Is::kStateFloats; e += Is::kThreads) states[e] = 0;
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
  const bool any_grad = args.grad_output != nullptr;
  BlockWalk gates_at(static_cast<const float*>(args.gates) + d * args.gate_direction + unit, own,
                     args.sizes, args.gate_row);
  BlockWalk cell_at(static_cast<const float*>(args.cells) + d * args.cell_direction + unit, own,
                    args.sizes, args.cell_row);
  BlockWalk grad_at(static_cast<const float*>(args.grad_output) + d * args.grad_direction + unit,
                    own, args.sizes, args.grad_row);
  const auto fetch = [&](int s) {
    if (own.runs(s)) {
      const uint32_t slot = ptx::shared_address(slots + s % Is::kSlots * Is::kSlotFloats);
#pragma unroll
      for (int m = 0; m < kGates; ++m) {
        ptx::copy4_async(slot + m * Is::kThreads * 4, gates_at.at + m * args.gate_gate);
      }
      ptx::copy4_async(slot + kGates * Is::kThreads * 4, cell_at.at);
      if (any_grad) ptx::copy4_async(slot + (kGates + 1) * Is::kThreads * 4, grad_at.at);
    }
    ptx::commit_copies();
    gates_at.go_on(own, args.sizes, s);
    cell_at.go_on(own, args.sizes, s);
    grad_at.go_on(own, args.sizes, s);
  };
#pragma unroll 1
  for (int s = 0; s < Is::kAhead; ++s) fetch(s);
  BlockWalk to(
      static_cast<float*>(args.grad_gates) + d * rows.start(steps) * kGates * hidden + unit, own,
      args.sizes, kGates * hidden);
  __syncthreads();

  // One more than there are steps, for the gradient of h before the first.
#pragma unroll 1
  for (int s = 0; s <= steps; ++s) {
    ptx::wait_copies<Is::kAhead - 1>();
    const float* const slot = slots + s % Is::kSlots * Is::kSlotFloats;
    float gates[kGates];
#pragma unroll
    for (int m = 0; m < kGates; ++m) gates[m] = slot[m * Is::kThreads];
    const auto slopes = Cell::slopes(gates, 0.0f, slot[kGates * Is::kThreads]);
    const float grad_output = any_grad ? slot[(kGates + 1) * Is::kThreads] : 0.0f;
    const float* const state = states + (s & 1) * Is::kStateFloats;
    float by_h[1];
    multiply_state<Is>(weights, state, rows_each, half, by_h);
    // Of a row that gave nothing the step before, not even 0 x inf counts.
    if (own.runs(s - 1)) grad_h += by_h[0];
    if (s == steps) break;
    // A row that has no such step keeps its gradients, and gives none.
    const bool runs = own.runs(s);
    const auto grad = Cell::backward(slopes, grad_h + grad_output, grad_c);
    if (runs) {
      grad_c = grad.old_cell;
      grad_h = 0;
    }
#pragma unroll
    for (int m = 0; m < kGates; ++m) {
      states[(~s & 1) * Is::kStateFloats + place + m * units] = runs ? grad.gates[m] : 0.0f;
    }
    if (runs) {
#pragma unroll
      for (int m = 0; m < kGates; ++m) to.at[m * hidden] = grad.gates[m];
    }
    to.go_on(own, args.sizes, s);
    fetch(s + Is::kAhead);
    __syncthreads();
  }
  if (real && args.grad_h0 != nullptr) static_cast<float*>(args.grad_h0)[own_state] = grad_h;
  if (real && args.grad_c0 != nullptr) static_cast<float*>(args.grad_c0)[own_state] = grad_c;
#endif
}

}  // namespace treadle
