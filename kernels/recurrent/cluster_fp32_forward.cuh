// The regime "cluster" in float32, forward, for any cell: cluster_float.cuh says how.
#pragma once

#include "kernels/cluster_float.cuh"

namespace treadle {

template <int gates, int units, int blocks>
using FloatForward = ClusterFloat<gates * units, 2 * gates, units * blocks, units, gates, units>;

template <template <class> class CellOf, int units, int blocks>
__global__ void __launch_bounds__(kFloatThreads, 1)
    cluster_float_forward(const __grid_constant__ PersistentForward args, int rows_each) {
  begin_kernel();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  using Cell = CellOf<float>;
  constexpr int kGates = Cell::kGates, kAll = units * blocks, kOutputs = kGates * units;
  using Is = FloatForward<kGates, units, blocks>;
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
  const bool save = args.gates != nullptr, vector = hidden % 4 == 0;

  float weights[Is::kEach][Is::kDepth];
  const auto* weight = static_cast<const float*>(args.weight_hh) + d * kGates * hidden * hidden;
#pragma unroll
  for (int o = 0; o < Is::kEach; ++o) {
    const int output = thread % Is::kGroups * Is::kEach + o;
    const int64_t u = first_unit + output % units;
    const float* row = weight + (output / units * hidden + u) * hidden;
#pragma unroll
    for (int i = 0; i < Is::kDepth; ++i) {
      const int64_t k = thread / Is::kGroups * Is::kDepth + i;
      weights[o][i] = u < hidden && k < hidden ? __ldg(row + k) : 0.0f;
    }
  }
  const int64_t state_row = d * args.sizes.batch + rows.first;
  for (int e = thread; e < rows_each * kAll; e += kFloatThreads) {
    const int r = e / kAll, k = e % kAll;
    states[e] = r < rows.count && k < hidden
                    ? static_cast<const float*>(args.h0)[(state_row + r) * hidden + k]
                    : 0.0f;
  }
  const uint32_t expected = static_cast<uint32_t>(rows_each) * kAll * 4;
  if (thread == 0) {
    for (int i = 0; i < 2; ++i) ptx::init_barrier(barriers + 8 * i);
    ptx::publish_barriers();
    for (int i = 0; i < 2; ++i) ptx::arrive_expecting(barriers + 8 * i, expected);
  }

  const auto time = [&](int s) { return d == 0 ? s : steps - 1 - s; };
  const auto fetch = [&](int s) {
    if (s < steps) {
      const int64_t start = rows.start(time(s)) + rows.first;
      const int active = rows.active(time(s));
      const uint32_t slice = base + Is::kInput + s % Is::kSlices * Is::kSliceBytes;
      const auto* from = static_cast<const float*>(args.products) + d * args.product_direction;
#pragma unroll
      for (int e = thread; e < kGates * kFloatRows * (units / 4); e += kFloatThreads) {
        const int u = first_unit + e % (units / 4) * 4, r = e / (units / 4) % kFloatRows;
        const int m = e / (units / 4) / kFloatRows;
        if (r >= active || u >= hidden) continue;
        ptx::copy16_async(slice + e * 16,
                          from + (start + r) * args.product_row + m * args.product_gate + u);
      }
    }
    ptx::commit_copies();
  };
  for (int s = 0; s < Is::kAhead; ++s) fetch(s);
  ptx::wait_copies<Is::kAhead - 1>();
  __syncthreads();
  ptx::sync_cluster();

  // This thread's unit of one row.
  const int row = thread / units, unit = thread % units;
  const bool mine = row < rows_each;
  const bool real = mine && row < rows.count && first_unit + unit < hidden;
  const int64_t own_state = (state_row + row) * hidden + first_unit + unit;
  float c = real ? static_cast<const float*>(args.c0)[own_state] : 0.0f, last = 0;
  float bias[kGates];
#pragma unroll
  for (int m = 0; m < kGates; ++m) {
    bias[m] =
        real && args.bias != nullptr
            ? static_cast<const float*>(args.bias)[(d * kGates + m) * hidden + first_unit + unit]
            : 0.0f;
  }
  const int64_t all_rows = rows.start(steps);

#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
    const int parity = s & 1;
    const int64_t start = rows.start(time(s)) + rows.first;
    const int active = rows.active(time(s));
    const float* state = states + parity * (Is::kStateBytes / 4);
    float* slice = slices + s % Is::kSlices * (Is::kSliceBytes / 4);
    if (s > 0) ptx::wait_barrier(barriers + 8 * parity, (s - 1) >> 1 & 1);
    multiply_rows<Is, kAll, kOutputs>(weights, state, sums, rows_each);
    __syncthreads();
    if (s > 0 && thread == 0) ptx::arrive_expecting(barriers + 8 * parity, expected);

    float* own = staged + parity * (Is::kStagedBytes / 4);
    if (mine) {
      float gates[kGates];
      float* const in_slice = slice + row * units + unit;
#pragma unroll
      for (int m = 0; m < kGates; ++m) {
        gates[m] = in_slice[m * kFloatRows * units] + bias[m] +
                   sum_of_warps<kOutputs>(sums, row, m * units + unit);
      }
      last = state[row * kAll + first_unit + unit];
      if (real && row < active) {
        const auto next = Cell::forward(gates, c);
        c = next.new_cell;
        last = next.new_h;
      }
      own[thread] = last;
      if (save) {
#pragma unroll
        for (int m = 0; m < kGates; ++m) in_slice[m * kFloatRows * units] = gates[m];
      }
    }
    ptx::wait_copies<Is::kAhead - 2>();
    __syncthreads();

    if (s + 1 < steps) {
      send_rows<blocks, units, kAll>(base + Is::kStaged + parity * Is::kStagedBytes,
                                     base + Is::kState + (parity ^ 1) * Is::kStateBytes,
                                     barriers + 8 * (parity ^ 1), rank, rows_each);
    }
    for (int e = thread; e < active * (units / 4); e += kFloatThreads) {
      const int quad = e % (units / 4), r = e / (units / 4);
      const int left = static_cast<int>(hidden) - first_unit - quad * 4;
      if (left <= 0) continue;
      store_floats_of(static_cast<float*>(args.output) + (start + r) * args.output_row +
                          d * hidden + first_unit + quad * 4,
                      own + r * units + quad * 4, left, vector);
    }
    if (save) {
#pragma unroll
      for (int e = thread; e < kGates * kFloatRows * (units / 4); e += kFloatThreads) {
        const int quad = e % (units / 4), r = e / (units / 4) % kFloatRows;
        const int m = e / (units / 4) / kFloatRows;
        const int left = static_cast<int>(hidden) - first_unit - quad * 4;
        if (r >= active || left <= 0) continue;
        const int64_t at = ((d * all_rows + start + r) * kGates + m) * hidden;
        store_floats_of(static_cast<float*>(args.gates) + at + first_unit + quad * 4, slice + e * 4,
                        left, vector);
      }
    }
    fetch(s + Is::kAhead);
  }
  if (real) {
    static_cast<float*>(args.h)[own_state] = last;
    static_cast<float*>(args.c)[own_state] = c;
  }
  ptx::sync_cluster();
#endif
}

}  // namespace treadle
