// The forward cluster kernel for any cell in half types (cluster/cluster.cuh explains the exchange
// of h): gates_t = products_t + bias + h_{t-1} W_hh^T, then the cell. `rows_each` is the number of
// rows per cluster. Warp (unit_group, split) computes the products of all gates of 16 units over
// one of kSplits slices of K (the reduction dimension), with mma.sync m16n8k16. The partial sums
// are added through shared memory; then each lane computes the cell of kItems (unit, row) pairs.
// Input products are prefetched, and output and gates are stored, by a copy warp or, without one,
// by all threads of the block. Twin: kernels/recurrent/cpu/rows_forward.h.
#pragma once

#include "kernels/recurrent/cluster/call.cuh"
#include "kernels/recurrent/cluster/forward_copies.cuh"

namespace treadle {

// This is a single function because weights, addresses and the state of a thread fill the
// registers, and passing them to other functions would need more registers.
template <class Cell, class T, int units, int blocks, int tiles, bool any_resets>
__global__ void __launch_bounds__(ClusterForwardOf<Cell, units, blocks, tiles>::kThreads, 1)
    cluster_forward(const __grid_constant__ PersistentForward args, int rows_each) {
  begin_kernel();
#if TREADLE_CLUSTER_CODE
  constexpr int kGates = Cell::kGates, kStateGates = Cell::kStateGates;
  constexpr int kFirstInput = kGates - Cell::kInputGates;
  using Layout = ClusterForwardOf<Cell, units, blocks, tiles>;
  constexpr int kSplits = Layout::kSplits, kChunks = Layout::kChunks, kItems = Layout::kItems;
  constexpr int kThreads = Layout::kThreads, kRows = Layout::kRows;
  extern __shared__ __align__(128) unsigned char memory[];
  const uint32_t base = ptx::shared_address(memory);
  const int thread = threadIdx.x, lane = thread % kWarp, warp = thread / kWarp;
  const bool computes = warp < Layout::kWarps;
  const int split = warp % kSplits, unit_group = warp / kSplits;
  const int rank = static_cast<int>(ptx::block_in_cluster());
  const Group group(args.sizes, static_cast<int>(blockIdx.x) / blocks, rows_each);
  const GroupRows& rows = group.rows;
  const int64_t hidden = args.sizes.hidden, d = group.direction;
  const int steps = static_cast<int>(args.sizes.steps);
  const int first_unit = rank * units;
  const bool save = args.gates != nullptr;
  // How many rows of a tile are exchanged. If there are fewer than 8, fewer bytes are sent. Lanes
  // of missing rows read an existing row, and their sums are not stored.
  const int stride = tiles > 1 ? 8 : rows_each;
  const int tile_bytes = 32 * stride;
  const int g = lane / 4, q = lane % 4;

  // ---- weights, in the order of the A operand: k permuted as in cluster/cluster.cuh
  using Weights = WarpWeights<kChunks, kStateGates, Layout::kInRegisters>;
  uint32_t in_registers[Weights::kRegisters] = {};
  const Weights weights{in_registers, base + Layout::kWeights, warp, lane};
  if (computes) {
    const auto* weight =
        static_cast<const uint16_t*>(args.weight_hh) + d * kStateGates * hidden * hidden;
    const int64_t u = first_unit + unit_group * 16 + g;
    const bool vector = hidden % 4 == 0 && reinterpret_cast<uintptr_t>(weight) % 8 == 0;
    using Fragments = GateFragments<kStateGates>;
    const auto load = [&](int c) {
      const int64_t k = (split * kChunks + c) * 16 + 4 * q;
      return load_gate_fragments<Cell>(weight, hidden, u, /*apart=*/8, k, vector);
    };
    load_in_batches<kChunks, Fragments::kBatch>(load, [&](int c, const Fragments& of) {
#pragma unroll
      for (int m = 0; m < kStateGates; ++m) weights.set(c, m, of.gate[m]);
    });
  }
  const GroupResets<any_resets> resets{args.resets, args.sizes, group};
  PassMarks<any_resets, false, kRows, Layout::kCopyWarp> marks(resets);
  auto* bias = reinterpret_cast<float*>(memory + Layout::kBias);
  for (int e = thread; e < kGates * units; e += kThreads) {
    const int64_t u = first_unit + e % units;
    bias[e] = u < hidden ? bias_of<Cell, T>(args, d, e / units, u) : 0.0f;
  }

  // ---- h0 into buffer 0, and barriers
  const uint32_t first_anew = marks.before(0);
  const int64_t state_row = d * args.sizes.batch + rows.first;
  {
    const auto* h = static_cast<const uint16_t*>(args.h0) + state_row * hidden;
    for (int e = thread; e < kRows * Layout::kHidden; e += kThreads) {
      const int r = e / Layout::kHidden, k = e % Layout::kHidden, n = r % 8;
      if (n >= stride) continue;
      uint16_t bits = r < rows.count && k < hidden ? h[r * hidden + k] : 0;
      if (k < hidden) bits = resets.first_h(first_anew >> r & 1, bits, r, k);
      ptx::store2(base + Layout::kState + (k / 16 * tiles + r / 8) * tile_bytes +
                      k / 4 % 4 * 8 * stride + n * 8 + k % 4 * 2,
                  bits);
    }
  }
  uint32_t expected = static_cast<uint32_t>(kChunks * tiles * tile_bytes);
  const uint32_t barriers = base + Layout::kBarriers;
  if (thread == 0) init_barriers<2 * kSplits>(barriers, expected);

  const ForwardCopies<Layout, kFirstInput> own(args, group, base, first_unit, stride,
                                               Layout::kCopyWarp ? lane : thread);
  if (!Layout::kCopyWarp || !computes) own.begin();
  SharedMarks<any_resets> words{base + Layout::kMarks, first_anew};
  const bool asks = Layout::kCopyWarp ? !computes : warp == 0;  // whether this warp loads marks
  if (asks) words.leave(marks, 0), words.leave(marks, 1);
  // No block may send before all blocks have initialised their barriers and written h0.
  __syncthreads();
  ptx::sync_cluster();
  if (!computes) {
    // All steps of the copy warp. A separate function would change the machine code.
#pragma unroll 1
    for (int s = 0; s < steps; ++s) {
      own.before();
      words.leave(marks, s + 2);
      ptx::sync_threads(kStepBarrier, kThreads);
      own.after(s, words.of(s) >> 16);
    }
    ptx::sync_cluster();
    return;
  }

  // ---- this thread's sends: 16-byte chunks by st.async, with the same chunks for every block.
  // This code is not shared with the backward pass, because that would change the machine code.
  uint32_t send_to[Layout::kSends], send_barrier[Layout::kSends];
  int send_from[Layout::kSends];  // in the outgoing state; -1: nothing to send
  const int chunks16 = units * tiles * stride / 8;
#pragma unroll
  for (int i = 0; i < Layout::kSends; ++i) {
    const int e = thread + i * Layout::kComputing, chunk16 = e % chunks16, block = e / chunks16;
    const uint32_t there = ptx::in_block(base, block < blocks ? block : 0);
    const int chunk = rank * Layout::kGroups + chunk16 * 16 / (tiles * tile_bytes);
    send_to[i] = there + Layout::kState + rank * (units * tiles * stride * 2) + chunk16 * 16;
    send_barrier[i] = there + Layout::kBarriers + 8 * (chunk / kChunks);
    send_from[i] = block < blocks ? static_cast<int>(base) + Layout::kOutgoing + chunk16 * 16 : -1;
  }

  // ---- the items (unit, row) of this thread; c stays in registers
  const int row_in_tile = lane % 8;
  int unit[kItems], row[kItems];
  uint32_t place[kItems];  // in the outgoing state, in the exchange's order
  float c[kItems];
  bool mine[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int item = split * kItems + i, quad = item / tiles % 4, tile = item % tiles;
    unit[i] = unit_group * 16 + quad * 4 + lane / 8;
    row[i] = tile * 8 + row_in_tile;
    place[i] = (unit_group * tiles + tile) * tile_bytes + quad * 8 * stride + row_in_tile * 8 +
               lane / 8 * 2;
    mine[i] = row_in_tile < stride && item < 4 * tiles;
    const bool real = mine[i] && row[i] < rows.count && first_unit + unit[i] < hidden;
    const int64_t at = (state_row + row[i]) * hidden + first_unit + unit[i];
    c[i] = real ? load_c<T>(args.c0, at, args.sizes.half_c) : 0.0f;
    if (real) c[i] = resets.first_c(first_anew >> row[i] & 1, c[i], row[i], first_unit + unit[i]);
    // Padding units and rows get row number kRows, which is active in no step.
    if (!real) row[i] = kRows;
  }
  const ForwardStarts<any_resets, kItems> starts{resets, first_unit, unit, row, place};
  uint32_t lane_state = base + Layout::kState + split * kChunks * tiles * tile_bytes +
                        q * 8 * stride + g % stride * 8;
  keep(lane_state);
  keep(expected);
  const uint32_t own_barrier = barriers + 8 * split;
  const bool rearms = unit_group == 0 && lane == 0;
  // The offsets of this thread's reads from a stage and from the sums.
  uint32_t own_stage[kItems], own_sums[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int tile = (split * kItems + i) % tiles;
    own_stage[i] =
        base + Layout::kStages + (tile * 8 + row_in_tile) * Layout::kStageRow + unit[i] * 2;
    own_sums[i] = base + Layout::kSums + ((tile * units + unit[i]) * 8 + row_in_tile) * 4;
  }
  const uint32_t sums_to =
      base + Layout::kSums +
      ((split * kStateGates * tiles * units + unit_group * 16 + g) * 8 + 2 * q) * 4;

#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
    const int parity = s & 1;
    // Does not use group.forward_time(): the call would change the machine code.
    const int active = rows.active(group.reverse == 0 ? s : steps - 1 - s);
    const int stage = s % Layout::kDepth * Layout::kStageBytes;

    // ---- work that does not depend on h_{t-1}, while it arrives
    float gates[kItems][kGates];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
#pragma unroll
      for (int m = 0; m < kGates; ++m) {
        gates[i][m] = bias[m * units + unit[i]];
        if (m < kFirstInput) continue;
        gates[i][m] =
            widen_bits<T>(ptx::load2(own_stage[i] + stage + m * kRows * Layout::kStageRow)) +
            gates[i][m];
      }
    }
    const uint32_t anew = words.of(s);
    const uint32_t barrier = own_barrier + parity * kSplits * 8;
    if (s > 0) ptx::wait_barrier(barrier, (s - 1) >> 1 & 1);

    // ---- product with h_{t-1}. B operands are loaded kBatch chunks at a time, so that their
    // latencies overlap.
    float sum[kStateGates][tiles][4] = {};
    const uint32_t state = lane_state + parity * Layout::kStateBytes;
    constexpr int kBatch = kChunks % 4 == 0 ? 4 : kChunks % 3 == 0 ? 3 : kChunks;
#pragma unroll
    for (int first = 0; first < kChunks; first += kBatch) {
      uint2 b[kBatch][tiles];
#pragma unroll
      for (int k = 0; k < kBatch * tiles; ++k) {
        b[k / tiles][k % tiles] = ptx::load8(state + (first * tiles + k) * tile_bytes);
      }
#pragma unroll
      for (int k = first; k < first + kBatch; ++k) {
        multiply_chunk<T>(weights, k, b[k - first], sum);
      }
    }
    starts.begin(anew, s, base + Layout::kOutgoing + parity * Layout::kOutgoingBytes, c);
    // The accumulator columns 2q and 2q + 1 of a lane are rows of the batch.
    if (2 * q < stride) {
#pragma unroll
      for (int m = 0; m < kStateGates; ++m) {
#pragma unroll
        for (int j = 0; j < tiles; ++j) {
          store_sums(sums_to + (m * tiles + j) * units * 8 * 4, sum[m][j]);
        }
      }
    }
    // The warps of each unit group have a barrier of their own. After it they have read their
    // slices of h_{t-1}, so the mbarrier of this parity may be armed for step s + 2.
    ptx::sync_threads(1 + unit_group, kSplits * kWarp);
    if (s > 0 && rearms) ptx::arrive_expecting(barrier, expected);

    // ---- the cell
    const uint32_t outgoing = base + Layout::kOutgoing + parity * Layout::kOutgoingBytes;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (!mine[i]) continue;
      const uint32_t to = starts.template place_of<Layout>(anew, i, outgoing);
#pragma unroll
      for (int m = 0; m < kStateGates; ++m) {
        // Not shared with the other kernels: a call would change the machine code.
        float parts[kSplits];
#pragma unroll
        for (int k = 0; k < kSplits; ++k) {
          parts[k] = ptx::load_float(own_sums[i] + (k * kStateGates + m) * tiles * units * 8 * 4);
        }
        gates[i][m] += sum_in_pairs(parts);
      }
      // A row that has ended keeps sending its last h.
      uint16_t h;
      if (row[i] < active) {
        const auto next = Cell::forward(gates[i], c[i]);
        c[i] = next.new_cell;
        h = Narrow<T>::from(next.new_h).bits;
      } else {
        h = ptx::load2(base + Layout::kState + parity * Layout::kStateBytes +
                       rank * (units * tiles * stride * 2) + place[i]);
      }
      ptx::store2(any_resets ? to : outgoing + place[i], h);
    }
    // This barrier is needed because a thread sends values that other threads have computed.
    ptx::sync_threads(kSendBarrier, Layout::kComputing);

    // ---- send h to all blocks, including this one
    if (s + 1 < steps) {
#pragma unroll
      for (int i = 0; i < Layout::kSends; ++i) {
        if (send_from[i] < 0) continue;
        ptx::send16(send_to[i] + (parity ^ 1) * Layout::kStateBytes,
                    ptx::load16(send_from[i] + parity * Layout::kOutgoingBytes),
                    send_barrier[i] + (parity ^ 1) * kSplits * 8);
      }
    }

    // ---- while h is being sent: gates overwrite the products from which they were computed
    if (save) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        if (!mine[i]) continue;
#pragma unroll
        for (int m = 0; m < kGates; ++m) {
          ptx::store2(own_stage[i] + stage + m * kRows * Layout::kStageRow,
                      Narrow<T>::from(gates[i][m]).bits);
        }
      }
    }
    if (!Layout::kCopyWarp) own.before();
    if (!Layout::kCopyWarp && asks) words.leave(marks, s + 2);
    ptx::sync_threads(kStepBarrier, kThreads);
    if (!Layout::kCopyWarp) own.after(s, anew >> 16);
  }

  // ---- the last states
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (row[i] == kRows) continue;
    const int64_t at = (state_row + row[i]) * hidden + first_unit + unit[i];
    static_cast<uint16_t*>(args.h)[at] =
        ptx::load2(base + Layout::kOutgoing + (steps - 1 & 1) * Layout::kOutgoingBytes + place[i]);
    store_c<T>(args.c, at, args.sizes.half_c, c[i]);
  }
  // No block may exit while others still send into its shared memory.
  ptx::sync_cluster();
#endif
}

#ifndef __CUDACC_RTC__
// ---- launch

template <class Cell, class T>
cudaError_t run_cluster_any(const PersistentForward* args, const ClusterCall& call) {
  return visit_shape(call.plan.shape, [&](auto index) {
    constexpr ClusterShape s = kClusterShapes[decltype(index)::value];
    if constexpr (s.blocks == 1 || !kKernels<Cell, decltype(index)::value>.half_forward) {
      return cudaErrorInvalidValue;
    } else {
      using Layout = ClusterForwardOf<Cell, s.units, s.blocks, s.tiles>;
      static_assert(Layout::kResetsBytes <= kMostSharedBytes);
      const bool resets = call.plan.resets;
      const auto kernel =
          TREADLE_RESETS_FUNCTION(PersistentKernel<PersistentForward>, call.plan.resets,
                                  cluster_forward, (Cell, T), (s.units, s.blocks, s.tiles, resets));
      return call(kernel, Layout::kThreads, resets ? Layout::kResetsBytes : Layout::kSharedBytes,
                  args);
    }
  });
}

template <class Kind>
cudaError_t run_cluster_any(Dtype dtype, const PersistentForward* args, const ClusterCall& call) {
  using Cell = typename Kind::template HalfCell<float>;
  return dtype == Dtype::kHalf ? run_cluster_any<Cell, Half>(args, call)
                               : run_cluster_any<Cell, BFloat16>(args, call);
}

#endif

}  // namespace treadle
