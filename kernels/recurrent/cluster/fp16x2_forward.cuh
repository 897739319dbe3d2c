// The forward cluster kernel for float32 on tensor cores (cluster/fp16x2.h):
// gates_t = products_t + bias + h_{t-1} W_hh^T, then the cell. Barriers and the exchange of h are
// the same as in cluster/dense_forward.cuh. A lane fetches the input products of its own
// (unit, row) pairs, and stores their output and gates. With `ragged`, rows may have no step, or
// reset after it (cluster/fp16x2_ragged.cuh). Then the h that is sent may differ from the output.
// Twin: kernels/recurrent/cpu/rows_forward.h.
#pragma once

#include "kernels/math/h_bound.h"
#include "kernels/recurrent/cluster/call.cuh"
#include "kernels/recurrent/cluster/fp16x2_begin.cuh"
#include "kernels/recurrent/cluster/fp16x2_ragged.cuh"

namespace treadle {

template <class Cell, int units, int blocks, int stride, bool ragged>
using SplitForwardOf = SplitForward<Cell::kGates, Cell::kStateGates, units, blocks, stride, ragged>;

template <class Cell, int units, int blocks, int stride, bool ragged>
__global__ void __launch_bounds__(SplitForwardOf<Cell, units, blocks, stride, ragged>::kThreads, 1)
    cluster_split_forward(const __grid_constant__ PersistentForward args, int rows_each) {
  begin_kernel();
#if TREADLE_CLUSTER_CODE
  constexpr int kGates = Cell::kGates, kStateGates = Cell::kStateGates;
  constexpr int kFirstInput = kGates - Cell::kInputGates;
  constexpr bool kStaysSmall = Cell::kHBound == math::HBound::kOne;  // |h| <= 1 after a step
  using L = SplitForwardOf<Cell, units, blocks, stride, ragged>;
  static_assert(L::places_agree());
  constexpr int kParts = L::kParts, kChunks = L::kChunks, kItems = L::kItems;
  extern __shared__ __align__(128) unsigned char memory[];
  const uint32_t base = ptx::shared_address(memory);
  const int thread = threadIdx.x, lane = thread % kWarp, warp = thread / kWarp;
  const int part = warp % kParts, unit_group = warp / kParts;
  const int rank = static_cast<int>(ptx::block_in_cluster());
  const Group group(args.sizes, static_cast<int>(blockIdx.x) / blocks, rows_each);
  const GroupRows& rows = group.rows;
  const int64_t hidden = args.sizes.hidden, d = group.direction;
  const int steps = static_cast<int>(args.sizes.steps), first_unit = rank * units;
  const int g = lane / 4, q = lane % 4;
  const bool save = args.gates != nullptr;
  const float* const weight = weight_hh_of<Cell>(args, d);

  // ---- rows of W_hh: first their biases and fp16x2 scales, then their fragments, with k permuted
  // as in cluster/cluster.cuh
  const bool wide_loads = in_fours(weight, hidden);
  describe_rows<Cell, L>(args, d, memory, first_unit);
  uint32_t registers[L::kKept * 4] = {};
  const SpreadWeights<L> weights(registers, base + L::kWeights, warp, lane);
  struct Fragments {
    uint4 highs[kStateGates], lows[kStateGates];
  };
  const auto load = [&](int c) {
    const int in_block = unit_group * 16 + g;
    const int64_t u = first_unit + in_block, k = (part * kChunks + c) * 16 + 4 * q;
    Fragments found;
#pragma unroll
    for (int m = 0; m < kStateGates; ++m) {
      const float* at = weight + (Cell::weight_block(m) * hidden + u) * hidden + k;
      const uint32_t exact = ptx::load4(base + L::kExact + m * 4) >> in_block;
      const auto split = [&](int more) {
        const float scale =
            ptx::load_float(base + L::kBias + (m * units + in_block + more) * 8 + 4);
        const bool any = u + more < hidden && !(exact >> more & 1);
        const float4 x = load_four_floats(at + more * hidden, any ? hidden - k : 0, wide_loads);
        return SplitFour(x, SplitRow::factor_of(scale));
      };
      const SplitFour x = split(0), y = split(8);
      found.highs[m] = {x.high.x, y.high.x, x.high.y, y.high.y};
      found.lows[m] = {x.low.x, y.low.x, x.low.y, y.low.y};
    }
    return found;
  };
  load_in_batches<kChunks, kStateGates == 1 ? 4 : 1>(load, [&](int c, const Fragments& of) {
#pragma unroll
    for (int m = 0; m < kStateGates; ++m) {
      weights.set((c * kStateGates + m) * 2, of.highs[m]);
      weights.set((c * kStateGates + m) * 2 + 1, of.lows[m]);
    }
  });

  // ---- h0, and the rows that fma multiplies
  const int64_t state_row = d * args.sizes.batch + rows.first;
  const GroupResets<ragged> resets{args.resets, args.sizes, group};
  const auto first_anew = [&](int row) {
    return ragged && args.resets.marks != nullptr && resets.before_first(row);
  };
  const auto first_h = [&](int row, int64_t u) {
    const float h = __ldg(static_cast<const float*>(args.h0) + (state_row + row) * hidden + u);
    return ragged ? resets.first_h(first_anew(row), h, row, u) : h;
  };
  unsigned exact_rows = put_first_states<L>(first_h, rows.count, static_cast<int>(hidden), base);
  unsigned exact_weights = 0;
  for (int m = 0; m < kStateGates; ++m) exact_weights |= ptx::load4(base + L::kExact + m * 4);
  uint32_t expected = kChunks * L::kTileBytes;
  if (thread == 0) begin_barriers<L, kParts>(base, expected);

  // ---- the items (unit, row) of this lane; c stays in registers
  uint32_t place[kItems], own_stage[kItems], own_sums[kItems], own_bias[kItems];
  bool turn[kItems], mine[kItems], real[kItems];
  int row_of[kItems], unit_of[kItems];
  // Byte offsets in a step, relative to the pointers to the group's rows.
  uint32_t product_at[kItems], output_at[kItems], gates_at[kItems];
  float c[kItems], h[kItems] = {};
  const int64_t batch = args.sizes.batch, way = group.reverse == 0 ? 1 : -1;
  const int64_t first_row =
      ragged ? 0 : (group.reverse == 0 ? 0 : args.sizes.steps - 1) * batch + rows.first;
  const int64_t all_rows = ragged ? rows.start(steps) : args.sizes.steps * batch;
  const char* product_from =
      static_cast<const char*>(args.products) +
      4 * (d * args.product_direction + first_row * args.product_row + first_unit);
  char* output_to =
      static_cast<char*>(args.output) + 4 * (first_row * args.output_row + d * hidden + first_unit);
  char* gates_to = static_cast<char*>(args.gates) +
                   4 * ((d * all_rows + first_row) * kGates * hidden + first_unit);
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    // Each group of units gives its first slot to a different warp, so that all schedulers have
    // slots.
    const int slot = i * kParts + (part + unit_group * L::kSlots) % kParts;
    turn[i] = slot < L::kSlots;
    const int word = turn[i] ? slot * kWarp + lane : 0;
    const auto at = L::place_of(word);
    const int row = at.exists ? at.row : 0, unit = unit_group * 16 + at.unit % 16;
    const int64_t u = first_unit + unit;
    row_of[i] = row, unit_of[i] = unit;
    mine[i] = turn[i] && at.exists;
    real[i] = mine[i] && row < rows.count && u < hidden;
    place[i] = base + L::kOutgoing + unit_group * L::kTileBytes + row * 32 + at.unit % 16 * 2;
    own_stage[i] = base + L::kStages + unit_group * L::kSumBytes + word * 4;
    own_sums[i] = base + L::kSums + unit_group * kStateGates * L::kSumBytes + word * 4;
    own_bias[i] = base + L::kBias + unit * 8;
    product_at[i] = static_cast<uint32_t>(4 * (row * args.product_row + unit));
    output_at[i] = static_cast<uint32_t>(4 * (row * args.output_row + unit));
    gates_at[i] = static_cast<uint32_t>(4 * (row * kGates * hidden + unit));
    if (kItems == 1) keep(place[i]), keep(own_sums[i]);
    c[i] = real[i] ? static_cast<const float*>(args.c0)[(state_row + row) * hidden + u] : 0.0f;
    if constexpr (ragged) {
      if (real[i]) c[i] = resets.first_c(first_anew(row), c[i], row, u), h[i] = first_h(row, u);
    }
  }
  RaggedRing<L, ragged> ring(resets, base);
  const bool fills = ragged && warp == kParts - 1;
  const auto fetch = [&](int s) {
    RaggedStep step{0, rows.count, 0};
    if constexpr (ragged) step = ring.of(s);
    const char* const from = product_from + step.start * args.product_row * 4;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
#pragma unroll
      for (int m = kFirstInput; m < kGates; ++m) {
        if (s < steps && real[i] && (!ragged || row_of[i] < step.active)) {
          ptx::copy4_async(
              own_stage[i] + s % L::kDepth * L::kStageBytes + m * L::kGroups * L::kSumBytes,
              from + m * args.product_gate * 4 + product_at[i]);
        }
      }
    }
    if constexpr (!ragged) product_from += way * batch * args.product_row * 4;
    ptx::commit_copies();
  };
  clear<L>(base + L::kStages, L::kDepth * L::kStageBytes);
  if constexpr (ragged) {
    if (fills) ring.begin();
  }
  __syncthreads();
  for (int s = 0; s < L::kAhead; ++s) fetch(s);
  // No block may send before all blocks have initialised their barriers and written h0.
  ptx::sync_cluster();

  const SplitSends<L> sends(base, rank);
  uint32_t operands_from[4];
  SplitOperands<L>::places(operands_from, base + L::kState, part, lane);
  uint32_t sums_to = base + L::kSums + part * L::kPartBytes +
                     unit_group * kStateGates * L::kSumBytes +
                     (L::kWide > 0 ? (g * L::kPairs + q) * 16 : 0);
  uint32_t narrow_to = base + L::kSums + part * L::kPartBytes +
                       unit_group * kStateGates * L::kSumBytes + L::kPairs * 128 +
                       (g * L::kNarrow + q) * 8;
  if (kItems == 1) keep(sums_to), keep(narrow_to);
  const bool rearms = unit_group == 0 && lane == 0;
  const uint32_t own_barrier = base + L::kBarriers + 8 * part;

#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
    const uint32_t parity = (s & 1) * L::kParity, other = L::kParity - parity;
    const uint32_t stage = s % L::kDepth * L::kStageBytes;
    unsigned now_exact = s == 0 || !kStaysSmall ? exact_rows : 0;
    RaggedStep step{0, rows.count, 0};
    unsigned anew = 0;  // rows that reset after this step
    if constexpr (ragged) {
      step = ring.of(s), anew = ring.resets_after(s);
      // The sums of rows without this step are not used.
      now_exact = exact_rows & step.rows();
      if (kStaysSmall) exact_rows &= ~step.rows();
      if (anew != 0) {
        exact_rows =
            (exact_rows & ~anew) | too_large(resets, anew, group.forward_time(s + 1, steps));
      }
    }

    // ---- work that does not depend on h_{t-1}
    float gates[kItems][kGates], scale[kItems][kStateGates];
    const auto prepare = [&] {
      ptx::wait_copies<L::kAhead - 1>();  // waits only for this thread's copies
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        if (!turn[i]) continue;
#pragma unroll
        for (int m = 0; m < kGates; ++m) {
          const uint2 both = ptx::load8(own_bias[i] + m * units * 8);
          gates[i][m] = __uint_as_float(both.x);
          if (m < kStateGates) {
            scale[i][m] = now_exact >> row_of[i] & 1 ? 1.0f : __uint_as_float(both.y);
          }
          if (m < kFirstInput) continue;
          gates[i][m] += ptx::load_float(own_stage[i] + stage + m * L::kGroups * L::kSumBytes);
        }
      }
    };
    // If the sums leave enough registers, this runs while h arrives.
    if (kItems == 1) prepare();
    uint4 fragment = weights.first();
    ptx::wait_barrier(own_barrier + parity, s >> 1 & 1);

    // ---- product with h_{t-1}
    SplitSums<L> sum;
    SplitOperands<L> operands(operands_from, parity);
    sum.multiply(weights, fragment, operands, parity);
#pragma unroll
    for (int m = 0; m < kStateGates; ++m) {
      if (L::kWide > 0 && q < L::kPairs) {
        ptx::store16(sums_to + m * L::kSumBytes, sum.wide(m));
      }
      if (L::kNarrow > 0 && q < L::kNarrow) {
        const float2 x = sum.narrow(m);
        ptx::store_floats(narrow_to + m * L::kSumBytes, x.x, x.y);
      }
    }
    // After this barrier, as in cluster/forward.cuh, the mbarrier of this parity may be armed for
    // step s + 2.
    ptx::sync_threads(1 + unit_group, kParts * kWarp);
    if (rearms) ptx::arrive_expecting(own_barrier + parity, expected);
    if ((now_exact | exact_weights) != 0) {
      for (int p = 0; p < kParts; ++p) {
        ptx::wait_barrier(base + L::kBarriers + 8 * p + parity, s >> 1 & 1);
      }
      multiply_exactly<Cell, L>(weight, hidden, first_unit, base, parity, now_exact,
                                power_of_two(-kSplitState));
      ptx::sync_threads(1 + unit_group, kParts * kWarp);
    }

    // ---- the cell, for all slots of a warp together
    if (kItems > 1) prepare();
    const auto finish = [&](auto slots) {
      constexpr int kCount = decltype(slots)::value;
      float parts[kCount][kStateGates][kParts];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
#pragma unroll
        for (int m = 0; m < kStateGates; ++m) {
#pragma unroll
          for (int k = 0; k < kParts; ++k) {
            parts[i][m][k] = ptx::load_float(own_sums[i] + k * L::kPartBytes + m * L::kSumBytes);
          }
        }
      }
      __syncwarp();  // as in cluster/dense_forward.cuh
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
#pragma unroll
        for (int m = 0; m < kStateGates; ++m) {
          gates[i][m] = fmaf(sum_in_pairs(parts[i][m]), scale[i][m], gates[i][m]);
        }
        const auto next = Cell::forward(gates[i], c[i]);
        const bool runs = !ragged || row_of[i] < step.active;  // otherwise h and c stay
        c[i] = runs ? next.new_cell : c[i];
        h[i] = runs ? next.new_h : h[i];
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        float sent = real[i] ? h[i] : 0.0f;
        if constexpr (ragged) {
          if (real[i] && (anew >> row_of[i] & 1)) {
            const auto [reset_h, reset_c] = resets.template states<float>(
                true, group.forward_time(s + 1, steps), row_of[i], first_unit + unit_of[i]);
            sent = reset_h, c[i] = reset_c;
          }
        }
        const SplitFloat split(sent * power_of_two(kSplitState));
        if (!mine[i]) continue;
        if ((ragged || !kStaysSmall) && (exact_rows >> row_of[i] & 1)) {
          put_state<L>(base + L::kOutgoing + parity, row_of[i], unit_of[i], sent, true, 1.0f);
          continue;
        }
        ptx::store2(place[i] + parity, split.high);
        ptx::store2(place[i] + parity + L::kHalfBytes, split.low);
      }
    };
    with_slots<kItems>(turn[kItems - 1], turn[0], finish);
    ptx::sync_threads(kSendBarrier, L::kThreads);
    if (s + 1 < steps) sends.send(parity, other);

    // ---- copies, while h is being sent
    char* const outputs = output_to + step.start * args.output_row * 4;
    char* const all_gates = gates_to + step.start * kGates * hidden * 4;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (real[i] && (!ragged || row_of[i] < step.active)) {
        *reinterpret_cast<float*>(outputs + output_at[i]) = h[i];
#pragma unroll
        for (int m = 0; m < kGates; ++m) {
          if (save)
            *reinterpret_cast<float*>(all_gates + m * hidden * 4 + gates_at[i]) = gates[i][m];
        }
      }
    }
    if constexpr (!ragged) {
      output_to += way * batch * args.output_row * 4;
      gates_to += way * batch * kGates * hidden * 4;
    }
    // Fetches into the stage of step s - 1, which this thread has read.
    fetch(s + L::kAhead);
    if constexpr (ragged) {
      if (fills) ring.advance(s);
    }
  }

#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (!real[i]) continue;
    const int64_t at = (state_row + row_of[i]) * hidden + first_unit + unit_of[i];
    static_cast<float*>(args.h)[at] = h[i];
    static_cast<float*>(args.c)[at] = c[i];
  }
  // No block may exit while others still send into its shared memory.
  ptx::sync_cluster();
#endif
}

#ifndef __CUDACC_RTC__
// ---- launch

template <class Kind, bool ragged>
cudaError_t run_cluster_split(const PersistentForward* args, const ClusterCall& call) {
  using Cell = typename Kind::template Cell<float>;
  return visit_shape(call.plan.shape, [&](auto index) {
    constexpr ClusterShape s = kClusterShapes[decltype(index)::value];
    constexpr RowCounts counts = kKernels<Cell, decltype(index)::value>.split(ragged);
    return visit_rows<counts.bits>(call.plan.tile_rows, [&](auto count) {
      constexpr int rows = decltype(count)::value;
      using Layout = SplitForward<Cell::kGates, Cell::kStateGates, s.units, s.blocks, rows, ragged>;
      static_assert(s.tiles == 1 && Layout::kSharedBytes <= kMostSharedBytes);
      const auto kernel =
          TREADLE_FUNCTION(PersistentKernel<PersistentForward>, cluster_split_forward, (Cell),
                           (s.units, s.blocks, rows, ragged));
      return call(kernel, Layout::kThreads, Layout::kSharedBytes, args);
    });
  });
}

template <class Kind>
cudaError_t run_cluster_split(const PersistentForward* args, const ClusterCall& call) {
  return call.plan.ragged ? run_cluster_split<Kind, true>(args, call)
                          : run_cluster_split<Kind, false>(args, call);
}

#endif

}  // namespace treadle
