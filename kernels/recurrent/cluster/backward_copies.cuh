// The copies that the backward cluster kernel makes between global and shared memory. It prefetches
// gates, c and grad_output some steps ahead (cp.async, kDepth stages), and stores grad_gates after
// they are computed. The copying threads are those of the copy warp or, without one, all threads of
// the block. Each of them has a BackwardCopies object.
#pragma once

#include "kernels/recurrent/cluster/cluster.cuh"

namespace treadle {

template <class Layout>
struct BackwardCopies {
  const PersistentBackward& args;
  const Group& group;
  const bool vector;
  const char* chunk16_from[Layout::kChunks16];  // gates, or the gradient of the output
  uint32_t chunk16_at[Layout::kChunks16];
  int chunk16_row[Layout::kChunks16];
  bool of_gates[Layout::kChunks16];
  const char* c_from[Layout::kCChunks16];
  uint32_t c_at[Layout::kCChunks16];
  int c_row[Layout::kCChunks16];
  char* quad_to[Layout::kQuads];  // gradients: four units of one gate of one row
  uint32_t quad_at[Layout::kQuads];
  int quad_row[Layout::kQuads], quad_left[Layout::kQuads];

  __device__ __forceinline__ BackwardCopies(const PersistentBackward& args, const Group& group,
                                            uint32_t base, int first_unit, int stride, int thread)
      : args(args), group(group), vector(args.sizes.hidden % 4 == 0) {
    constexpr int units = Layout::kUnits, kRows = Layout::kRows, kGates = Layout::kGates;
    const int64_t hidden = args.sizes.hidden, d = group.direction, first_row = group.rows.first;
    const int64_t all_rows = group.rows.start(static_cast<int>(args.sizes.steps));
    // Without grad_output, its part of a stage is neither fetched nor read.
    const int arrays = args.grad_output != nullptr ? kGates + 1 : kGates;
#pragma unroll
    for (int i = 0; i < Layout::kChunks16; ++i) {
      const int e = thread + i * Layout::kCopying;
      const int chunk16 = e % (units / 8), r = e / (units / 8) % kRows, m = e / (units / 8) / kRows;
      const int64_t u = first_unit + chunk16 * 8, row = first_row + r;
      of_gates[i] = m < kGates;
      chunk16_row[i] = m < arrays && u < hidden ? r : kRows;
      chunk16_at[i] = base + Layout::kStages + (m * kRows + r) * Layout::kStageRow + chunk16 * 16;
      chunk16_from[i] =
          m < kGates
              ? static_cast<const char*>(args.gates) +
                    2 * (d * args.gate_direction + row * args.gate_row + m * args.gate_gate + u)
              : static_cast<const char*>(args.grad_output) +
                    2 * (d * args.grad_direction + row * args.grad_row + u);
    }
#pragma unroll
    for (int i = 0; i < Layout::kCChunks16; ++i) {
      const int e = thread + i * Layout::kCopying, chunk16 = e % (units / 4), r = e / (units / 4);
      const int64_t u = first_unit + chunk16 * 4;
      c_row[i] = r < kRows && u < hidden ? r : kRows;
      c_at[i] = base + Layout::kStages + Layout::kCStates + r * Layout::kCRow + chunk16 * 16;
      c_from[i] = static_cast<const char*>(args.c_states) +
                  4 * (d * args.c_direction + (first_row + r) * args.c_row + u);
    }
#pragma unroll
    for (int i = 0; i < Layout::kQuads; ++i) {
      const int e = thread + i * Layout::kCopying;
      const int quad = e % (units / 4), r = e / (units / 4) % kRows, m = e / (units / 4) / kRows;
      const int64_t u = first_unit + quad * 4;
      quad_left[i] = static_cast<int>(hidden - u);
      quad_row[i] = m < kGates && u < hidden ? r : kRows;
      quad_at[i] = base + Layout::kOutgoing + (m * Layout::kGroups + quad / 4) * 32 * stride +
                   quad % 4 * 8 * stride + r * 8;
      quad_to[i] = static_cast<char*>(args.grad_gates) +
                   2 * (((d * all_rows + first_row + r) * kGates + m) * hidden + u);
    }
  }

  // Does not use group.backward_time(): the call would change the machine code. If group.reverse is
  // 1, the forward pass ran backward in time.
  __device__ __forceinline__ int time(int s) const {
    return group.reverse == 0 ? static_cast<int>(args.sizes.steps) - 1 - s : s;
  }

  // Commits a group of copies even if there is nothing to copy, because wait_copies counts groups.
  __device__ __forceinline__ void fetch(int s) const {
    if (s < args.sizes.steps) {
      const int active = group.rows.active(time(s));
      const int64_t start = group.rows.start(time(s));
      const int stage = s % Layout::kDepth * Layout::kStageBytes;
      const int64_t gate_step = start * static_cast<int>(args.gate_row) * 2;
      const int64_t grad_step = start * static_cast<int>(args.grad_row) * 2;
      const int64_t c_step = start * static_cast<int>(args.c_row) * 4;
#pragma unroll
      for (int i = 0; i < Layout::kChunks16; ++i) {
        if (chunk16_row[i] >= active) continue;
        ptx::copy16_async(chunk16_at[i] + stage,
                          chunk16_from[i] + (of_gates[i] ? gate_step : grad_step));
      }
#pragma unroll
      for (int i = 0; i < Layout::kCChunks16; ++i) {
        if (c_row[i] < active) ptx::copy16_async(c_at[i] + stage, c_from[i] + c_step);
      }
    }
    ptx::commit_copies();
  }

  __device__ __forceinline__ void begin() const {
    for (int s = 0; s < Layout::kAhead; ++s) fetch(s);
    ptx::wait_copies<Layout::kAhead - 1>();
  }

  // Called before the step barrier of step s. Waits until the stage of step s + 1 has arrived.
  __device__ __forceinline__ void before() const { ptx::wait_copies<Layout::kAhead - 2>(); }

  // Called after the step barrier of step s: stores grad_gates of step s, then refills a stage.
  __device__ __forceinline__ void after(int s) const {
    const int active = group.rows.active(time(s));
    const int64_t step =
        group.rows.start(time(s)) * (Layout::kGates * static_cast<int>(args.sizes.hidden)) * 2;
#pragma unroll
    for (int i = 0; i < Layout::kQuads; ++i) {
      if (quad_row[i] >= active) continue;
      store_four(quad_to[i] + step, ptx::load8(quad_at[i] + (s & 1) * Layout::kOutgoingBytes),
                 quad_left[i], vector);
    }
    fetch(s + Layout::kAhead);
  }
};

}  // namespace treadle
