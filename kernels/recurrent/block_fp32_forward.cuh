// The regime "cluster" in float32 of one block, forward, for any cell: block_float.cuh says how.
#pragma once

#include "kernels/block_float.cuh"

namespace treadle {

template <int gates, int units>
using BlockForward = BlockFloat<units, gates, units, gates>;

template <template <class> class CellOf, int units>
__global__ void __launch_bounds__(2 * units, 1)
    block_float_forward(const __grid_constant__ PersistentForward args, int rows_each) {
  begin_kernel();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  using Cell = CellOf<float>;
  constexpr int kGates = Cell::kGates;
  using Is = BlockForward<kGates, units>;
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

  float weights[kGates][Is::kDepth], bias[kGates];
#pragma unroll
  for (int m = 0; m < kGates; ++m) {
    const int64_t first = (d * kGates + m) * hidden + unit;
    const int count = unit < hidden ? static_cast<int>(hidden) - half * 4 : 0;
    const auto* const at = static_cast<const float*>(args.weight_hh) + first * hidden + half * 4;
#pragma unroll
    for (int i = 0; i < Is::kDepth; ++i) {
      weights[m][i] = block_k(i) < count ? at[block_k(i)] : 0.0f;
    }
    bias[m] = real && args.bias != nullptr ? static_cast<const float*>(args.bias)[first] : 0.0f;
    __syncthreads();  // or the addresses of all would be on their way at once
  }
  const int64_t own_state = (d * args.sizes.batch + rows.first + row) * hidden + unit;
  float h = real ? static_cast<const float*>(args.h0)[own_state] : 0.0f;
  float c = real ? static_cast<const float*>(args.c0)[own_state] : 0.0f;
  const int place = row * Is::kRowFloats + unit;
  states[place] = h;

  const BlockRow own(rows, row, steps, real, d != 0);
  BlockWalk from(static_cast<const float*>(args.products) + d * args.product_direction + unit, own,
                 args.sizes, args.product_row);
  const auto fetch = [&](int s) {
    if (own.runs(s)) {
      const uint32_t slot = ptx::shared_address(slots + s % Is::kSlots * Is::kSlotFloats);
#pragma unroll
      for (int m = 0; m < kGates; ++m) {
        ptx::copy4_async(slot + m * Is::kThreads * 4, from.at + m * args.product_gate);
      }
    }
    ptx::commit_copies();
    from.go_on(own, args.sizes, s);
  };
#pragma unroll 1
  for (int s = 0; s < Is::kAhead; ++s) fetch(s);
  BlockWalk output(static_cast<float*>(args.output) + d * hidden + unit, own, args.sizes,
                   args.output_row);
  const bool any_gates = args.gates != nullptr;
  BlockWalk to(static_cast<float*>(args.gates) + d * rows.start(steps) * kGates * hidden + unit,
               own, args.sizes, kGates * hidden);
  __syncthreads();

#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
    const bool runs = own.runs(s);
    ptx::wait_copies<Is::kAhead - 1>();
    const float* const slot = slots + s % Is::kSlots * Is::kSlotFloats;
    float gates[kGates], products[kGates];
#pragma unroll
    for (int m = 0; m < kGates; ++m) gates[m] = slot[m * Is::kThreads] + bias[m];
    const float* const state = states + (s & 1) * Is::kStateFloats;
    multiply_state<Is>(weights, state, rows_each, half, products);
#pragma unroll
    for (int m = 0; m < kGates; ++m) gates[m] += products[m];
    const auto next = Cell::forward(gates, c);
    if (runs) {
      c = next.new_cell;
      h = next.new_h;
    }
    states[(~s & 1) * Is::kStateFloats + place] = h;
    if (runs) *output.at = h;
    output.go_on(own, args.sizes, s);
    if (any_gates) {
      if (runs) {
#pragma unroll
        for (int m = 0; m < kGates; ++m) to.at[m * hidden] = gates[m];
      }
      to.go_on(own, args.sizes, s);
    }
    fetch(s + Is::kAhead);
    __syncthreads();
  }
  if (real) {
    static_cast<float*>(args.h)[own_state] = h;
    static_cast<float*>(args.c)[own_state] = c;
  }
#endif
}

}  // namespace treadle
