// The backward cluster kernel for any cell in half types (cluster/cluster.cuh explains the
// exchange). A block computes grad_h_{t-1} = grad_gates_t W_hh for its own units, and needs the
// gradients of all gates of all units. So with G gates, K (the reduction dimension) and the
// exchange are G times as large as in the forward pass. Each warp computes the products of all
// units of the block over its slice of K, with mma.sync m16n8k16. The partial sums are added
// through shared memory; then each lane computes kItems units of one row. Twin:
// kernels/recurrent/cpu/rows_backward.h.
#pragma once

#include "kernels/recurrent/cluster/backward_copies.cuh"
#include "kernels/recurrent/cluster/call.cuh"

namespace treadle {

// This is a single function because weights, addresses and the state of a thread fill the
// registers, and passing them to other functions would need more registers.
template <class Cell, class T, int units, int blocks, bool any_resets>
__global__ void __launch_bounds__(ClusterBackwardOf<Cell, units, blocks>::kThreads, 1)
    cluster_backward(const __grid_constant__ PersistentBackward args, int rows_each) {
  begin_kernel();
#if TREADLE_CLUSTER_CODE
  constexpr int kGates = Cell::kGates, kStateGates = Cell::kStateGates;
  using Layout = ClusterBackwardOf<Cell, units, blocks>;
  constexpr int kChunks = Layout::kChunks, kItems = Layout::kItems, kGroups = Layout::kGroups;
  constexpr int kThreads = Layout::kThreads, kRows = Layout::kRows, kWarps = Layout::kWarps;
  extern __shared__ __align__(128) unsigned char memory[];
  const uint32_t base = ptx::shared_address(memory);
  const int thread = threadIdx.x, lane = thread % kWarp, warp = thread / kWarp;
  const int rank = static_cast<int>(ptx::block_in_cluster());
  const Group group(args.sizes, static_cast<int>(blockIdx.x) / blocks, rows_each);
  const GroupRows& rows = group.rows;
  const int64_t hidden = args.sizes.hidden, d = group.direction;
  const int steps = static_cast<int>(args.sizes.steps);
  const int first_unit = rank * units;
  const bool computes = warp < kWarps;
  const bool any_grad = args.grad_output != nullptr;
  const int stride = rows_each, chunk_bytes = 32 * stride;
  const int g = lane / 4, q = lane % 4;

  // ---- weights transposed: column u of W_hh, k = (gate, unit v)
  using Weights = WarpWeights<kChunks, kGroups, Layout::kInRegisters>;
  uint32_t in_registers[Weights::kRegisters] = {};
  const Weights weights{in_registers, base + Layout::kWeights, warp, lane};
  if (computes) {
    const auto* weight =
        static_cast<const uint16_t*>(args.weight_hh) + d * kStateGates * hidden * hidden;
    // k is in the exchange's order: by block, then gate, then chunk of 16 units.
    const auto load = [&](int chunk, int64_t u) {
      const int block = chunk / (kStateGates * kGroups);
      const int m = Cell::weight_block(chunk / kGroups % kStateGates);
      const int64_t first = int64_t{block} * units + chunk % kGroups * 16 + 4 * q;
      uint32_t x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t v = first + i;
        x[i] = u < hidden && v < hidden ? __ldg(weight + (m * hidden + v) * hidden + u) : 0;
      }
      return uint2{x[0] | x[1] << 16, x[2] | x[3] << 16};
    };
    const auto fragment = [&](int f) {
      const int64_t u = first_unit + f % kGroups * 16 + g;
      const int chunk = warp * kChunks + f / kGroups;
      const uint2 low = load(chunk, u), high = load(chunk, u + 8);
      return uint4{low.x, high.x, low.y, high.y};
    };
    load_in_batches<kChunks * kGroups, 4>(
        fragment, [&](int f, uint4 a) { weights.set(f / kGroups, f % kGroups, a); });
  }

  // ---- zero gradients before the first step, and barriers
  for (int e = thread * 16; e < Layout::kStateBytes; e += kThreads * 16) {
    ptx::store16(base + Layout::kState + e, {0, 0, 0, 0});
  }
  uint32_t expected = static_cast<uint32_t>(kChunks * chunk_bytes);
  const uint32_t barriers = base + Layout::kBarriers;
  if (thread == 0) init_barriers<2 * kWarps>(barriers, expected);

  const BackwardCopies<Layout> own(args, group, base, first_unit, stride,
                                   Layout::kCopyWarp ? lane : thread);
  if (!Layout::kCopyWarp || !computes) own.begin();
  const GroupResets<any_resets> resets{args.resets, args.sizes, group};
  PassMarks<any_resets, true, kRows, Layout::kCopyWarp> marks(resets);
  SharedMarks<any_resets> words{base + Layout::kMarks, marks.before(0)};
  const bool asks = Layout::kCopyWarp ? !computes : warp == 0;  // whether this warp loads marks
  if (asks) words.leave(marks, 0), words.leave(marks, 1);
  // No block may send before all blocks have initialised their barriers.
  __syncthreads();
  ptx::sync_cluster();
  if (!computes) {
    // All steps of the copy warp. A separate function would change the machine code.
#pragma unroll 1
    for (int s = 0; s < steps; ++s) {
      own.before();
      words.leave(marks, s + 2);
      ptx::sync_threads(kStepBarrier, kThreads);
      own.after(s);
    }
    ptx::sync_cluster();
    return;
  }

  // ---- this thread's sends: 16-byte chunks by st.async, with the same chunks for every block.
  // This code is not shared with the forward pass, because that would change the machine code.
  uint32_t send_to[Layout::kSends], send_barrier[Layout::kSends];
  int send_from[Layout::kSends];  // in the outgoing state; -1: nothing to send
  const int chunks16 = kStateGates * units * stride / 8;
#pragma unroll
  for (int i = 0; i < Layout::kSends; ++i) {
    const int e = thread + i * Layout::kComputing, chunk16 = e % chunks16, block = e / chunks16;
    const uint32_t there = ptx::in_block(base, block < blocks ? block : 0);
    const int chunk = rank * kStateGates * kGroups + chunk16 * 16 / chunk_bytes;
    send_to[i] = there + Layout::kState + rank * kStateGates * kGroups * chunk_bytes + chunk16 * 16;
    send_barrier[i] = there + Layout::kBarriers + 8 * (chunk / kChunks);
    send_from[i] = block < blocks ? static_cast<int>(base) + Layout::kOutgoing + chunk16 * 16 : -1;
  }

  // ---- the units of this thread; grad_h and grad_c stay in registers
  const int row = lane % 8;
  const bool mine = row < stride;
  const int64_t state_row = d * args.sizes.batch + rows.first;
  int unit[kItems];
  uint32_t place[kItems];  // of gate 0 in the outgoing gradients, in the exchange's order
  float grad_h[kItems], grad_c[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int quad = warp * kItems + i;
    unit[i] = quad * 4 + lane / 8;
    place[i] = quad / 4 * chunk_bytes + quad % 4 * 8 * stride + row * 8 + lane / 8 * 2;
    const bool real = mine && row < rows.count && first_unit + unit[i] < hidden;
    const int64_t at = (state_row + row) * hidden + first_unit + unit[i];
    const bool any_h = real && args.grad_h_n != nullptr, any_c = real && args.grad_c_n != nullptr;
    grad_h[i] = any_h ? widen(static_cast<const T*>(args.grad_h_n)[at]) : 0.0f;
    grad_c[i] = any_c ? load_c<T>(args.grad_c_n, at, args.sizes.half_c) : 0.0f;
  }
  uint32_t lane_state =
      base + Layout::kState + warp * kChunks * chunk_bytes + q * 8 * stride + g % stride * 8;
  keep(lane_state);
  keep(expected);
  const uint32_t own_barrier = barriers + 8 * warp;
  // The number of rows that sent gradients in the previous step. The other rows sent zeros. Their
  // products are not added, because 0 x inf is NaN.
  int given = 0;
  // There is one more iteration than steps, for grad_h0.
#pragma unroll 1
  for (int s = 0; s <= steps; ++s) {
    const int parity = s & 1;
    const bool last = s == steps;
    const int active = last ? 0 : rows.active(own.time(s));
    const uint32_t stage = base + Layout::kStages + s % Layout::kDepth * Layout::kStageBytes;

    // ---- work that does not depend on gradients, while they arrive
    typename Cell::Slopes slopes[kItems];
    float grad_out[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const uint32_t in_stage = stage + row * Layout::kStageRow + unit[i] * 2;
      const uint32_t c_at = Layout::kCStates + row * Layout::kCRow + unit[i] * 4;
      float gates[kGates];
#pragma unroll
      for (int m = 0; m < kGates; ++m) {
        gates[m] = widen_bits<T>(ptx::load2(in_stage + m * kRows * Layout::kStageRow));
      }
      grad_out[i] = any_grad
                        ? widen_bits<T>(ptx::load2(in_stage + kGates * kRows * Layout::kStageRow))
                        : 0.0f;
      slopes[i] = Cell::slopes(gates, ptx::load_float(stage + c_at));
    }

    const uint32_t barrier = own_barrier + parity * kWarps * 8;
    if (s > 0) ptx::wait_barrier(barrier, (s - 1) >> 1 & 1);

    // ---- product with the gradients of all gates
    constexpr int kChains = kGroups <= 2 ? 2 : 1;  // independent sums, where registers allow
    float sum[kChains][kGroups][1][4] = {};
    const uint32_t state = lane_state + parity * Layout::kStateBytes;
    constexpr int kBatch = kChunks % 6 == 0 ? 6 : kChunks % 4 == 0 ? 4 : kChunks;
#pragma unroll
    for (int first = 0; first < kChunks; first += kBatch) {
      uint2 b[kBatch][1];
#pragma unroll
      for (int k = 0; k < kBatch; ++k) b[k][0] = ptx::load8(state + (first + k) * chunk_bytes);
#pragma unroll
      for (int k = first; k < first + kBatch; ++k) {
        multiply_chunk<T>(weights, k, b[k - first], sum[k % kChains]);
      }
    }
    const bool anew = words.of(s) >> row & 1;
    uint32_t added = anew ? 0 : given;
    if constexpr (any_resets) keep(added);  // computed here, before the sums are needed
#pragma unroll
    for (int m = 0; m < kGroups; ++m) {
      if (2 * q >= stride) continue;
      if constexpr (kChains == 2) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[0][m][0][i] += sum[kChains - 1][m][0][i];
      }
      store_sums(base + Layout::kSums + ((warp * units + m * 16 + g) * 8 + 2 * q) * 4,
                 sum[0][m][0]);
    }
    // After this barrier all warps have read their gradients, so the mbarriers of this parity may
    // be armed again.
    ptx::sync_threads(1, Layout::kComputing);
    if (s > 0 && lane == 0) ptx::arrive_expecting(barrier, expected);

    // ---- the cell
    const uint32_t outgoing = base + Layout::kOutgoing + parity * Layout::kOutgoingBytes;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (!mine) continue;
      // Not shared with the other kernels: a call would change the machine code.
      float parts[kWarps];
#pragma unroll
      for (int k = 0; k < kWarps; ++k) {
        parts[k] = ptx::load_float(base + Layout::kSums + ((k * units + unit[i]) * 8 + row) * 4);
      }
      const bool real = row < rows.count && first_unit + unit[i] < hidden;
      if constexpr (any_resets) {
        // The gradient of a state that a reset replaced is not propagated further. It is stored if
        // requested.
        if (anew && real && resets.wanted()) {
          uint32_t t = own.time(s - 1), r = row, u = first_unit + unit[i];
          keep(t), keep(r), keep(u);  // otherwise the compiler keeps addresses in registers
          float all[kWarps];
#pragma unroll
          for (int k = 0; k < kWarps; ++k) all[k] = parts[k];
          const float grad = row < given ? grad_h[i] + sum_in_pairs(all) : grad_h[i];
          resets.hand_over(t, r, u, grad, grad_c[i]);
        }
        if (anew) grad_h[i] = grad_c[i] = 0;
      }
      if (row < static_cast<int>(added)) grad_h[i] += sum_in_pairs(parts);
      if (last) {
        if (!real) continue;
        const int64_t at = (state_row + row) * hidden + first_unit + unit[i];
        if (args.grad_h0 != nullptr) {
          static_cast<T*>(args.grad_h0)[at] = Narrow<T>::from(grad_h[i]);
        }
        if (args.grad_c0 != nullptr) {
          store_c<T>(args.grad_c0, at, args.sizes.half_c, grad_c[i]);
        }
        continue;
      }
      // A row without this step keeps its gradients and sends zeros.
      uint16_t grads[kGates] = {};
      if (real && row < active) {
        const auto grad = Cell::backward(slopes[i], grad_h[i] + grad_out[i], grad_c[i]);
        grad_c[i] = grad.old_cell;
        grad_h[i] = 0;
#pragma unroll
        for (int m = 0; m < kGates; ++m) grads[m] = Narrow<T>::from(grad.gates[m]).bits;
      }
#pragma unroll
      for (int m = 0; m < kGates; ++m) {
        ptx::store2(outgoing + m * kGroups * chunk_bytes + place[i], grads[m]);
      }
    }
    if (last) break;
    // This barrier is needed because a thread sends values that other threads have computed.
    ptx::sync_threads(kSendBarrier, Layout::kComputing);

    // ---- send the gradients to all blocks, including this one
#pragma unroll
    for (int i = 0; i < Layout::kSends; ++i) {
      if (send_from[i] < 0) continue;
      ptx::send16(send_to[i] + (parity ^ 1) * Layout::kStateBytes,
                  ptx::load16(send_from[i] + parity * Layout::kOutgoingBytes),
                  send_barrier[i] + (parity ^ 1) * kWarps * 8);
    }

    // ---- copies, while the gradients are being sent
    if (!Layout::kCopyWarp) own.before();
    if (!Layout::kCopyWarp && asks) words.leave(marks, s + 2);
    ptx::sync_threads(kStepBarrier, kThreads);
    if (!Layout::kCopyWarp) own.after(s);
    given = active;
  }
  // No block may exit while others still send into its shared memory.
  ptx::sync_cluster();
#endif
}

#ifndef __CUDACC_RTC__
// ---- launch

template <class Cell, class T>
cudaError_t run_cluster_any(const PersistentBackward* args, const ClusterCall& call) {
  return visit_shape(call.plan.shape, [&](auto index) {
    constexpr ClusterShape s = kClusterShapes[decltype(index)::value];
    if constexpr (s.blocks == 1 || !kKernels<Cell, decltype(index)::value>.half_backward) {
      return cudaErrorInvalidValue;
    } else {
      using Layout = ClusterBackwardOf<Cell, s.units, s.blocks>;
      static_assert(s.tiles == 1 && Layout::kResetsBytes <= kMostSharedBytes);
      const bool resets = call.plan.resets;
      const auto kernel =
          TREADLE_RESETS_FUNCTION(PersistentKernel<PersistentBackward>, call.plan.resets,
                                  cluster_backward, (Cell, T), (s.units, s.blocks, resets));
      return call(kernel, Layout::kThreads, resets ? Layout::kResetsBytes : Layout::kSharedBytes,
                  args);
    }
  });
}

template <class Kind>
cudaError_t run_cluster_any(Dtype dtype, const PersistentBackward* args, const ClusterCall& call) {
  using Cell = typename Kind::template Cell<float>;
  return dtype == Dtype::kHalf ? run_cluster_any<Cell, Half>(args, call)
                               : run_cluster_any<Cell, BFloat16>(args, call);
}

#endif

}  // namespace treadle
