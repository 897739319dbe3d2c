// The regime "cluster" in float32 of one block, forward, for any cell: block_float.cuh says how.
#pragma once

#include "kernels/block_float.cuh"

namespace treadle {

template <int gates, int units>
using BlockForward = BlockFloat<units, gates, units, gates>;

template <template <class> class CellOf, int units>
__global__ void __launch_bounds__(kBlockFloatThreads, 1)
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
  const BlockThread<Is> thread;
  const int unit = thread.unit, row = thread.row;
  const bool real = row < rows.count && row < rows_each && unit < hidden;

  float weights[kGates][Is::kOwn][Is::kDepth], bias[kGates];
#pragma unroll
  for (int m = 0; m < kGates; ++m) {
    const int64_t first = (d * kGates + m) * hidden;
#pragma unroll
    for (int o = 0; o < Is::kOwn; ++o) {
      const int64_t u = thread.first_unit + o;
#pragma unroll
      for (int i = 0; i < Is::kDepth; ++i) {
        const int64_t k = thread.k(i);
        weights[m][o][i] =
            u < hidden && k < hidden
                ? __ldg(static_cast<const float*>(args.weight_hh) + (first + u) * hidden + k)
                : 0.0f;
      }
    }
    bias[m] =
        real && args.bias != nullptr ? static_cast<const float*>(args.bias)[first + unit] : 0.0f;
  }
  const int64_t own_state = (d * args.sizes.batch + rows.first + row) * hidden + unit;
  float h = real ? static_cast<const float*>(args.h0)[own_state] : 0.0f;
  float c = real ? static_cast<const float*>(args.c0)[own_state] : 0.0f;
  const int place = row * Is::kRowFloats + unit;
  states[place] = h;

  const auto time = [&](int s) { return d == 0 ? s : steps - 1 - s; };
  const int64_t all_rows = rows.start(steps);
  const auto* const from = static_cast<const float*>(args.products) + d * args.product_direction;
  const auto fetch = [&](int s) {
    if (s < steps && real && row < rows.active(time(s))) {
      const int64_t at = (rows.start(time(s)) + rows.first + row) * args.product_row + unit;
      const uint32_t slot = ptx::shared_address(slots + s % Is::kSlots * Is::kSlotFloats);
#pragma unroll
      for (int m = 0; m < kGates; ++m) {
        ptx::copy4_async(slot + m * kBlockFloatThreads * 4, from + at + m * args.product_gate);
      }
    }
    ptx::commit_copies();
  };
#pragma unroll 1
  for (int s = 0; s < Is::kAhead; ++s) fetch(s);
  __syncthreads();

#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
    const float* const state = states + (s & 1) * Is::kStateFloats;
    float gates[kGates];
    multiply_state<Is>(weights, state, rows_each, thread, gates);
    const bool runs = real && row < rows.active(time(s));
    ptx::wait_copies<Is::kAhead - 1>();
    if (runs) {
      const float* const slot = slots + s % Is::kSlots * Is::kSlotFloats;
#pragma unroll
      for (int m = 0; m < kGates; ++m) gates[m] += slot[m * kBlockFloatThreads] + bias[m];
      const auto next = Cell::forward(gates, c);
      c = next.new_cell;
      h = next.new_h;
    }
    states[(~s & 1) * Is::kStateFloats + place] = h;
    // Whoever comes first to the end of a step stores while the others still compute.
    if (runs) {
      const int64_t at = rows.start(time(s)) + rows.first + row;
      static_cast<float*>(args.output)[at * args.output_row + d * hidden + unit] = h;
      if (args.gates != nullptr) {
        auto* const to = static_cast<float*>(args.gates) + (d * all_rows + at) * kGates * hidden;
#pragma unroll
        for (int m = 0; m < kGates; ++m) to[m * hidden + unit] = gates[m];
      }
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
