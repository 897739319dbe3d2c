// The backward cluster kernel for any cell in float32 (cluster/fma.cuh): the cell's backward pass,
// then grad_h_{t-1} = grad_gates_t W_hh. Thread e of the block computes unit e % units of
// row e / units. All threads multiply, prefetch, send and store.
#pragma once

#include "kernels/recurrent/cluster/fma.cuh"

namespace treadle {

template <class Cell, int units, int blocks>
using ClusterFp32Backward = ClusterFp32<units, 4, Cell::kStateGates * units * blocks, units,
                                        Cell::kGates + 2, Cell::kGates * units>;

// This is a single function because the weights fill the registers. Divided into several functions,
// even inlined ones, it would need more registers, and cluster_fp32_forward with 32 units would
// spill.
template <class Cell, int units, int blocks, bool any_resets>
__global__ void __launch_bounds__(kFp32Threads, 1)
    cluster_fp32_backward(const __grid_constant__ PersistentBackward args, int rows_each) {
  begin_kernel();
#if TREADLE_CLUSTER_CODE
  constexpr int kGates = Cell::kGates, kStateGates = Cell::kStateGates;
  constexpr int kOwn = kGates * units;  // gradients per row; kSent of them are sent
  constexpr int kSent = kStateGates * units, kAll = kSent * blocks;
  using Layout = ClusterFp32Backward<Cell, units, blocks>;
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
  const bool any_grad = args.grad_output != nullptr, vector = hidden % 4 == 0;

  // Columns of W_hh, with k ordered by block, gate and unit.
  float in_registers[Layout::kEach][Layout::kHeld];
  const Fp32Weights<Layout> weights{in_registers,
                                    reinterpret_cast<float*>(memory + Layout::kWeights)};
  const auto* weight =
      static_cast<const float*>(args.weight_hh) + d * kStateGates * hidden * hidden;
#pragma unroll
  for (int i = 0; i < Layout::kDepth; ++i) {
    const int k = thread / Layout::kGroups * Layout::kDepth + i;
    const int64_t v = k / kSent * units + k % units;
    const int64_t m = Cell::weight_block(k / units % kStateGates);
#pragma unroll
    for (int o = 0; o < Layout::kEach; ++o) {
      const int64_t u = first_unit + thread % Layout::kGroups * Layout::kEach + o;
      weights.set(o, i,
                  u < hidden && v < hidden
                      ? load_weight<Layout>(weight + (m * hidden + v) * hidden + u)
                      : 0.0f);
    }
    if (Layout::kHeld < Layout::kDepth && i % 8 == 7) __syncthreads();
  }
  for (int e = thread; e < kRows * kAll; e += kFp32Threads) states[e] = 0;
  const uint32_t expected = static_cast<uint32_t>(rows_each) * kAll * 4;
  if (thread == 0) init_barriers<2>(barriers, expected);

  const auto time = [&](int s) { return group.backward_time(s, steps); };
  const GroupResets<any_resets> resets{args.resets, args.sizes, group};
  PassMarks<any_resets, true, 8> marks(resets);
  // Prefetches the saved values of step s, 16 bytes per copy, in the order [gates, grad_output,
  // c][row][unit].
  const auto fetch = [&](int s) {
    if (s < steps) {
      const int64_t start = rows.start(time(s)) + rows.first;
      const int active = rows.active(time(s));
      const uint32_t stage = base + Layout::kInput + s % Layout::kStages * Layout::kStageBytes;
#pragma unroll
      for (int e = thread; e < (kGates + 2) * kRows * (units / 4); e += kFp32Threads) {
        const int u = first_unit + e % (units / 4) * 4, r = e / (units / 4) % kRows;
        const int m = e / (units / 4) / kRows;
        if (r >= active || u >= hidden || (m == kGates && !any_grad)) continue;
        const float* from =
            m < kGates    ? static_cast<const float*>(args.gates) + d * args.gate_direction +
                                (start + r) * args.gate_row + m * args.gate_gate
            : m == kGates ? static_cast<const float*>(args.grad_output) + d * args.grad_direction +
                                (start + r) * args.grad_row
                          : static_cast<const float*>(args.c_states) + d * args.c_direction +
                                (start + r) * args.c_row;
        ptx::copy16_async(stage + e * 16, from + u);
      }
    }
    ptx::commit_copies();
  };
  for (int s = 0; s < Layout::kAhead; ++s) fetch(s);
  ptx::wait_copies<Layout::kAhead - 1>();
  __syncthreads();
  ptx::sync_cluster();  // all blocks have initialised their barriers

  // This thread's unit of one row; its gradients stay in registers.
  const int row = thread / units, unit = thread % units;
  const bool mine = row < rows_each;
  const bool real = mine && row < rows.count && first_unit + unit < hidden;
  const int64_t own_state = (d * args.sizes.batch + rows.first + row) * hidden + first_unit + unit;
  float grad_h = 0, grad_c = 0;
  if (real && args.grad_h_n != nullptr) {
    grad_h = static_cast<const float*>(args.grad_h_n)[own_state];
  }
  if (real && args.grad_c_n != nullptr) {
    grad_c = static_cast<const float*>(args.grad_c_n)[own_state];
  }
  const int64_t all_rows = rows.start(steps);
  // The number of rows that sent gradients in the previous step. The other rows sent zeros. Their
  // products are not added, because 0 x inf is NaN.
  int given = 0;

  // There is one more iteration than steps, for grad_h0.
#pragma unroll 1
  for (int s = 0; s <= steps; ++s) {
    const int parity = s & 1;
    const bool last = s == steps;
    const int64_t start = last ? 0 : rows.start(time(s)) + rows.first;
    const int active = last ? 0 : rows.active(time(s));
    const bool anew = any_resets && (marks.before(s) >> row & 1) && real;
    const float* stage = stages + s % Layout::kStages * (Layout::kStageBytes / 4);
    if (s > 0) ptx::wait_barrier(barriers + 8 * parity, (s - 1) >> 1 & 1);
    multiply_rows<Layout, kAll, units>(weights, states + parity * (Layout::kStateBytes / 4), sums,
                                       rows_each);
    // After this barrier all threads have read the gradients, so the mbarrier of this parity may be
    // armed for step s + 2.
    __syncthreads();
    if (s > 0 && thread == 0) ptx::arrive_expecting(barriers + 8 * parity, expected);

    float* own = outgoing + parity * (Layout::kOutgoingBytes / 4);
    if (mine) {
      if (row < given) grad_h += sum_of_warps<Layout, units>(sums, row, unit);
      if (anew) resets.take(time(s - 1), row, first_unit + unit, grad_h, grad_c);
      // A row without this step keeps its gradients and sends zeros.
      float grads[kGates] = {};
      if (real && row < active) {
        const float* in_stage = stage + row * units + unit;
        float gates[kGates];
#pragma unroll
        for (int m = 0; m < kGates; ++m) gates[m] = in_stage[m * kRows * units];
        const float grad_out = any_grad ? in_stage[kGates * kRows * units] : 0.0f;
        const float old_cell = in_stage[(kGates + 1) * kRows * units];
        const auto grad = Cell::backward(gates, old_cell, grad_h + grad_out, grad_c);
        grad_c = grad.old_cell;
        grad_h = 0;
#pragma unroll
        for (int m = 0; m < kGates; ++m) grads[m] = grad.gates[m];
      }
#pragma unroll
      for (int m = 0; m < kGates; ++m) own[row * kOwn + m * units + unit] = grads[m];
    }
    if (last) break;
    // After this barrier the outgoing gradients are complete, and the stage of step s + 1 has
    // arrived.
    ptx::wait_copies<Layout::kAhead - 2>();
    __syncthreads();

    send_rows<blocks, kSent, kAll, kOwn>(base + Layout::kOutgoing + parity * Layout::kOutgoingBytes,
                                         base + Layout::kState + (parity ^ 1) * Layout::kStateBytes,
                                         barriers + 8 * (parity ^ 1), rank, rows_each);
    // While the gradients are being sent, this stores grad_gates and starts the next prefetch.
    for (int e = thread; e < active * (kOwn / 4); e += kFp32Threads) {
      const int place = e % (kOwn / 4) * 4, r = e / (kOwn / 4);
      const int m = place / units, u = first_unit + place % units;
      const int left = static_cast<int>(hidden) - u;
      if (left <= 0) continue;
      store_floats_of(static_cast<float*>(args.grad_gates) +
                          ((d * all_rows + start + r) * kGates + m) * hidden + u,
                      own + r * kOwn + place, left, vector);
    }
    fetch(s + Layout::kAhead);
    given = active;
  }
  if (real && args.grad_h0 != nullptr) static_cast<float*>(args.grad_h0)[own_state] = grad_h;
  if (real && args.grad_c0 != nullptr) static_cast<float*>(args.grad_c0)[own_state] = grad_c;
  // No block may exit while others still send into its shared memory.
  ptx::sync_cluster();
#endif
}

}  // namespace treadle
