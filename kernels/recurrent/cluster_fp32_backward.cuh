// The regime "cluster" in float32, backward, for any cell: cluster_float.cuh says how.
#pragma once

#include "kernels/cluster_float.cuh"

namespace treadle {

template <int gates, int units, int blocks>
using FloatBackward =
    ClusterFloat<units, 4, gates * units * blocks, units, gates + 2, gates * units>;

template <template <class> class CellOf, int units, int blocks>
__global__ void __launch_bounds__(kFloatThreads, 1)
    cluster_float_backward(const __grid_constant__ PersistentBackward args, int rows_each) {
  begin_kernel();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  using Cell = CellOf<float>;
  static_assert(!Cell::kReadsOldCell, "the slice before is not kept");
  constexpr int kGates = Cell::kGates, kSent = kGates * units, kAll = kSent * blocks;
  using Is = FloatBackward<kGates, units, blocks>;
  extern __shared__ __align__(128) unsigned char memory[];
  auto* states = reinterpret_cast<float*>(memory + Is::kState);
  auto* sums = reinterpret_cast<float*>(memory + Is::kSums);
  auto* staged = reinterpret_cast<float*>(memory + Is::kStaged);
  auto* slices = reinterpret_cast<float*>(memory + Is::kInput);
  const uint32_t base = ptx::shared_address(memory), barriers = base + Is::kBarriers;
  const int thread = threadIdx.x, rank = static_cast<int>(ptx::block_in_cluster());
  const Group group(args.sizes, static_cast<int>(blockIdx.x) / blocks, rows_each);
  const GroupRows& rows = group.rows;
  const int64_t hidden = args.sizes.hidden, d = group.direction;
  const int steps = static_cast<int>(args.sizes.steps), first_unit = rank * units;
  const bool any_grad = args.grad_output != nullptr, vector = hidden % 4 == 0;

  // K: by block, gate, unit.
  float weights[Is::kEach][Is::kDepth];
  const auto* weight = static_cast<const float*>(args.weight_hh) + d * kGates * hidden * hidden;
#pragma unroll
  for (int i = 0; i < Is::kDepth; ++i) {
    const int k = thread / Is::kGroups * Is::kDepth + i;
    const int64_t v = k / kSent * units + k % units, m = k / units % kGates;
#pragma unroll
    for (int o = 0; o < Is::kEach; ++o) {
      const int64_t u = first_unit + thread % Is::kGroups * Is::kEach + o;
      weights[o][i] =
          u < hidden && v < hidden ? __ldg(weight + (m * hidden + v) * hidden + u) : 0.0f;
    }
  }
  for (int e = thread; e < kFloatRows * kAll; e += kFloatThreads) states[e] = 0;
  const uint32_t expected = static_cast<uint32_t>(rows_each) * kAll * 4;
  if (thread == 0) {
    for (int i = 0; i < 2; ++i) ptx::init_barrier(barriers + 8 * i);
    ptx::publish_barriers();
    for (int i = 0; i < 2; ++i) ptx::arrive_expecting(barriers + 8 * i, expected);
  }

  // Direction 1 ran backward in time.
  const auto time = [&](int s) { return d == 0 ? steps - 1 - s : s; };
  const auto fetch = [&](int s) {
    if (s < steps) {
      const int64_t start = rows.start(time(s)) + rows.first;
      const int active = rows.active(time(s));
      const uint32_t slice = base + Is::kInput + s % Is::kSlices * Is::kSliceBytes;
#pragma unroll
      for (int e = thread; e < (kGates + 2) * kFloatRows * (units / 4); e += kFloatThreads) {
        const int u = first_unit + e % (units / 4) * 4, r = e / (units / 4) % kFloatRows;
        const int m = e / (units / 4) / kFloatRows;
        if (r >= active || u >= hidden || (m == kGates && !any_grad)) continue;
        const float* from =
            m < kGates    ? static_cast<const float*>(args.gates) + d * args.gate_direction +
                                (start + r) * args.gate_row + m * args.gate_gate
            : m == kGates ? static_cast<const float*>(args.grad_output) + d * args.grad_direction +
                                (start + r) * args.grad_row
                          : static_cast<const float*>(args.cells) + d * args.cell_direction +
                                (start + r) * args.cell_row;
        ptx::copy16_async(slice + e * 16, from + u);
      }
    }
    ptx::commit_copies();
  };
  for (int s = 0; s < Is::kAhead; ++s) fetch(s);
  ptx::wait_copies<Is::kAhead - 1>();
  __syncthreads();
  ptx::sync_cluster();

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
  int given = 0;  // rows that gave gradients the step before; of others not even 0 x inf counts

  // One more than there are steps, for the gradient of h before the first.
#pragma unroll 1
  for (int s = 0; s <= steps; ++s) {
    const int parity = s & 1;
    const bool last = s == steps;
    const int64_t start = last ? 0 : rows.start(time(s)) + rows.first;
    const int active = last ? 0 : rows.active(time(s));
    const float* slice = slices + s % Is::kSlices * (Is::kSliceBytes / 4);
    if (s > 0) ptx::wait_barrier(barriers + 8 * parity, (s - 1) >> 1 & 1);
    multiply_rows<Is, kAll, units>(weights, states + parity * (Is::kStateBytes / 4), sums,
                                   rows_each);
    __syncthreads();
    if (s > 0 && thread == 0) ptx::arrive_expecting(barriers + 8 * parity, expected);

    float* own = staged + parity * (Is::kStagedBytes / 4);
    if (mine) {
      if (row < given) grad_h += sum_of_warps<units>(sums, row, unit);
      // A row that has no such step keeps its gradients, and gives none.
      float grads[kGates] = {};
      if (real && row < active) {
        const float* in_slice = slice + row * units + unit;
        float gates[kGates];
#pragma unroll
        for (int m = 0; m < kGates; ++m) gates[m] = in_slice[m * kFloatRows * units];
        const float grad_out = any_grad ? in_slice[kGates * kFloatRows * units] : 0.0f;
        const float new_cell = in_slice[(kGates + 1) * kFloatRows * units];
        const auto grad =
            Cell::backward(Cell::slopes(gates, 0.0f, new_cell), grad_h + grad_out, grad_c);
        grad_c = grad.old_cell;
        grad_h = 0;
#pragma unroll
        for (int m = 0; m < kGates; ++m) grads[m] = grad.gates[m];
      }
#pragma unroll
      for (int m = 0; m < kGates; ++m) own[row * kSent + m * units + unit] = grads[m];
    }
    if (last) break;
    ptx::wait_copies<Is::kAhead - 2>();
    __syncthreads();

    send_rows<blocks, kSent, kAll>(base + Is::kStaged + parity * Is::kStagedBytes,
                                   base + Is::kState + (parity ^ 1) * Is::kStateBytes,
                                   barriers + 8 * (parity ^ 1), rank, rows_each);
    for (int e = thread; e < active * (kSent / 4); e += kFloatThreads) {
      const int place = e % (kSent / 4) * 4, r = e / (kSent / 4);
      const int m = place / units, u = first_unit + place % units;
      const int left = static_cast<int>(hidden) - u;
      if (left <= 0) continue;
      store_floats_of(static_cast<float*>(args.grad_gates) +
                          ((d * all_rows + start + r) * kGates + m) * hidden + u,
                      own + r * kSent + place, left, vector);
    }
    fetch(s + Is::kAhead);
    given = active;
  }
  if (real && args.grad_h0 != nullptr) static_cast<float*>(args.grad_h0)[own_state] = grad_h;
  if (real && args.grad_c0 != nullptr) static_cast<float*>(args.grad_c0)[own_state] = grad_c;
  ptx::sync_cluster();
#endif
}

}  // namespace treadle
