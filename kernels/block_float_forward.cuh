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
      const int u = thread.first_unit + o, first_k = thread.share * 4;
      const int count = u < hidden ? static_cast<int>(hidden) - first_k : 0;
      const auto* const at =
          static_cast<const float*>(args.weight_hh) + (first + u) * hidden + first_k;
#pragma unroll
      for (int i = 0; i < Is::kDepth; ++i) {
        weights[m][o][i] = block_k(i) < count ? at[block_k(i)] : 0.0f;
      }
      __syncthreads();  // or the addresses of all would be on their way at once
    }
    bias[m] =
        real && args.bias != nullptr ? static_cast<const float*>(args.bias)[first + unit] : 0.0f;
  }
  const int64_t own_state = (d * args.sizes.batch + rows.first + row) * hidden + unit;
  float h = real ? static_cast<const float*>(args.h0)[own_state] : 0.0f;
  float c = real ? static_cast<const float*>(args.c0)[own_state] : 0.0f;
  const int place = row * Is::kRowFloats + unit;
  states[place] = h;

  const BlockRow own(rows, row, steps, real, d != 0);
  const int64_t begin = rows.start(own.backward ? steps - 1 : 0) + rows.first + row;
  const auto* from = static_cast<const float*>(args.products) + d * args.product_direction +
                     begin * args.product_row + unit;
  const auto fetch = [&](int s) {
    if (own.runs(s)) {
      const uint32_t slot = ptx::shared_address(slots + s % Is::kSlots * Is::kSlotFloats);
#pragma unroll
      for (int m = 0; m < kGates; ++m) {
        ptx::copy4_async(slot + m * kBlockFloatThreads * 4, from + m * args.product_gate);
      }
    }
    ptx::commit_copies();
    from += rows_to_next(args.sizes, own.backward, s) * args.product_row;
  };
#pragma unroll 1
  for (int s = 0; s < Is::kAhead; ++s) fetch(s);
  auto* output = static_cast<float*>(args.output) + begin * args.output_row + d * hidden + unit;
  const bool any_gates = args.gates != nullptr;
  auto* to =
      static_cast<float*>(args.gates) + (d * rows.start(steps) + begin) * kGates * hidden + unit;
  __syncthreads();

  float gates[kGates];
  // What a step gives is stored while the next one waits for its sums.
  const auto store = [&](int s) {
    const bool runs = own.runs(s);
    float* of_gate[kGates];
#pragma unroll
    for (int m = 0; m < kGates; ++m) of_gate[m] = to + m * hidden;
    if (runs) *output = h;
    if (runs && any_gates) {
#pragma unroll
      for (int m = 0; m < kGates; ++m) *of_gate[m] = gates[m];
    }
    const int64_t rows_on = rows_to_next(args.sizes, own.backward, s);
    output += rows_on * args.output_row;
    to += rows_on * kGates * hidden;
  };

#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
    ptx::wait_copies<Is::kAhead - 1>();
    const float* const slot = slots + s % Is::kSlots * Is::kSlotFloats;
    float sums[kGates];
#pragma unroll
    for (int m = 0; m < kGates; ++m) sums[m] = slot[m * kBlockFloatThreads] + bias[m];
    const float* const state = states + (s & 1) * Is::kStateFloats;
    float products[kGates];
    multiply_state<Is>(weights, state, rows_each, thread, products);
    if (s > 0) store(s - 1);
    fetch(s + Is::kAhead);
#pragma unroll
    for (int m = 0; m < kGates; ++m) gates[m] = products[m] + sums[m];
    const auto next = Cell::forward(gates, c);
    if (own.runs(s)) {
      c = next.new_cell;
      h = next.new_h;
    }
    states[(~s & 1) * Is::kStateFloats + place] = h;
    __syncthreads();
  }
  store(steps - 1);
  if (real) {
    static_cast<float*>(args.h)[own_state] = h;
    static_cast<float*>(args.c)[own_state] = c;
  }
#endif
}

}  // namespace treadle
