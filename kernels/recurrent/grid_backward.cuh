// Grid kernel, backward, for any cell in half types (grid.cuh says how blocks exchange).
// grad_h_{t-1} = grad_gates_t W_hh: a block computes it for its own units and needs the gradients
// of all gates of all units. rows_each: rows a group. Threads as in grid_forward.cuh. Twin:
// kernels/recurrent/cpu/rows_backward.h.
#pragma once

#include "kernels/recurrent/grid.cuh"

namespace treadle {

// One function: weights, addresses and the state of a thread fill the registers, and parts that
// pass them on would need more of them.
template <class Cell, class T, bool any_resets>
__global__ void __launch_bounds__(kGridThreads, 1)
    grid_backward(const __grid_constant__ PersistentBackward args, int rows_each) {
  begin_kernel();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  constexpr int kGates = Cell::kGates, kStateGates = Cell::kStateGates;
  using Layout = GridBackward<kGates, kStateGates>;
  constexpr int kChunks = Layout::kChunks, kTiles = Layout::kTiles,
                kTileBytes = kGridBackwardTile<kStateGates>;
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

  // ---- weights transposed: column u of W_hh; chunks of 32 k by block, then gate
  using Weights = WarpWeights<2 * kChunks, kTiles, Layout::kInRegisters>;
  uint32_t in_registers[Weights::kRegisters];
  const Weights weights{in_registers, base + Layout::kWeights, warp, lane};
  {
    const auto* weight =
        static_cast<const uint16_t*>(args.weight_hh) + d * kStateGates * hidden * hidden;
    const auto load = [&](int c, int64_t u) {
      const int chunk = warp * kChunks + c / 2;
      const int64_t first = chunk / kStateGates * kGridUnits + 8 * q + c % 2 * 4;
      const int64_t m = Cell::weight_block(chunk % kStateGates);
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
        weights.set(c, m, low, high);
      }
    }
  }

  // ---- this thread's unit, one row of each tile; gradients of c and h lie in shared memory
  const int unit = warp * 4 + lane / 8, row_in_tile = lane % 8;
  const bool real = first_unit + unit < hidden;
  const int64_t state_row = d * args.sizes.batch + rows.first;
  const GroupResets<any_resets> resets{args.resets, args.sizes, group};
  GridMarks<any_resets, true, most_grid_rows<Layout>()> marks{resets, 0, 0};
  marks.load(0);
  auto* grad_h = reinterpret_cast<float*>(memory + Layout::kGrads);
  float* const grad_c = grad_h + rows_each * kGridUnits;
  for (int j = 0; j < tiles; ++j) {
    const int row = j * 8 + row_in_tile, item = j * kGridThreads + thread;
    const bool any = real && row < rows.count;
    const int64_t at = (state_row + row) * hidden + first_unit + unit;
    const bool any_h = any && args.grad_h_n != nullptr, any_c = any && args.grad_c_n != nullptr;
    grad_h[item] = any_h ? widen(static_cast<const T*>(args.grad_h_n)[at]) : 0.0f;
    grad_c[item] = any_c ? load_c<T>(args.grad_c_n, at, args.sizes.half_c) : 0.0f;
  }

  // ---- prefetches what forward saved
  const auto time = [&](int s) { return group.backward_time(s, steps); };
  const uint32_t stages = base + Layout::kGrads + rows_each * kGridUnits * 8;
  const auto stage_of = [&](int s) {
    return stages + s % Layout::kDepth * (rows_each * Layout::kStageBytes);
  };
  const int array_bytes = rows_each * Layout::kStageRow, c_states_at = (kGates + 1) * array_bytes;
  // This thread copies 16 bytes of a row for each gate and grad_output, and 32 of c.
  const int copy_row = thread / 4, copy_unit = first_unit + thread % 4 * 8;
  const bool copies = copy_row < rows_each && copy_unit < hidden;
  const uint32_t copy_at = copy_row * Layout::kStageRow + thread % 4 * 16;
  const uint32_t c_at = c_states_at + copy_row * Layout::kCRow + thread % 4 * 32;
  const int64_t in_batch = rows.first + copy_row;
  const char* const gates_from =
      static_cast<const char*>(args.gates) +
      2 * (d * args.gate_direction + in_batch * args.gate_row + copy_unit);
  const char* const grad_from =
      static_cast<const char*>(args.grad_output) +
      2 * (d * args.grad_direction + in_batch * args.grad_row + copy_unit);
  const char* const c_states_from = static_cast<const char*>(args.c_states) +
                                    4 * (d * args.c_direction + in_batch * args.c_row + copy_unit);
  const auto fetch = [&](int s) {
    if (s < steps && copies && copy_row < rows.active(time(s))) {
      const int64_t start = rows.start(time(s));
      const char* gates = gates_from + start * static_cast<int>(args.gate_row) * 2;
      const char* c_states = c_states_from + start * static_cast<int>(args.c_row) * 4;
      const uint32_t to = stage_of(s) + copy_at, c_to = stage_of(s) + c_at;
#pragma unroll
      for (int m = 0; m < kGates; ++m) {
        ptx::copy16_async(to + m * array_bytes, gates + m * args.gate_gate * 2);
      }
      if (any_grad) {
        ptx::copy16_async(to + kGates * array_bytes,
                          grad_from + start * static_cast<int>(args.grad_row) * 2);
      }
      ptx::copy16_async(c_to, c_states);
      ptx::copy16_async(c_to + 16, c_states + 16);
    }
    ptx::commit_copies();
  };

  // ---- gradients of all blocks: where a step finds them, and where this block's go
  GridExchange<kChunks, kTileBytes> exchange(args.exchange, group_number, groups, tiles,
                                             rank * kStateGates, warp, lane);
  const int64_t all_rows = rows.start(steps);
  char* const grads_to =
      static_cast<char*>(args.grad_gates) +
      2 * ((d * all_rows + rows.first + lane) * kGates * hidden + first_unit + warp * 4);
  const int four_left = static_cast<int>(hidden) - first_unit - warp * 4;

  // The first stage is there after the barrier.
  for (int s = 0; s < Layout::kAhead; ++s) fetch(s);
  ptx::wait_copies<Layout::kAhead - 1>();
  __syncthreads();

  const uint32_t own_sums = base + (unit * 8 + row_in_tile) * 4;
  const uint32_t sums_to = base + ((warp * kGridUnits + g) * 8 + 2 * q) * 4;
  int parity = 0;  // of the tile: sums have two buffers, so one barrier a tile is enough
  Words words[kChunks];
  bool loaded = false;  // whether `words` has been read ahead
  // One iteration more than steps, for grad_h0.
#pragma unroll 1
  for (int s = 0; s <= steps; ++s) {
    const int64_t start = s < steps ? rows.start(time(s)) : 0;
    const int active = s < steps ? rows.active(time(s)) : 0;
    const int active_before = s > 0 ? rows.active(time(s - 1)) : 0;
#pragma unroll 1
    for (int j = 0; j < tiles; ++j) {
      const bool last_tile = j + 1 == tiles;
      const bool product = active_before > j * 8;
      // Uniform in the group: nobody sends or waits for a tile that is in neither step.
      if (active <= j * 8 && !product) {
        if (last_tile) {
          ptx::wait_copies<Layout::kAhead - 2>();
          __syncthreads();
          fetch(s + Layout::kAhead);
        }
        continue;
      }
      const int item = j * kGridThreads + thread, row = j * 8 + row_in_tile;
      float sum[kTiles][1][4] = {};
      if (product) {
        exchange.wait(words, j, loaded);
#pragma unroll
        for (int c = 0; c < 2 * kChunks; ++c) {
          const uint2 b[1] = {words[c / 2].half(c % 2)};
          multiply_chunk<T>(weights, c, b, sum);
        }
      }
      const uint32_t sums = parity * Layout::kSumBytes;
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        store_sums(sums_to + sums + m * 16 * 8 * 4, sum[m][0]);
      }
      // The partial sums are complete, and after the last tile the next stage is there.
      if (last_tile) ptx::wait_copies<Layout::kAhead - 2>();
      __syncthreads();

      // The next tile's loads travel while the cell is computed.
      loaded = tiles > 1 && (last_tile ? active > 0 && s < steps : active_before > (j + 1) * 8);
      if (loaded) exchange.load_next(words, j, last_tile);

      // ---- the cell, of one unit and row a thread
      // Not shared with the other kernels: a function for it changes the machine code.
      float parts[kGridWarps];
#pragma unroll
      for (int k = 0; k < kGridWarps; ++k) {
        parts[k] = ptx::load_float(own_sums + sums + k * kGridUnits * 8 * 4);
      }
      // Rows without the step before sent zeros; their products are not added: 0 x inf would be
      // NaN.
      float dh = grad_h[item] + (row < active_before ? sum_in_pairs(parts) : 0.0f);
      if (any_resets && marks.before(j) && real) {
        resets.take(time(s - 1), row, first_unit + unit, dh, grad_c[item]);
      }
      // A row without this step keeps its gradients and sends zeros.
      uint16_t grads[kGates] = {};
      if (real && row < active) {
        const uint32_t in_stage = stage_of(s) + row * Layout::kStageRow + unit * 2;
        float gates[kGates];
#pragma unroll
        for (int m = 0; m < kGates; ++m) {
          gates[m] = widen_bits<T>(ptx::load2(in_stage + m * array_bytes));
        }
        const float old_cell =
            ptx::load_float(stage_of(s) + c_states_at + row * Layout::kCRow + unit * 4);
        const float grad_out =
            any_grad ? widen_bits<T>(ptx::load2(in_stage + kGates * array_bytes)) : 0.0f;
        const auto grad = Cell::backward(gates, old_cell, dh + grad_out, grad_c[item]);
        grad_c[item] = grad.old_cell;
        grad_h[item] = 0.0f;
#pragma unroll
        for (int m = 0; m < kGates; ++m) grads[m] = Narrow<T>::from(grad.gates[m]).bits;
      } else {
        grad_h[item] = dh;
      }
      // Uniform in the block: gather_four shuffles whole warps.
      if (active > j * 8) {
        char* const to = grads_to + (start + j * 8) * (kGates * static_cast<int>(hidden)) * 2;
#pragma unroll
        for (int m = 0; m < kGates; ++m) {
          const uint2 four = gather_four(grads[m]);
          if (lane >= 8) continue;
          if (m < kStateGates) exchange.send(j, m, four);
          if (j * 8 + lane < active && four_left > 0) {
            store_four(to + m * hidden * 2, four, four_left, vector);
          }
        }
      }
      parity ^= 1;
      if (last_tile) fetch(s + Layout::kAhead);
    }
    exchange.advance();
    marks.load(s + 1);
  }
  for (int j = 0; j < tiles; ++j) {
    const int row = j * 8 + row_in_tile, item = j * kGridThreads + thread;
    if (!real || row >= rows.count) continue;
    const int64_t at = (state_row + row) * hidden + first_unit + unit;
    if (args.grad_h0 != nullptr) {
      static_cast<T*>(args.grad_h0)[at] = Narrow<T>::from(grad_h[item]);
    }
    if (args.grad_c0 != nullptr) {
      store_c<T>(args.grad_c0, at, args.sizes.half_c, grad_c[item]);
    }
  }
#endif
}

}  // namespace treadle
