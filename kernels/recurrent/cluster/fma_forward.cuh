// The forward cluster kernel for any cell in float32 (cluster/fma.cuh):
// gates_t = products_t + bias + h_{t-1} W_hh^T, then the cell. Thread e of the block computes unit
// e % units of row e / units. All threads multiply, prefetch, send and store.
#pragma once

#include "kernels/recurrent/cluster/fma.cuh"

namespace treadle {

template <class Cell, int units, int blocks>
using ClusterFp32Forward = ClusterFp32<Cell::kStateGates * units, 2 * Cell::kStateGates,
                                       units * blocks, units, Cell::kGates, units>;

// This is a single function because the weights fill the registers. Divided into several functions,
// even inlined ones, it would need more registers, and would spill with 32 units.
template <class Cell, int units, int blocks, bool any_resets>
__global__ void __launch_bounds__(kFp32Threads, 1)
    cluster_fp32_forward(const __grid_constant__ PersistentForward args, int rows_each) {
  begin_kernel();
#if TREADLE_CLUSTER_CODE
  constexpr int kGates = Cell::kGates, kStateGates = Cell::kStateGates;
  constexpr int kFirstInput = kGates - Cell::kInputGates;
  constexpr int kAll = units * blocks, kOutputs = kStateGates * units;
  using Layout = ClusterFp32Forward<Cell, units, blocks>;
  constexpr int kRows = Layout::kRows;
  extern __shared__ __align__(128) unsigned char memory[];
  auto* states = reinterpret_cast<float*>(memory + Layout::kState);
  auto* sums = reinterpret_cast<float*>(memory + Layout::kSums);
  auto* outgoing = reinterpret_cast<float*>(memory + Layout::kOutgoing);
  auto* stages = reinterpret_cast<float*>(memory + Layout::kInput);
  const uint32_t base = ptx::shared_address(memory), barriers = base + Layout::kBarriers;
  const int thread = threadIdx.x, rank = static_cast<int>(ptx::block_in_cluster());
  const Group group(args.sizes, static_cast<int>(blockIdx.x) / blocks, rows_each);
  const GroupRows& rows = group.rows;
  const int64_t hidden = args.sizes.hidden, d = group.direction;
  const int steps = static_cast<int>(args.sizes.steps), first_unit = rank * units;
  const bool save = args.gates != nullptr, vector = hidden % 4 == 0;

  // Rows of W_hh. An output is a gate of a unit. Weights beyond H are zero, so that padding units
  // stay zero.
  float in_registers[Layout::kEach][Layout::kHeld];
  const Fp32Weights<Layout> weights{in_registers,
                                    reinterpret_cast<float*>(memory + Layout::kWeights)};
  const auto* weight =
      static_cast<const float*>(args.weight_hh) + d * kStateGates * hidden * hidden;
#pragma unroll
  for (int o = 0; o < Layout::kEach; ++o) {
    const int output = thread % Layout::kGroups * Layout::kEach + o;
    const int64_t u = first_unit + output % units;
    const float* row = weight + (Cell::weight_block(output / units) * hidden + u) * hidden;
#pragma unroll
    for (int i = 0; i < Layout::kDepth; ++i) {
      const int64_t k = thread / Layout::kGroups * Layout::kDepth + i;
      weights.set(o, i, u < hidden && k < hidden ? load_weight<Layout>(row + k) : 0.0f);
    }
    if (Layout::kHeld < Layout::kDepth) __syncthreads();
  }
  const auto time = [&](int s) { return group.forward_time(s, steps); };
  const GroupResets<any_resets> resets{args.resets, args.sizes, group};
  PassMarks<any_resets, false, 8> marks(resets);
  const uint32_t first_anew = marks.before(0);
  const int64_t state_row = d * args.sizes.batch + rows.first;
  for (int e = thread; e < rows_each * kAll; e += kFp32Threads) {
    const int r = e / kAll, k = e % kAll;
    const float h = r < rows.count && k < hidden
                        ? static_cast<const float*>(args.h0)[(state_row + r) * hidden + k]
                        : 0.0f;
    states[e] = any_resets && k < hidden ? resets.first_h(first_anew >> r & 1, h, r, k) : h;
  }
  const uint32_t expected = static_cast<uint32_t>(rows_each) * kAll * 4;
  if (thread == 0) init_barriers<2>(barriers, expected);

  // Prefetches the input products of step s, 16 bytes per copy, in the order [gate][row][unit].
  // Commits a group even if it is empty, because wait_copies counts groups.
  const auto fetch = [&](int s) {
    if (s < steps) {
      const int64_t start = rows.start(time(s)) + rows.first;
      const int active = rows.active(time(s));
      const uint32_t stage = base + Layout::kInput + s % Layout::kStages * Layout::kStageBytes;
      const auto* from = static_cast<const float*>(args.products) + d * args.product_direction;
#pragma unroll
      for (int e = thread; e < kGates * kRows * (units / 4); e += kFp32Threads) {
        const int u = first_unit + e % (units / 4) * 4, r = e / (units / 4) % kRows;
        const int m = e / (units / 4) / kRows;
        if (r >= active || u >= hidden || m < kFirstInput) continue;
        ptx::copy16_async(stage + e * 16,
                          from + (start + r) * args.product_row + m * args.product_gate + u);
      }
    }
    ptx::commit_copies();
  };
  for (int s = 0; s < Layout::kAhead; ++s) fetch(s);
  ptx::wait_copies<Layout::kAhead - 1>();
  __syncthreads();
  ptx::sync_cluster();  // all blocks have initialised their barriers and h0

  // This thread's unit of one row; c and the last h stay in registers.
  const int row = thread / units, unit = thread % units;
  const bool mine = row < rows_each;
  const bool real = mine && row < rows.count && first_unit + unit < hidden;
  const int64_t own_state = (state_row + row) * hidden + first_unit + unit;
  float c = real ? static_cast<const float*>(args.c0)[own_state] : 0.0f, last = 0;
  if (any_resets && real) c = resets.first_c(first_anew >> row & 1, c, row, first_unit + unit);
  float bias[kGates];
#pragma unroll
  for (int m = 0; m < kGates; ++m) {
    bias[m] = real ? bias_of<Cell, float>(args, d, m, first_unit + unit) : 0.0f;
  }
  const int64_t all_rows = rows.start(steps);

#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
    const int parity = s & 1;
    const int64_t start = rows.start(time(s)) + rows.first;
    const int active = rows.active(time(s));
    const bool anew = any_resets && (marks.before(s + 1) >> row & 1) && real;
    const float* state = states + parity * (Layout::kStateBytes / 4);
    float* stage = stages + s % Layout::kStages * (Layout::kStageBytes / 4);
    if (s > 0) ptx::wait_barrier(barriers + 8 * parity, (s - 1) >> 1 & 1);
    multiply_rows<Layout, kAll, kOutputs>(weights, state, sums, rows_each);
    // After this barrier all threads have read h_{t-1}, so the mbarrier of this parity may be armed
    // for step s + 2.
    __syncthreads();
    if (s > 0 && thread == 0) ptx::arrive_expecting(barriers + 8 * parity, expected);

    float* own = outgoing + parity * (Layout::kOutgoingBytes / 4);
    if (mine) {
      float gates[kGates];
      float* const in_stage = stage + row * units + unit;
#pragma unroll
      for (int m = 0; m < kGates; ++m) {
        gates[m] = m < kFirstInput ? bias[m] : in_stage[m * kRows * units] + bias[m];
        if (m < kStateGates)
          gates[m] += sum_of_warps<Layout, kOutputs>(sums, row, m * units + unit);
      }
      // A row that has ended keeps sending its last h.
      last = state[row * kAll + first_unit + unit];
      if (real && row < active) {
        const auto next = Cell::forward(gates, c);
        c = next.new_cell;
        last = next.new_h;
      }
      if (anew) c = 0;
      own[thread] = anew ? 0.0f : last;
      if (any_resets && anew && resets.given()) {
        own[thread] = resets.template h<float>(time(s + 1), row, first_unit + unit);
        c = resets.c(time(s + 1), row, first_unit + unit);
      }
      // Gates overwrite the products from which they were computed, and are stored below.
      if (save) {
#pragma unroll
        for (int m = 0; m < kGates; ++m) in_stage[m * kRows * units] = gates[m];
      }
    }
    // After this barrier the outgoing h is complete, and the stage of step s + 1 has arrived.
    ptx::wait_copies<Layout::kAhead - 2>();
    __syncthreads();

    if (s + 1 < steps) {
      send_rows<blocks, units, kAll>(base + Layout::kOutgoing + parity * Layout::kOutgoingBytes,
                                     base + Layout::kState + (parity ^ 1) * Layout::kStateBytes,
                                     barriers + 8 * (parity ^ 1), rank, rows_each);
    }
    // While h is being sent, this stores output and gates and starts the next prefetch. With
    // resets, the h that was sent may differ from the output.
    if (any_resets) {
      const int64_t at = (start + row) * args.output_row + d * hidden + first_unit + unit;
      if (real && row < active) static_cast<float*>(args.output)[at] = last;
    } else {
      for (int e = thread; e < active * (units / 4); e += kFp32Threads) {
        const int quad = e % (units / 4), r = e / (units / 4);
        const int left = static_cast<int>(hidden) - first_unit - quad * 4;
        if (left <= 0) continue;
        store_floats_of(static_cast<float*>(args.output) + (start + r) * args.output_row +
                            d * hidden + first_unit + quad * 4,
                        own + r * units + quad * 4, left, vector);
      }
    }
    if (save) {
#pragma unroll
      for (int e = thread; e < kGates * kRows * (units / 4); e += kFp32Threads) {
        const int quad = e % (units / 4), r = e / (units / 4) % kRows;
        const int m = e / (units / 4) / kRows;
        const int left = static_cast<int>(hidden) - first_unit - quad * 4;
        if (r >= active || left <= 0) continue;
        const int64_t at = ((d * all_rows + start + r) * kGates + m) * hidden;
        store_floats_of(static_cast<float*>(args.gates) + at + first_unit + quad * 4, stage + e * 4,
                        left, vector);
      }
    }
    fetch(s + Layout::kAhead);
  }
  if (real) {
    static_cast<float*>(args.h)[own_state] = last;
    static_cast<float*>(args.c)[own_state] = c;
  }
  // No block may exit while others still send into its shared memory.
  ptx::sync_cluster();
#endif
}

}  // namespace treadle
