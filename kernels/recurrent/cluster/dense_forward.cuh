// The forward dense cluster kernel (cluster/dense.cuh):
// gates_t = products_t + bias + h_{t-1} W_hh^T, then the cell. A step has two barriers: one for the
// warps that share units, after they have stored their sums, and one for all threads, before states
// are sent. While h is being sent, all threads make their copies between global and shared memory.
// Products are summed in the same order as in cluster/forward.cuh. `rows_each` is the number of
// rows per cluster. Twin: kernels/recurrent/cpu/rows_forward.h.
#pragma once

#include "kernels/recurrent/cluster/dense_forward_copies.cuh"
#include "kernels/recurrent/cluster/dense_resets.cuh"

namespace treadle {

template <class Cell, class T, int units, int blocks, int tiles, int stride, bool any_resets>
__global__ void __launch_bounds__(
    DenseLayout<DenseForward, Cell, units, blocks, tiles, stride>::kThreads, 1)
    cluster_dense_forward(const __grid_constant__ PersistentForward args, int rows_each) {
  begin_kernel();
#if TREADLE_CLUSTER_CODE
  constexpr int kGates = Cell::kGates, kStateGates = Cell::kStateGates;
  constexpr int kFirstInput = kGates - Cell::kInputGates;
  using C = math::CType<float, Cell::kCParts>;
  using L = DenseLayout<DenseForward, Cell, units, blocks, tiles, stride>;
  constexpr int kSplits = L::kSplits, kChunks = L::kChunks, kItems = L::kItems;
  constexpr int kPart = L::kGroups * kStateGates * tiles * L::kSumBytes;  // bytes per slice of K
  extern __shared__ __align__(128) unsigned char memory[];
  const uint32_t base = ptx::shared_address(memory);
  const int thread = threadIdx.x, lane = thread % kWarp, warp = thread / kWarp;
  const int split = warp % kSplits, unit_group = warp / kSplits;
  const int rank = static_cast<int>(ptx::block_in_cluster());
  const Group group(args.sizes, static_cast<int>(blockIdx.x) / blocks, rows_each);
  const GroupRows& rows = group.rows;
  const int64_t hidden = args.sizes.hidden, d = group.direction;
  const int steps = static_cast<int>(args.sizes.steps), first_unit = rank * units;
  const int g = lane / 4, q = lane % 4;
  const bool save = args.gates != nullptr;

  // ---- weights: k permuted as in cluster/cluster.cuh
  uint32_t registers[L::kKept * 4] = {};
  const SpreadWeights<L> weights(registers, base + L::kWeights, warp, lane);
  {
    const auto* weight =
        static_cast<const uint16_t*>(args.weight_hh) + d * kStateGates * hidden * hidden;
    const int64_t u = first_unit + unit_group * 16 + g;
    const bool vector = reinterpret_cast<uintptr_t>(weight) % 8 == 0;
    using Fragments = GateFragments<kStateGates>;
    const auto load = [&](int c) {
      const int64_t k = (split * kChunks + c) * 16 + 4 * q;
      return load_gate_fragments<Cell>(weight, hidden, u, /*apart=*/8, k, vector);
    };
    load_in_batches<kChunks, Fragments::kBatch>(load, [&](int c, const Fragments& of) {
#pragma unroll
      for (int m = 0; m < kStateGates; ++m) weights.set(c * kStateGates + m, of.gate[m]);
    });
  }
  const uint32_t bias = base + L::kBias;
  for (int e = thread; e < kGates * units; e += L::kThreads) {
    const int64_t u = first_unit + e % units;
    const float x = u < hidden ? bias_of<Cell, T>(args, d, e / units, u) : 0.0f;
    ptx::store4(bias + e * 4, __float_as_uint(x));
  }

  // ---- h0, zeros in the stages, and barriers
  const int64_t state_row = d * args.sizes.batch + rows.first;
  {
    const auto* h = static_cast<const uint16_t*>(args.h0) + state_row * hidden;
    const bool vector = reinterpret_cast<uintptr_t>(h) % 8 == 0;
    for (int e = thread; e < L::kRows * L::kHidden / 4; e += L::kThreads) {
      const int r = e / (L::kHidden / 4), four = e % (L::kHidden / 4);
      const bool exists = r < rows.count && four * 4 < hidden;
      const uint2 x = load_four(h + r * hidden + four * 4, exists ? 4 : 0, vector);
      ptx::store_floats(base + L::kState + (four / 4 * tiles + r / stride) * L::kTileBytes +
                            four % 4 * 8 * stride + r % stride * 8,
                        __uint_as_float(x.x), __uint_as_float(x.y));
    }
  }
  // One of the warps that may have fewer slots than others loads the marks.
  MarkRing<L, any_resets, false> marks(base);
  const bool asks = any_resets && warp == kSplits - 1;
  if (asks) marks.begin(args.resets.marks, args.sizes, group);
  clear<L>(base + L::kStages, L::kDepth * L::kStageBytes);
  uint32_t expected = kChunks * tiles * L::kTileBytes;
  if (thread == 0) begin_barriers<L, kSplits>(base, expected);
  __syncthreads();
  DenseForwardCopies<L, kFirstInput> own(args, group, base, first_unit);
  for (int s = 0; s < L::kAhead; ++s) own.fetch(s < steps, s * L::kStageBytes);
  ptx::wait_copies<L::kAhead - 1>();
  // No block may send before all blocks have initialised their barriers and written h0.
  __syncthreads();
  ptx::sync_cluster();

  // ---- the items (unit, row) of this thread; c stays in registers
  const DenseSends<L> sends(base, rank, static_cast<int>(expected));
  uint32_t place[kItems], own_stage[kItems], own_sums[kItems], own_bias[kItems];
  bool has[kItems], mine[kItems], real[kItems], unit_exists[kItems];
  int64_t state_at[kItems];
  uint32_t row_bit[kItems];
  C c[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    // Each group of units gives its first slot to a different warp, so that all schedulers have
    // slots.
    const int slot = i * kSplits + (split + unit_group * L::kSlots) % kSplits;
    has[i] = slot < L::kSlots;
    const int tile = has[i] ? slot / L::kPairs : 0;
    const SlotPlace<L> at(slot, lane);
    const int unit = unit_group * 16 + at.unit, row = tile * stride + at.row;
    place[i] = base + L::kOutgoing + (unit_group * tiles + tile) * L::kTileBytes +
               at.unit / 4 * 8 * stride + at.row * 8 + at.unit % 4 * 2;
    own_stage[i] = base + L::kStages + row * L::kStageRow + unit * 2;
    own_sums[i] =
        base + L::kSums + (unit_group * kStateGates * tiles + tile) * L::kSumBytes + at.byte;
    own_bias[i] = bias + unit * 4;
    unit_exists[i] = first_unit + unit < hidden;
    mine[i] = has[i] && at.exists;
    real[i] = mine[i] && row < rows.count && unit_exists[i];
    state_at[i] = (state_row + row) * hidden + first_unit + unit;
    row_bit[i] = 1u << row;
    c[i] = real[i] ? load_c_at<T, C>(args.c0, state_at[i], hidden, args.sizes.half_c) : C{};
  }
  const uint32_t lane_state =
      base + L::kState + split * kChunks * tiles * L::kTileBytes + q * 8 * stride + g % stride * 8;
  const uint32_t sums_to = base + L::kSums + split * kPart +
                           unit_group * kStateGates * tiles * L::kSumBytes +
                           (g * L::kPairs + q) * 16;
  const bool rearms = unit_group == 0 && lane == 0, stores_sums = q < L::kPairs;
  const uint32_t own_barrier = base + L::kBarriers + 8 * split;
  const GroupResets<any_resets> resets{args.resets, args.sizes, group};
  const uint32_t given = resets.given() ? ~0u : 0;

#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
    const uint32_t parity = (s & 1) * L::kParity, other = L::kParity - parity;
    const uint32_t stage = s % L::kDepth * L::kStageBytes;

    // ---- work that does not depend on h_{t-1}, while it arrives
    const uint32_t anew = marks.of(s);  // rows that reset before this step
    float gates[kItems][kGates];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (!has[i]) continue;
#pragma unroll
      for (int m = 0; m < kGates; ++m) {
        gates[i][m] = ptx::load_float(own_bias[i] + m * units * 4);
        if (m < kFirstInput) continue;
        gates[i][m] +=
            widen_bits<T>(ptx::load2(own_stage[i] + stage + m * L::kRows * L::kStageRow));
      }
    }
    // If a row resets to zeros, a mask sets its sums to zero. The sums may be NaN, because the h
    // before the reset may be NaN.
    uint32_t added[kItems];  // mask of a product
    if constexpr (any_resets) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        if ((anew & row_bit[i]) != 0) c[i] = C{};
        added[i] = (anew & row_bit[i] & ~given) != 0 ? 0 : ~0u;
        keep(added[i]);
      }
    }
    uint4 fragment = weights.first();
    ptx::wait_barrier(own_barrier + parity, s >> 1 & 1);
    if constexpr (any_resets) {
      if ((anew & given) != 0) {
        const int t = resets.template time<false>(s);
        replace_rows<L>(resets, anew, t, base + L::kState + parity, split);
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
          if (real[i] && (anew & row_bit[i]) != 0) c[i] = given_c<C>(resets, t, state_at[i]);
        }
      }
    }

    // ---- product with h_{t-1}
    float sum[kStateGates][tiles][4] = {};
    Operands<L, tiles, kChunks, kChunks> operands(lane_state + parity);
    weights.template multiply<T>(0, fragment, operands, sum);
    if (stores_sums) {
#pragma unroll
      for (int m = 0; m < kStateGates; ++m) {
#pragma unroll
        for (int j = 0; j < tiles; ++j) {
          ptx::store16(sums_to + (m * tiles + j) * L::kSumBytes, words_of(sum[m][j]));
        }
      }
    }
    // After this barrier, as in cluster/forward.cuh, the mbarrier of this parity may be armed for
    // step s + 2.
    ptx::sync_threads(1 + unit_group, kSplits * kWarp);
    if (rearms) ptx::arrive_expecting(own_barrier + parity, expected);

    // ---- the cell, for all slots of a warp together
    const auto finish = [&](auto slots) {
      constexpr int kCount = decltype(slots)::value;
      float parts[kCount][kStateGates][kSplits];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
#pragma unroll
        for (int m = 0; m < kStateGates; ++m) {
#pragma unroll
          for (int k = 0; k < kSplits; ++k) {
            parts[i][m][k] = ptx::load_float(own_sums[i] + k * kPart + m * tiles * L::kSumBytes);
          }
        }
      }
      __syncwarp();  // otherwise the compiler would load parts one by one, to save registers
      uint16_t h[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
#pragma unroll
        for (int m = 0; m < kStateGates; ++m) {
          const float product = sum_in_pairs(parts[i][m]);
          if constexpr (any_resets) {
            gates[i][m] += __uint_as_float(__float_as_uint(product) & added[i]);
          } else {
            gates[i][m] += product;
          }
        }
        const auto next = Cell::forward(gates[i], c[i]);
        c[i] = next.new_cell;
        h[i] = unit_exists[i] ? Narrow<T>::from(next.new_h).bits : 0;
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (mine[i]) ptx::store2(place[i] + parity, h[i]);
      }
    };
    with_slots<kItems>(has[kItems - 1], has[0], finish);
    // After this barrier all threads also see the stage of step s + 1.
    ptx::wait_copies<L::kAhead - 2>();
    ptx::sync_threads(kSendBarrier, L::kThreads);
    if (s + 1 < steps) sends.send(parity, other);

    // ---- while h is being sent. Gates overwrite the products from which they were computed, and
    // are stored one step later, after the next barrier.
    own.store_output(parity);
    if (save) {
      if (s > 0) own.store_gates((s - 1) % L::kDepth * L::kStageBytes);
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        if (!mine[i]) continue;
#pragma unroll
        for (int m = 0; m < kGates; ++m) {
          ptx::store2(own_stage[i] + stage + m * L::kRows * L::kStageRow,
                      Narrow<T>::from(gates[i][m]).bits);
        }
      }
    }
    // Fetches into the stage of step s - 2, whose gates this thread has stored.
    own.fetch(s + L::kAhead < steps, (s + L::kAhead) % L::kDepth * L::kStageBytes);
    if (asks) marks.gather(s);
  }

  // ---- the last gates and states
  __syncthreads();
  if (save) own.store_gates((steps - 1) % L::kDepth * L::kStageBytes);
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (!real[i]) continue;
    static_cast<uint16_t*>(args.h)[state_at[i]] =
        ptx::load2(place[i] + (steps - 1 & 1) * L::kParity);
    store_c_at<T>(args.c, state_at[i], hidden, args.sizes.half_c, c[i]);
  }
  // No block may exit while others still send into its shared memory.
  ptx::sync_cluster();
#endif
}

}  // namespace treadle
