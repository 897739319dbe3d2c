// The regime "cluster", forward, for any cell: cluster.cuh says how. Warps of a block share its
// units by 16, and K, the units of the whole layer; sums over K meet in shared memory.
#pragma once

#include "kernels/cluster_forward_parts.cuh"

namespace treadle {

template <template <class> class CellOf, class T, int units, int blocks, int tiles>
__global__ void __launch_bounds__(
    ClusterForward<CellOf<float>::kGates, units, blocks, tiles>::kThreads, 1)
    cluster_forward(const __grid_constant__ PersistentForward args, int rows_each) {
  begin_kernel();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  using Cell = CellOf<float>;
  constexpr int kGates = Cell::kGates;
  using Is = ClusterForward<kGates, units, blocks, tiles>;
  constexpr int kSplits = Is::kSplits, kChunks = Is::kChunks, kItems = Is::kItems;
  constexpr int kThreads = Is::kThreads, kRows = Is::kRows;
  extern __shared__ __align__(128) unsigned char memory[];
  const uint32_t base = ptx::shared_address(memory);
  const int thread = threadIdx.x, lane = thread % kWarp, warp = thread / kWarp;
  const bool computes = warp < Is::kWarps;
  const int split = warp % kSplits, unit_group = warp / kSplits;
  const int rank = static_cast<int>(ptx::block_in_cluster());
  const Group group(args.sizes, static_cast<int>(blockIdx.x) / blocks, rows_each);
  const GroupRows& rows = group.rows;
  const int64_t hidden = args.sizes.hidden, d = group.direction;
  const int steps = static_cast<int>(args.sizes.steps);
  const int first_unit = rank * units;
  const bool save = args.gates != nullptr;
  // Rows of a tile that are exchanged: of several tiles always 8.
  const int stride = tiles > 1 ? 8 : rows_each;
  const int tile_bytes = 32 * stride;
  const int g = lane / 4, q = lane % 4;

  // ---- weights
  uint32_t kept[Is::kKept * kGates * 4];
  if (computes) {
    const auto* weight =
        static_cast<const uint16_t*>(args.weight_hh) + d * kGates * hidden * hidden;
    const int64_t u = first_unit + unit_group * 16 + g;
    const bool vector = hidden % 4 == 0 && reinterpret_cast<uintptr_t>(weight) % 8 == 0;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int m = 0; m < kGates; ++m) {
        const int64_t k = (split * kChunks + c) * 16 + 4 * q;
        const uint16_t* at = weight + (m * hidden + u) * hidden + k;
        const uint2 low = load_four(at, u < hidden ? hidden - k : 0, vector);
        const uint2 high = load_four(at + 8 * hidden, u + 8 < hidden ? hidden - k : 0, vector);
        if (c < Is::kKept) {
          uint32_t* to = kept + (c < Is::kKept ? c : 0) * kGates * 4 + m * 4;
          to[0] = low.x, to[1] = high.x, to[2] = low.y, to[3] = high.y;
        } else {
          const int at = (warp * (kChunks - Is::kKept) + c - Is::kKept) * kGates + m;
          ptx::store16(base + Is::kWeights + at * 512 + lane * 16, {low.x, high.x, low.y, high.y});
        }
      }
    }
  }
  auto* bias = reinterpret_cast<float*>(memory + Is::kBias);
  for (int e = thread; e < kGates * units; e += kThreads) {
    const int64_t u = first_unit + e % units;
    const bool any = args.bias != nullptr && u < hidden;
    bias[e] =
        any ? widen(static_cast<const T*>(args.bias)[(d * kGates + e / units) * hidden + u]) : 0.0f;
  }

  // ---- h before the first step, and barriers
  const int64_t state_row = d * args.sizes.batch + rows.first;
  {
    const auto* h = static_cast<const uint16_t*>(args.h0) + state_row * hidden;
    for (int e = thread; e < kRows * Is::kHidden; e += kThreads) {
      const int r = e / Is::kHidden, k = e % Is::kHidden, n = r % 8;
      if (n >= stride) continue;
      const uint16_t bits = r < rows.count && k < hidden ? h[r * hidden + k] : 0;
      ptx::store2(base + Is::kState + (k / 16 * tiles + r / 8) * tile_bytes +
                      k / 4 % 4 * 8 * stride + n * 8 + k % 4 * 2,
                  bits);
    }
  }
  const uint32_t barriers = base + Is::kBarriers;
  uint32_t expected = static_cast<uint32_t>(kChunks * tiles * tile_bytes);
  if (thread == 0) {
    for (int i = 0; i < 2 * kSplits; ++i) ptx::init_barrier(barriers + 8 * i);
    ptx::publish_barriers();
    for (int i = 0; i < 2 * kSplits; ++i) ptx::arrive_expecting(barriers + 8 * i, expected);
  }

  const ForwardCopies<Is> own(args, group, base, first_unit, stride, Is::kCopyWarp ? lane : thread);
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
  const int pieces = units * tiles * stride / 8;
#pragma unroll
  for (int i = 0; i < Is::kSends; ++i) {
    const int e = thread + i * Is::kComputing, piece = e % pieces, block = e / pieces;
    const uint32_t there = ptx::in_block(base, block < blocks ? block : 0);
    const int chunk = rank * Is::kGroups + piece * 16 / (tiles * tile_bytes);
    send_to[i] = there + Is::kState + rank * (units * tiles * stride * 2) + piece * 16;
    send_barrier[i] = there + Is::kBarriers + 8 * (chunk / kChunks);
    send_from[i] = block < blocks ? static_cast<int>(base) + Is::kStaged + piece * 16 : -1;
  }

  // ---- units of this thread
  const int row_in_tile = lane % 8;
  int unit[kItems], row[kItems];
  uint32_t place[kItems];  // among own units, in the exchange's order
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
    c[i] = real ? load_cell<T>(args.c0, at, args.sizes.half_cells) : 0.0f;
    // No step counts for what is not there.
    if (!real) row[i] = kRows;
  }
  uint32_t lane_state =
      base + Is::kState + split * kChunks * tiles * tile_bytes + q * 8 * stride + g % stride * 8;
  keep(lane_state);
  keep(expected);
  const uint32_t own_barrier = barriers + 8 * split;
  const bool rearms = unit_group == 0 && lane == 0;
  // Of the slice and of the sums, what this thread reads.
  uint32_t own_slice[kItems], own_sums[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int tile = (split * kItems + i) % tiles;
    own_slice[i] = base + Is::kSlices + (tile * 8 + row_in_tile) * Is::kSliceRow + unit[i] * 2;
    own_sums[i] = base + Is::kSums + ((tile * units + unit[i]) * 8 + row_in_tile) * 4;
  }
  const uint32_t sums_to =
      base + Is::kSums + ((split * kGates * tiles * units + unit_group * 16 + g) * 8 + 2 * q) * 4;

#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
    const int parity = s & 1;
    const int active = rows.active(d == 0 ? s : steps - 1 - s);
    const int slice = s % Is::kDepth * Is::kSliceBytes;

    // ---- what does not depend on h, while it is on its way
    float gates[kItems][kGates];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
#pragma unroll
      for (int m = 0; m < kGates; ++m) {
        gates[i][m] = widen_bits<T>(ptx::load2(own_slice[i] + slice + m * kRows * Is::kSliceRow)) +
                      bias[m * units + unit[i]];
      }
    }
    const uint32_t barrier = own_barrier + parity * kSplits * 8;
    if (s > 0) {
      ptx::wait_barrier(barrier, (s - 1) >> 1 & 1);
    }

    // ---- product with h
    float sum[kGates][tiles][4] = {};
    const uint32_t state = lane_state + parity * Is::kStateBytes;
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
#pragma unroll
        for (int m = 0; m < kGates; ++m) {
          uint4 a;
          if (k < Is::kKept) {
            const uint32_t* from = kept + (k < Is::kKept ? k : 0) * kGates * 4 + m * 4;
            a = {from[0], from[1], from[2], from[3]};
          } else {
            const int at = (warp * (kChunks - Is::kKept) + k - Is::kKept) * kGates + m;
            a = ptx::load16(base + Is::kWeights + at * 512 + lane * 16);
          }
#pragma unroll
          for (int j = 0; j < tiles; ++j) {
            const uint2 x = b[k - first][j];
            ptx::multiply_add<T>(sum[m][j], a.x, a.y, a.z, a.w, x.x, x.y);
          }
        }
      }
    }
    if (2 * q < stride) {
#pragma unroll
      for (int m = 0; m < kGates; ++m) {
#pragma unroll
        for (int j = 0; j < tiles; ++j) {
          const uint32_t at = sums_to + (m * tiles + j) * units * 8 * 4;
          ptx::store_floats(at, sum[m][j][0], sum[m][j][1]);
          ptx::store_floats(at + 8 * 8 * 4, sum[m][j][2], sum[m][j][3]);
        }
      }
    }
    ptx::sync_threads(1 + unit_group, kSplits * kWarp);
    if (s > 0 && rearms) ptx::arrive_expecting(barrier, expected);

    // ---- cells
    const uint32_t staged = base + Is::kStaged + parity * Is::kStagedBytes;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (!mine[i]) continue;
#pragma unroll
      for (int m = 0; m < kGates; ++m) {
        float parts[kSplits];
#pragma unroll
        for (int k = 0; k < kSplits; ++k) {
          parts[k] = ptx::load_float(own_sums[i] + (k * kGates + m) * tiles * units * 8 * 4);
        }
        gates[i][m] += sum_in_pairs(parts);
      }
      uint16_t h;
      if (row[i] < active) {
        const auto next = Cell::forward(gates[i], c[i]);
        c[i] = next.new_cell;
        h = Narrow<T>::from(next.new_h).bits;
      } else {
        h = ptx::load2(base + Is::kState + parity * Is::kStateBytes +
                       rank * (units * tiles * stride * 2) + place[i]);
      }
      ptx::store2(staged + place[i], h);
    }
    ptx::sync_threads(kSendBarrier, Is::kComputing);

    // ---- to the other blocks
    if (s + 1 < steps) {
#pragma unroll
      for (int i = 0; i < Is::kSends; ++i) {
        if (send_from[i] < 0) continue;
        ptx::send16(send_to[i] + (parity ^ 1) * Is::kStateBytes,
                    ptx::load16(send_from[i] + parity * Is::kStagedBytes),
                    send_barrier[i] + (parity ^ 1) * kSplits * 8);
      }
    }

    // ---- while that is on its way
    if (save) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        if (!mine[i]) continue;
#pragma unroll
        for (int m = 0; m < kGates; ++m) {
          ptx::store2(own_slice[i] + slice + m * kRows * Is::kSliceRow,
                      Narrow<T>::from(gates[i][m]).bits);
        }
      }
    }
    if (!Is::kCopyWarp) own.before();
    ptx::sync_threads(kStepBarrier, kThreads);
    if (!Is::kCopyWarp) own.after(s);
  }

  // ---- the last states
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (row[i] == kRows) continue;
    const int64_t at = (state_row + row[i]) * hidden + first_unit + unit[i];
    static_cast<uint16_t*>(args.h)[at] =
        ptx::load2(base + Is::kStaged + (steps - 1 & 1) * Is::kStagedBytes + place[i]);
    store_cell<T>(args.c, at, args.sizes.half_cells, c[i]);
  }
  ptx::sync_cluster();
#endif
}

}  // namespace treadle
