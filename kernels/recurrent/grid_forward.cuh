// The regime "grid", forward, for any cell: grid.cuh says how.
#pragma once

#include "kernels/grid.cuh"

namespace treadle {

template <template <class> class CellOf, class T>
__global__ void __launch_bounds__(kGridThreads, 1)
    grid_forward(const __grid_constant__ PersistentForward args, int rows_each) {
  begin_kernel();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  using Cell = CellOf<float>;
  constexpr int kGates = Cell::kGates;
  using Is = GridForward<kGates>;
  constexpr int kChunks = Is::kChunks, kTiles = Is::kTiles;
  extern __shared__ __align__(128) unsigned char memory[];
  const uint32_t base = ptx::shared_address(memory);
  const int thread = threadIdx.x, lane = thread % kWarp, warp = thread / kWarp;
  const int rank = static_cast<int>(blockIdx.x) % kGridBlocks;
  const int group_number = static_cast<int>(blockIdx.x) / kGridBlocks;
  const int groups = static_cast<int>(gridDim.x) / kGridBlocks;
  const Group group(args.sizes, group_number, rows_each);
  const GroupRows& rows = group.rows;
  const int64_t hidden = args.sizes.hidden, d = group.direction;
  const int steps = static_cast<int>(args.sizes.steps);
  const int first_unit = rank * kGridUnits, tiles = rows_each / 8;
  const int g = lane / 4, q = lane % 4;
  const bool save = args.gates != nullptr, vector = hidden % 8 == 0 && args.output_row % 4 == 0;

  // ---- weights: of each chunk of 32 k, lane q has units 8q .. 8q + 7, for two products
  uint32_t kept[Is::kKept * kTiles * 4];
  {
    const auto* weight =
        static_cast<const uint16_t*>(args.weight_hh) + d * kGates * hidden * hidden;
    const bool aligned = hidden % 4 == 0 && reinterpret_cast<uintptr_t>(weight) % 8 == 0;
#pragma unroll
    for (int c = 0; c < 2 * kChunks; ++c) {
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        const int64_t k = (warp * kChunks + c / 2) * 32 + 8 * q + c % 2 * 4;
        const int64_t u = first_unit + m / kGates * 16 + g;
        const uint16_t* at = weight + (m % kGates * hidden + u) * hidden + k;
        const uint2 low = load_four(at, u < hidden ? hidden - k : 0, aligned);
        const uint2 high = load_four(at + 8 * hidden, u + 8 < hidden ? hidden - k : 0, aligned);
        if (c < Is::kKept) {
          uint32_t* to = kept + (c < Is::kKept ? c : 0) * kTiles * 4 + m * 4;
          to[0] = low.x, to[1] = high.x, to[2] = low.y, to[3] = high.y;
        } else {
          const int place = (warp * (2 * kChunks - Is::kKept) + c - Is::kKept) * kTiles + m;
          ptx::store16(base + Is::kWeights + place * 512 + lane * 16,
                       {low.x, high.x, low.y, high.y});
        }
      }
    }
  }
  auto* bias = reinterpret_cast<float*>(memory + Is::kBias);
  for (int e = thread; e < kGates * kGridUnits; e += kGridThreads) {
    const int64_t u = first_unit + e % kGridUnits;
    const bool any = args.bias != nullptr && u < hidden;
    bias[e] =
        any ? widen(static_cast<const T*>(args.bias)[(d * kGates + e / kGridUnits) * hidden + u])
            : 0.0f;
  }

  // ---- this thread's unit, one row of each tile; c and h lie in shared memory
  const int unit = warp * 4 + lane / 8, row_in_tile = lane % 8;
  const bool real = first_unit + unit < hidden;
  const int64_t state_row = d * args.sizes.batch + rows.first;
  auto* cells = reinterpret_cast<float*>(memory + Is::kCells);
  auto* last_h = reinterpret_cast<uint16_t*>(cells + rows_each * kGridUnits);
  for (int j = 0; j < tiles; ++j) {
    const int row = j * 8 + row_in_tile;
    const bool any = real && row < rows.count;
    const int64_t at = (state_row + row) * hidden + first_unit + unit;
    cells[j * kGridThreads + thread] =
        any ? load_cell<T>(args.c0, at, args.sizes.half_cells) : 0.0f;
    // Rounded again: a NaN of all ones would be waited for.
    const float h = any ? widen(static_cast<const T*>(args.h0)[at]) : 0.0f;
    last_h[j * kGridThreads + thread] = Narrow<T>::from(h).bits;
  }

  // ---- the input's products, some steps ahead: this thread copies 16 bytes of a row for each gate
  const auto time = [&](int s) { return d == 0 ? s : steps - 1 - s; };
  const uint32_t slices = base + Is::kCells + rows_each * kGridUnits * 6;
  const int gate_bytes = rows_each * Is::kSliceRow;
  const auto slice_of = [&](int s) { return slices + s % Is::kDepth * (kGates * gate_bytes); };
  const int piece_row = thread / 4, piece_unit = first_unit + thread % 4 * 8;
  const bool copies = piece_row < rows_each && piece_unit < hidden;
  const uint32_t piece_at = piece_row * Is::kSliceRow + thread % 4 * 16;
  const char* const piece_from =
      static_cast<const char*>(args.products) +
      2 * (d * args.product_direction + (rows.first + piece_row) * args.product_row + piece_unit);
  const auto fetch = [&](int s) {
    if (s < steps && copies && piece_row < rows.active(time(s))) {
      const char* from = piece_from + rows.start(time(s)) * static_cast<int>(args.product_row) * 2;
      const uint32_t to = slice_of(s) + piece_at;
#pragma unroll
      for (int m = 0; m < kGates; ++m) {
        ptx::copy16_async(to + m * gate_bytes, from + m * args.product_gate * 2);
      }
    }
    ptx::commit_copies();
  };
  // Gates have taken the place of products, of one tile.
  const int64_t all_rows = rows.start(steps);
  const int gate = thread / 32, gate_row = thread / 4 % 8;
  const int left = static_cast<int>(hidden) - piece_unit;
  char* const gates_to =
      static_cast<char*>(args.gates) +
      2 * (((d * all_rows + rows.first + gate_row) * kGates + gate) * hidden + piece_unit);
  const auto store_gates = [&](int s, int j) {
    const int r = j * 8 + gate_row;
    if (gate >= kGates || left <= 0 || r >= rows.active(time(s))) return;
    store_eight(gates_to + (rows.start(time(s)) + j * 8) * (kGates * static_cast<int>(hidden)) * 2,
                ptx::load16(slice_of(s) + gate * gate_bytes + r * Is::kSliceRow + thread % 4 * 16),
                left, vector);
  };

  // ---- h of all blocks: where a step finds it, and where this block's goes
  const int64_t step_bytes = int64_t{groups} * tiles * kGridForwardTile;
  char* const own_exchange =
      static_cast<char*>(args.exchange) + int64_t{group_number} * tiles * kGridForwardTile;
  const char* read_from = own_exchange + warp * kChunks * 512 + (q * 8 + g) * 16 - step_bytes;
  char* write_to = own_exchange + rank * 512 + (warp / 2 * 8 + lane) * 16 + warp % 2 * 8;
  char* const output_to =
      static_cast<char*>(args.output) +
      2 * ((rows.first + lane) * args.output_row + d * hidden + first_unit + warp * 4);
  const auto initial = [&](int j, int c) {  // h0, as if it had arrived
    const int r = j * 8 + g;
    const int64_t k = (warp * kChunks + c) * 32 + 8 * q;
    return words_of(static_cast<const uint16_t*>(args.h0) + (state_row + r) * hidden + k,
                    r < rows.count ? hidden - k : 0);
  };
  for (int s = 0; s < Is::kAhead; ++s) fetch(s);
  ptx::wait_copies<Is::kAhead - 1>();
  __syncthreads();

  // This thread's of the sums that warps write, and what it writes.
  const uint32_t own_sums = base + (unit * 8 + row_in_tile) * 4;
  const uint32_t sums_to = base + ((warp * kGates * kGridUnits + g) * 8 + 2 * q) * 4;
  const int four_left = static_cast<int>(hidden) - first_unit - warp * 4;
  int parity = 0;
  int before_s = 0, before_j = -1;  // the tile before, whose gates are to be stored
  Words words[kChunks];
  bool loaded = false;  // before its turn: what has come by then
#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
    const int active = rows.active(time(s)), active_before = s == 0 ? 0 : rows.active(time(s - 1));
    const int64_t start = rows.start(time(s));
#pragma unroll 1
    for (int j = 0; j < tiles; ++j) {
      const bool last_tile = j + 1 == tiles;
      // Uniform in the group: nobody sends or waits for a tile that has no such step.
      if (active <= j * 8) {
        if (last_tile) {
          ptx::wait_copies<Is::kAhead - 2>();
          __syncthreads();
          fetch(s + Is::kAhead);
        }
        continue;
      }
      if (active_before > j * 8) {
        const char* from = read_from + j * kGridForwardTile;
        if (!loaded) load_all(words, from);
        wait_for_all(words, from);
      } else {
#pragma unroll
        for (int c = 0; c < kChunks; ++c) words[c] = initial(j, c);
      }

      // ---- product
      float sum[kTiles][4] = {};
#pragma unroll
      for (int c = 0; c < 2 * kChunks; ++c) {
        const uint2 b = words[c / 2].half(c % 2);
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          uint4 a;
          if (c < Is::kKept) {
            const uint32_t* from = kept + (c < Is::kKept ? c : 0) * kTiles * 4 + m * 4;
            a = {from[0], from[1], from[2], from[3]};
          } else {
            const int place = (warp * (2 * kChunks - Is::kKept) + c - Is::kKept) * kTiles + m;
            a = ptx::load16(base + Is::kWeights + place * 512 + lane * 16);
          }
          ptx::multiply_add<T>(sum[m], a.x, a.y, a.z, a.w, b.x, b.y);
        }
      }
      const uint32_t sums = parity * Is::kSumBytes;
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        const uint32_t at = sums_to + sums + (m % kGates * kGridUnits + m / kGates * 16) * 8 * 4;
        ptx::store_floats(at, sum[m][0], sum[m][1]);
        ptx::store_floats(at + 8 * 8 * 4, sum[m][2], sum[m][3]);
      }
      if (last_tile) ptx::wait_copies<Is::kAhead - 2>();
      __syncthreads();

      float gates[kGates];
      const int row = j * 8 + row_in_tile;
      const uint32_t in_slice = slice_of(s) + row * Is::kSliceRow + unit * 2;
#pragma unroll
      for (int m = 0; m < kGates; ++m) {
        float parts[kGridWarps];
#pragma unroll
        for (int k = 0; k < kGridWarps; ++k) {
          parts[k] = ptx::load_float(own_sums + sums + (k * kGates + m) * kGridUnits * 8 * 4);
        }
        gates[m] = widen_bits<T>(ptx::load2(in_slice + m * gate_bytes)) +
                   bias[m * kGridUnits + unit] + sum_in_pairs(parts);
      }
      // The next tile's loads travel while this one's cells are computed.
      loaded = tiles > 1 && (last_tile ? s + 1 < steps && rows.active(time(s + 1)) > 0
                                       : active > j * 8 + 8 && active_before > j * 8 + 8);
      if (loaded) {
        load_all(words,
                 last_tile ? read_from + step_bytes : read_from + (j + 1) * kGridForwardTile);
      }

      // ---- cells
      const int item = j * kGridThreads + thread;
      uint16_t h = last_h[item];
      if (real && row < active) {
        const auto next = Cell::forward(gates, cells[item]);
        cells[item] = next.new_cell;
        h = Narrow<T>::from(next.new_h).bits;
        last_h[item] = h;
      }
      const uint2 four = gather_four(h);
      if (lane < 8) {
        if (s + 1 < steps) {
          store_word(write_to + j * kGridForwardTile, four.x | uint64_t{four.y} << 32);
        }
        if (j * 8 + lane < active && four_left > 0) {
          store_four(output_to + (start + j * 8) * static_cast<int>(args.output_row) * 2, four,
                     four_left, vector);
        }
      }
      if (save) {
        if (before_j >= 0) store_gates(before_s, before_j);
        before_s = s;
        before_j = j;
#pragma unroll
        for (int m = 0; m < kGates; ++m) {
          ptx::store2(in_slice + m * gate_bytes, Narrow<T>::from(gates[m]).bits);
        }
      }
      parity ^= 1;
      if (last_tile) fetch(s + Is::kAhead);
    }
    read_from += step_bytes;
    write_to += step_bytes;
  }
  __syncthreads();
  if (save && before_j >= 0) store_gates(before_s, before_j);
  for (int j = 0; j < tiles; ++j) {
    const int row = j * 8 + row_in_tile, item = j * kGridThreads + thread;
    if (!real || row >= rows.count) continue;
    const int64_t at = (state_row + row) * hidden + first_unit + unit;
    static_cast<uint16_t*>(args.h)[at] = last_h[item];
    store_cell<T>(args.c, at, args.sizes.half_cells, cells[item]);
  }
#endif
}

}  // namespace treadle
