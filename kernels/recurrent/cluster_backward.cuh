// The regime "cluster", backward, for any cell: cluster.cuh says how. A block has the gradients of
// h of its own units, for which it needs those of all gates of all units: K is three times as long
// as forward, and what is exchanged, too. All warps share K, each has all units of the block.
#pragma once

#include "kernels/cluster_backward_parts.cuh"

namespace treadle {

template <template <class> class CellOf, class T, int units, int blocks>
__global__ void __launch_bounds__(ClusterBackward<CellOf<float>::kGates, units, blocks>::kThreads,
                                  1)
    cluster_backward(const __grid_constant__ PersistentBackward args, int rows_each) {
  begin_kernel();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  using Cell = CellOf<float>;
  constexpr int kGates = Cell::kGates;
  using Is = ClusterBackward<kGates, units, blocks>;
  constexpr int kChunks = Is::kChunks, kItems = Is::kItems, kGroups = Is::kGroups;
  constexpr int kThreads = Is::kThreads, kRows = Is::kRows, kWarps = Is::kWarps;
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

  // ---- weights: of column u of W, the row of each gate
  uint32_t kept[Is::kKept * kGroups * 4];
  if (computes) {
    const auto* weight =
        static_cast<const uint16_t*>(args.weight_hh) + d * kGates * hidden * hidden;
    // In the exchange's order: by block, gate, and chunk of its units.
    const auto load = [&](int chunk, int64_t u) {
      const int block = chunk / (kGates * kGroups), m = chunk / kGroups % kGates;
      const int64_t first = int64_t{block} * units + chunk % kGroups * 16 + 4 * q;
      uint32_t x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t v = first + i;
        x[i] = u < hidden && v < hidden ? __ldg(weight + (m * hidden + v) * hidden + u) : 0;
      }
      return uint2{x[0] | x[1] << 16, x[2] | x[3] << 16};
    };
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int m = 0; m < kGroups; ++m) {
        const int64_t u = first_unit + m * 16 + g;
        const uint2 low = load(warp * kChunks + c, u), high = load(warp * kChunks + c, u + 8);
        if (c < Is::kKept) {
          uint32_t* to = kept + (c < Is::kKept ? c : 0) * kGroups * 4 + m * 4;
          to[0] = low.x, to[1] = high.x, to[2] = low.y, to[3] = high.y;
        } else {
          const int at = (warp * (kChunks - Is::kKept) + c - Is::kKept) * kGroups + m;
          ptx::store16(base + Is::kWeights + at * 512 + lane * 16, {low.x, high.x, low.y, high.y});
        }
      }
    }
  }

  // ---- before the first step no gate has a gradient; barriers
  for (int e = thread * 16; e < Is::kStateBytes; e += kThreads * 16) {
    ptx::store16(base + Is::kState + e, {0, 0, 0, 0});
  }
  const uint32_t barriers = base + Is::kBarriers;
  uint32_t expected = static_cast<uint32_t>(kChunks * chunk_bytes);
  if (thread == 0) {
    for (int i = 0; i < 2 * kWarps; ++i) ptx::init_barrier(barriers + 8 * i);
    ptx::publish_barriers();
    for (int i = 0; i < 2 * kWarps; ++i) ptx::arrive_expecting(barriers + 8 * i, expected);
  }

  // The cell before a step is read from the slice of the next one.
  const BackwardCopies<Is, Cell::kReadsOldCell ? 2 : 1> own(args, group, base, first_unit, stride,
                                                            Is::kCopyWarp ? lane : thread);
  if (!Is::kCopyWarp || !computes) own.begin();
  __syncthreads();
  ptx::sync_cluster();
  if (!computes) {
#pragma unroll 1
    for (int s = 0; s < steps; ++s) {
      own.before();
      ptx::sync_threads(kStepBarrier, kThreads);
      own.after(s);
    }
    ptx::sync_cluster();
    return;
  }

  // ---- what this thread sends: pieces of 16 bytes, to each block the same
  uint32_t send_to[Is::kSends], send_barrier[Is::kSends];
  int send_from[Is::kSends];  // none: -1
  const int pieces = kGates * units * stride / 8;
#pragma unroll
  for (int i = 0; i < Is::kSends; ++i) {
    const int e = thread + i * Is::kComputing, piece = e % pieces, block = e / pieces;
    const uint32_t there = ptx::in_block(base, block < blocks ? block : 0);
    const int chunk = rank * kGates * kGroups + piece * 16 / chunk_bytes;
    send_to[i] = there + Is::kState + rank * kGates * kGroups * chunk_bytes + piece * 16;
    send_barrier[i] = there + Is::kBarriers + 8 * (chunk / kChunks);
    send_from[i] = block < blocks ? static_cast<int>(base) + Is::kStaged + piece * 16 : -1;
  }

  // ---- units of this thread
  const int row = lane % 8;
  const bool mine = row < stride;
  const int64_t state_row = d * args.sizes.batch + rows.first;
  int unit[kItems];
  uint32_t place[kItems];  // of gate 0, in the exchange's order
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
    grad_c[i] = any_c ? load_cell<T>(args.grad_c_n, at, args.sizes.half_cells) : 0.0f;
  }
  uint32_t lane_state =
      base + Is::kState + warp * kChunks * chunk_bytes + q * 8 * stride + g % stride * 8;
  keep(lane_state);
  keep(expected);
  const uint32_t own_barrier = barriers + 8 * warp;
  int given = 0;  // rows that gave gradients the step before; of others not even 0 x inf counts
  // One more than there are steps, for the gradient of h before the first.
#pragma unroll 1
  for (int s = 0; s <= steps; ++s) {
    const int parity = s & 1;
    const bool last = s == steps;
    const int active = last ? 0 : rows.active(own.time(s));
    const uint32_t slice = base + Is::kSlices + s % Is::kDepth * Is::kSliceBytes;

    // ---- what does not depend on gradients, while they are on their way
    typename Cell::Slopes slopes[kItems];
    float grad_out[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const uint32_t in_slice = slice + row * Is::kSliceRow + unit[i] * 2;
      const uint32_t cell = Is::kCells + row * Is::kCellRow + unit[i] * 4;
      float gates[kGates];
#pragma unroll
      for (int m = 0; m < kGates; ++m) {
        gates[m] = widen_bits<T>(ptx::load2(in_slice + m * kRows * Is::kSliceRow));
      }
      grad_out[i] =
          any_grad ? widen_bits<T>(ptx::load2(in_slice + kGates * kRows * Is::kSliceRow)) : 0.0f;
      const float new_cell = ptx::load_float(slice + cell);
      float old_cell = 0;
      if constexpr (Cell::kReadsOldCell) {
        if (s + 1 < steps && row < rows.active(own.time(s + 1))) {
          old_cell =
              ptx::load_float(base + Is::kSlices + (s + 1) % Is::kDepth * Is::kSliceBytes + cell);
        } else if (mine && row < rows.count && first_unit + unit[i] < hidden) {
          old_cell = load_cell<T>(args.c0, (state_row + row) * hidden + first_unit + unit[i],
                                  args.sizes.half_cells);
        }
      }
      slopes[i] = Cell::slopes(gates, old_cell, new_cell);
    }

    const uint32_t barrier = own_barrier + parity * kWarps * 8;
    if (s > 0) ptx::wait_barrier(barrier, (s - 1) >> 1 & 1);

    // ---- product with the gradients of all gates
    constexpr int kChains = kGroups <= 2 ? 2 : 1;  // independent sums, where registers allow
    float sum[kChains][kGroups][4] = {};
    const uint32_t state = lane_state + parity * Is::kStateBytes;
    constexpr int kBatch = kChunks % 6 == 0 ? 6 : kChunks;
#pragma unroll
    for (int first = 0; first < kChunks; first += kBatch) {
      uint2 b[kBatch];
#pragma unroll
      for (int k = 0; k < kBatch; ++k) b[k] = ptx::load8(state + (first + k) * chunk_bytes);
#pragma unroll
      for (int k = first; k < first + kBatch; ++k) {
#pragma unroll
        for (int m = 0; m < kGroups; ++m) {
          uint4 a;
          if (k < Is::kKept) {
            const uint32_t* from = kept + (k < Is::kKept ? k : 0) * kGroups * 4 + m * 4;
            a = {from[0], from[1], from[2], from[3]};
          } else {
            const int at = (warp * (kChunks - Is::kKept) + k - Is::kKept) * kGroups + m;
            a = ptx::load16(base + Is::kWeights + at * 512 + lane * 16);
          }
          const uint2 x = b[k - first];
          ptx::multiply_add<T>(sum[k % kChains][m], a.x, a.y, a.z, a.w, x.x, x.y);
        }
      }
    }
#pragma unroll
    for (int m = 0; m < kGroups; ++m) {
      if (2 * q >= stride) continue;
      if constexpr (kChains == 2) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[0][m][i] += sum[kChains - 1][m][i];
      }
      const uint32_t at = base + Is::kSums + ((warp * units + m * 16 + g) * 8 + 2 * q) * 4;
      ptx::store_floats(at, sum[0][m][0], sum[0][m][1]);
      ptx::store_floats(at + 8 * 8 * 4, sum[0][m][2], sum[0][m][3]);
    }
    ptx::sync_threads(1, Is::kComputing);
    if (s > 0 && lane == 0) ptx::arrive_expecting(barrier, expected);

    // ---- cells
    const uint32_t staged = base + Is::kStaged + parity * Is::kStagedBytes;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (!mine) continue;
      float parts[kWarps];
#pragma unroll
      for (int k = 0; k < kWarps; ++k) {
        parts[k] = ptx::load_float(base + Is::kSums + ((k * units + unit[i]) * 8 + row) * 4);
      }
      if (row < given) grad_h[i] += sum_in_pairs(parts);
      const bool real = row < rows.count && first_unit + unit[i] < hidden;
      if (last) {
        if (!real) continue;
        const int64_t at = (state_row + row) * hidden + first_unit + unit[i];
        if (args.grad_h0 != nullptr) {
          static_cast<T*>(args.grad_h0)[at] = Narrow<T>::from(grad_h[i]);
        }
        if (args.grad_c0 != nullptr) {
          store_cell<T>(args.grad_c0, at, args.sizes.half_cells, grad_c[i]);
        }
        continue;
      }
      // A row that has no such step keeps its gradients, and gives none.
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
        ptx::store2(staged + m * kGroups * chunk_bytes + place[i], grads[m]);
      }
    }
    if (last) break;
    ptx::sync_threads(kSendBarrier, Is::kComputing);

    // ---- to the other blocks
#pragma unroll
    for (int i = 0; i < Is::kSends; ++i) {
      if (send_from[i] < 0) continue;
      ptx::send16(send_to[i] + (parity ^ 1) * Is::kStateBytes,
                  ptx::load16(send_from[i] + parity * Is::kStagedBytes),
                  send_barrier[i] + (parity ^ 1) * kWarps * 8);
    }

    // ---- while that is on its way
    if (!Is::kCopyWarp) own.before();
    ptx::sync_threads(kStepBarrier, kThreads);
    if (!Is::kCopyWarp) own.after(s);
    given = active;
  }
  ptx::sync_cluster();
#endif
}

}  // namespace treadle
