// The regime "grid", backward, for any cell: grid.cuh says how. A block has the gradients of h of
// its own units, for which it needs those of all gates of all units.
#pragma once

#include "kernels/grid.cuh"

namespace treadle {

template <template <class> class CellOf, class T>
__global__ void __launch_bounds__(kGridThreads, 1)
    grid_backward(const __grid_constant__ PersistentBackward args, int rows_each) {
  begin_kernel();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  using Cell = CellOf<float>;
  static_assert(!Cell::kReadsOldCell, "the slice before is not kept");
  constexpr int kGates = Cell::kGates;
  using Is = GridBackward<kGates>;
  constexpr int kChunks = Is::kChunks, kTiles = Is::kTiles, kTileBytes = kGridBackwardTile<kGates>;
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
  const bool any_grad = args.grad_output != nullptr, vector = hidden % 4 == 0;

  // ---- weights: of column u of W, the row of each gate; chunks by block, then gate
  uint32_t kept[Is::kKept * kTiles * 4];
  {
    const auto* weight =
        static_cast<const uint16_t*>(args.weight_hh) + d * kGates * hidden * hidden;
    const auto load = [&](int c, int64_t u) {
      const int chunk = warp * kChunks + c / 2;
      const int64_t m = chunk % kGates, first = chunk / kGates * kGridUnits + 8 * q + c % 2 * 4;
      uint32_t x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t v = first + i;
        x[i] = u < hidden && v < hidden ? __ldg(weight + (m * hidden + v) * hidden + u) : 0;
      }
      return uint2{x[0] | x[1] << 16, x[2] | x[3] << 16};
    };
#pragma unroll
    for (int c = 0; c < 2 * kChunks; ++c) {
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        const int64_t u = first_unit + m * 16 + g;
        const uint2 low = load(c, u), high = load(c, u + 8);
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

  // ---- this thread's unit, one row of each tile; gradients of c and h lie in shared memory
  const int unit = warp * 4 + lane / 8, row_in_tile = lane % 8;
  const bool real = first_unit + unit < hidden;
  const int64_t state_row = d * args.sizes.batch + rows.first;
  auto* grad_h = reinterpret_cast<float*>(memory + Is::kGrads);
  float* const grad_c = grad_h + rows_each * kGridUnits;
  for (int j = 0; j < tiles; ++j) {
    const int row = j * 8 + row_in_tile, item = j * kGridThreads + thread;
    const bool any = real && row < rows.count;
    const int64_t at = (state_row + row) * hidden + first_unit + unit;
    const bool any_h = any && args.grad_h_n != nullptr, any_c = any && args.grad_c_n != nullptr;
    grad_h[item] = any_h ? widen(static_cast<const T*>(args.grad_h_n)[at]) : 0.0f;
    grad_c[item] = any_c ? load_cell<T>(args.grad_c_n, at, args.sizes.half_cells) : 0.0f;
  }

  // ---- what forward saved, some steps ahead. Direction 1 ran backward in time.
  const auto time = [&](int s) { return d == 0 ? steps - 1 - s : s; };
  const uint32_t slices = base + Is::kGrads + rows_each * kGridUnits * 8;
  const auto slice_of = [&](int s) {
    return slices + s % Is::kDepth * (rows_each * Is::kSliceBytes);
  };
  const int array_bytes = rows_each * Is::kSliceRow, cells_at = (kGates + 1) * array_bytes;
  // This thread copies 16 bytes of a row for each gate, and 32 of cells.
  const int piece_row = thread / 4, piece_unit = first_unit + thread % 4 * 8;
  const bool copies = piece_row < rows_each && piece_unit < hidden;
  const uint32_t piece_at = piece_row * Is::kSliceRow + thread % 4 * 16;
  const uint32_t cell_at = cells_at + piece_row * Is::kCellRow + thread % 4 * 32;
  const int64_t in_batch = rows.first + piece_row;
  const char* const gates_from =
      static_cast<const char*>(args.gates) +
      2 * (d * args.gate_direction + in_batch * args.gate_row + piece_unit);
  const char* const grad_from =
      static_cast<const char*>(args.grad_output) +
      2 * (d * args.grad_direction + in_batch * args.grad_row + piece_unit);
  const char* const cells_from =
      static_cast<const char*>(args.cells) +
      4 * (d * args.cell_direction + in_batch * args.cell_row + piece_unit);
  const auto fetch = [&](int s) {
    if (s < steps && copies && piece_row < rows.active(time(s))) {
      const int64_t start = rows.start(time(s));
      const char* gates = gates_from + start * static_cast<int>(args.gate_row) * 2;
      const char* cells = cells_from + start * static_cast<int>(args.cell_row) * 4;
      const uint32_t to = slice_of(s) + piece_at, cell_to = slice_of(s) + cell_at;
#pragma unroll
      for (int m = 0; m < kGates; ++m) {
        ptx::copy16_async(to + m * array_bytes, gates + m * args.gate_gate * 2);
      }
      if (any_grad) {
        ptx::copy16_async(to + kGates * array_bytes,
                          grad_from + start * static_cast<int>(args.grad_row) * 2);
      }
      ptx::copy16_async(cell_to, cells);
      ptx::copy16_async(cell_to + 16, cells + 16);
    }
    ptx::commit_copies();
  };

  // ---- gradients of all blocks: where a step finds them, and where this block's go
  const int64_t step_bytes = int64_t{groups} * tiles * kTileBytes;
  char* const own_exchange =
      static_cast<char*>(args.exchange) + int64_t{group_number} * tiles * kTileBytes;
  const char* read_from = own_exchange + warp * kChunks * 512 + (q * 8 + g) * 16 - step_bytes;
  char* write_to = own_exchange + rank * kGates * 512 + (warp / 2 * 8 + lane) * 16 + warp % 2 * 8;
  const int64_t all_rows = rows.start(steps);
  char* const grads_to =
      static_cast<char*>(args.grad_gates) +
      2 * ((d * all_rows + rows.first + lane) * kGates * hidden + first_unit + warp * 4);
  const int four_left = static_cast<int>(hidden) - first_unit - warp * 4;

  for (int s = 0; s < Is::kAhead; ++s) fetch(s);
  ptx::wait_copies<Is::kAhead - 1>();
  __syncthreads();

  const uint32_t own_sums = base + (unit * 8 + row_in_tile) * 4;
  const uint32_t sums_to = base + ((warp * kGridUnits + g) * 8 + 2 * q) * 4;
  int parity = 0;
  Words words[kChunks];
  bool loaded = false;  // before its turn: what has come by then
  // One more than there are steps, for the gradient of h before the first.
#pragma unroll 1
  for (int s = 0; s <= steps; ++s) {
    const int64_t start = s < steps ? rows.start(time(s)) : 0;
    const int active = s < steps ? rows.active(time(s)) : 0;
    const int active_before = s > 0 ? rows.active(time(s - 1)) : 0;
#pragma unroll 1
    for (int j = 0; j < tiles; ++j) {
      const bool last_tile = j + 1 == tiles;
      const bool product = active_before > j * 8;
      if (active <= j * 8 && !product) {  // uniform in the group
        if (last_tile) {
          ptx::wait_copies<Is::kAhead - 2>();
          __syncthreads();
          fetch(s + Is::kAhead);
        }
        continue;
      }
      float sum[kTiles][4] = {};
      if (product) {
        const char* from = read_from + j * kTileBytes;
        if (!loaded) load_all(words, from);
        wait_for_all(words, from);
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
      }
      const uint32_t sums = parity * Is::kSumBytes;
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        const uint32_t at = sums_to + sums + m * 16 * 8 * 4;
        ptx::store_floats(at, sum[m][0], sum[m][1]);
        ptx::store_floats(at + 8 * 8 * 4, sum[m][2], sum[m][3]);
      }
      if (last_tile) ptx::wait_copies<Is::kAhead - 2>();
      __syncthreads();

      // The next tile's loads travel while this one's cells are computed.
      loaded = tiles > 1 && (last_tile ? active > 0 && s < steps : active_before > (j + 1) * 8);
      if (loaded) {
        load_all(words, last_tile ? read_from + step_bytes : read_from + (j + 1) * kTileBytes);
      }

      // ---- cells
      const int item = j * kGridThreads + thread, row = j * 8 + row_in_tile;
      float parts[kGridWarps];
#pragma unroll
      for (int k = 0; k < kGridWarps; ++k) {
        parts[k] = ptx::load_float(own_sums + sums + k * kGridUnits * 8 * 4);
      }
      // Of rows that gave no gradients the step before not even 0 x inf.
      const float dh = grad_h[item] + (row < active_before ? sum_in_pairs(parts) : 0.0f);
      // A row that has no such step keeps its gradients, and gives none.
      uint16_t grads[kGates] = {};
      if (real && row < active) {
        const uint32_t in_slice = slice_of(s) + row * Is::kSliceRow + unit * 2;
        float gates[kGates];
#pragma unroll
        for (int m = 0; m < kGates; ++m) {
          gates[m] = widen_bits<T>(ptx::load2(in_slice + m * array_bytes));
        }
        const float new_cell =
            ptx::load_float(slice_of(s) + cells_at + row * Is::kCellRow + unit * 4);
        const float grad_out =
            any_grad ? widen_bits<T>(ptx::load2(in_slice + kGates * array_bytes)) : 0.0f;
        const auto grad =
            Cell::backward(Cell::slopes(gates, 0.0f, new_cell), dh + grad_out, grad_c[item]);
        grad_c[item] = grad.old_cell;
        grad_h[item] = 0.0f;
#pragma unroll
        for (int m = 0; m < kGates; ++m) grads[m] = Narrow<T>::from(grad.gates[m]).bits;
      } else {
        grad_h[item] = dh;
      }
      if (active > j * 8) {
        char* const to = grads_to + (start + j * 8) * (kGates * static_cast<int>(hidden)) * 2;
#pragma unroll
        for (int m = 0; m < kGates; ++m) {
          const uint2 four = gather_four(grads[m]);
          if (lane >= 8) continue;
          store_word(write_to + j * kTileBytes + m * 512, four.x | uint64_t{four.y} << 32);
          if (j * 8 + lane < active && four_left > 0) {
            store_four(to + m * hidden * 2, four, four_left, vector);
          }
        }
      }
      parity ^= 1;
      if (last_tile) fetch(s + Is::kAhead);
    }
    read_from += step_bytes;
    write_to += step_bytes;
  }
  for (int j = 0; j < tiles; ++j) {
    const int row = j * 8 + row_in_tile, item = j * kGridThreads + thread;
    if (!real || row >= rows.count) continue;
    const int64_t at = (state_row + row) * hidden + first_unit + unit;
    if (args.grad_h0 != nullptr) {
      static_cast<T*>(args.grad_h0)[at] = Narrow<T>::from(grad_h[item]);
    }
    if (args.grad_c0 != nullptr) {
      store_cell<T>(args.grad_c0, at, args.sizes.half_cells, grad_c[item]);
    }
  }
#endif
}

}  // namespace treadle
