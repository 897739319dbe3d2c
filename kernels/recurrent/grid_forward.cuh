// Grid kernel, forward, for any cell in half types (grid.cuh says how blocks exchange h):
// gates_t = products_t + bias + h_{t-1} W_hh^T, then the cell. rows_each: rows a group.
// Threads: warp w multiplies all units of the block by an eighth of K with mma.sync m16n8k16; the
// partial sums meet in shared memory, then thread (unit, row of the tile) computes the cell.
// Twin: kernels/recurrent/cpu/rows_forward.h.
#pragma once

#include "kernels/recurrent/grid.cuh"

namespace treadle {

// One function: weights, addresses and the state of a thread fill the registers, and parts that
// pass them on would need more of them.
template <class Cell, class T, bool any_resets>
__global__ void __launch_bounds__(kGridThreads, 1)
    grid_forward(const __grid_constant__ PersistentForward args, int rows_each) {
  begin_kernel();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  constexpr int kGates = Cell::kGates, kStateGates = Cell::kStateGates;
  constexpr int kFirstInput = kGates - Cell::kInputGates;
  using Layout = GridForward<kGates, kStateGates>;
  constexpr int kChunks = Layout::kChunks, kTiles = Layout::kTiles;
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

  // ---- weights: of a chunk of 32 k, lane q has units 8q .. 8q + 7, for two products of 16 k
  using Weights = WarpWeights<2 * kChunks, kTiles, Layout::kInRegisters>;
  uint32_t in_registers[Weights::kRegisters];
  const Weights weights{in_registers, base + Layout::kWeights, warp, lane};
  {
    const auto* weight =
        static_cast<const uint16_t*>(args.weight_hh) + d * kStateGates * hidden * hidden;
    const bool aligned = hidden % 4 == 0 && reinterpret_cast<uintptr_t>(weight) % 8 == 0;
#pragma unroll
    for (int c = 0; c < 2 * kChunks; ++c) {
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        const int64_t k = (warp * kChunks + c / 2) * 32 + 8 * q + c % 2 * 4;
        const int64_t u = first_unit + m / kStateGates * 16 + g;
        const int block = Cell::weight_block(m % kStateGates);
        const uint16_t* at = weight + (block * hidden + u) * hidden + k;
        const uint2 low = load_four(at, u < hidden ? hidden - k : 0, aligned);
        const uint2 high = load_four(at + 8 * hidden, u + 8 < hidden ? hidden - k : 0, aligned);
        weights.set(c, m, low, high);
      }
    }
  }
  auto* bias = reinterpret_cast<float*>(memory + Layout::kBias);
  for (int e = thread; e < kGates * kGridUnits; e += kGridThreads) {
    const int64_t u = first_unit + e % kGridUnits;
    bias[e] = u < hidden ? bias_of<Cell, T>(args, d, e / kGridUnits, u) : 0.0f;
  }

  // ---- this thread's unit, one row of each tile; c and h lie in shared memory
  const int unit = warp * 4 + lane / 8, row_in_tile = lane % 8;
  const bool real = first_unit + unit < hidden;
  const int64_t state_row = d * args.sizes.batch + rows.first;
  const GroupResets<any_resets> resets{args.resets, args.sizes, group};
  GridMarks<any_resets, false, most_grid_rows<Layout>()> marks{resets, 0, 0};
  marks.load(1);
  auto* c_states = reinterpret_cast<float*>(memory + Layout::kCStates);
  auto* last_h = reinterpret_cast<uint16_t*>(c_states + rows_each * kGridUnits);
  for (int j = 0; j < tiles; ++j) {
    const int row = j * 8 + row_in_tile;
    const bool any = real && row < rows.count;
    const int64_t at = (state_row + row) * hidden + first_unit + unit;
    const float c = any ? load_c<T>(args.c0, at, args.sizes.half_c) : 0.0f;
    c_states[j * kGridThreads + thread] =
        any_resets && any ? resets.first_c(resets.before_first(row), c, row, first_unit + unit) : c;
    // Rounded anew: h0 may be a NaN of all ones, which would be waited for if it were sent.
    const float h = any ? widen(static_cast<const T*>(args.h0)[at]) : 0.0f;
    last_h[j * kGridThreads + thread] = Narrow<T>::from(h).bits;
  }

  // ---- prefetches the input's products: this thread copies 16 bytes of a row for each gate
  const auto time = [&](int s) { return group.forward_time(s, steps); };
  const uint32_t stages = base + Layout::kCStates + rows_each * kGridUnits * 6;
  const int gate_bytes = rows_each * Layout::kStageRow;
  const auto stage_of = [&](int s) { return stages + s % Layout::kDepth * (kGates * gate_bytes); };
  const int copy_row = thread / 4, copy_unit = first_unit + thread % 4 * 8;
  const bool copies = copy_row < rows_each && copy_unit < hidden;
  const uint32_t copy_at = copy_row * Layout::kStageRow + thread % 4 * 16;
  const char* const copy_from =
      static_cast<const char*>(args.products) +
      2 * (d * args.product_direction + (rows.first + copy_row) * args.product_row + copy_unit);
  const auto fetch = [&](int s) {
    if (s < steps && copies && copy_row < rows.active(time(s))) {
      const char* from = copy_from + rows.start(time(s)) * static_cast<int>(args.product_row) * 2;
      const uint32_t to = stage_of(s) + copy_at;
#pragma unroll
      for (int m = kFirstInput; m < kGates; ++m) {
        ptx::copy16_async(to + m * gate_bytes, from + m * args.product_gate * 2);
      }
    }
    ptx::commit_copies();
  };
  // Stores a tile's gates, which have taken the place of its products.
  const int64_t all_rows = rows.start(steps);
  const int gate = thread / 32, gate_row = thread / 4 % 8;
  const int left = static_cast<int>(hidden) - copy_unit;
  char* const gates_to =
      static_cast<char*>(args.gates) +
      2 * (((d * all_rows + rows.first + gate_row) * kGates + gate) * hidden + copy_unit);
  const auto store_gates = [&](int s, int j) {
    const int r = j * 8 + gate_row;
    if (gate >= kGates || left <= 0 || r >= rows.active(time(s))) return;
    store_eight(
        gates_to + (rows.start(time(s)) + j * 8) * (kGates * static_cast<int>(hidden)) * 2,
        ptx::load16(stage_of(s) + gate * gate_bytes + r * Layout::kStageRow + thread % 4 * 16),
        left, vector);
  };

  // ---- h of all blocks: where a step finds it, and where this block's goes
  GridExchange<kChunks, kGridForwardTile> exchange(args.exchange, group_number, groups, tiles, rank,
                                                   warp, lane);
  char* const output_to =
      static_cast<char*>(args.output) +
      2 * ((rows.first + lane) * args.output_row + d * hidden + first_unit + warp * 4);
  const auto initial = [&](int j, int c) {  // h0, as if received
    const int r = j * 8 + g;
    const int64_t k = (warp * kChunks + c) * 32 + 8 * q;
    if (any_resets && resets.before_first(r)) {
      const uint16_t* const row = resets.h_row(time(0), r);
      return words_of(row + k, row == nullptr ? 0 : hidden - k);
    }
    return words_of(static_cast<const uint16_t*>(args.h0) + (state_row + r) * hidden + k,
                    r < rows.count ? hidden - k : 0);
  };
  for (int s = 0; s < Layout::kAhead; ++s) fetch(s);
  ptx::wait_copies<Layout::kAhead - 1>();
  __syncthreads();

  // Where this thread reads the sums, and where it writes its part.
  const uint32_t own_sums = base + (unit * 8 + row_in_tile) * 4;
  const uint32_t sums_to = base + ((warp * kStateGates * kGridUnits + g) * 8 + 2 * q) * 4;
  const int four_left = static_cast<int>(hidden) - first_unit - warp * 4;
  int parity = 0;
  int before_s = 0, before_j = -1;  // the tile before, whose gates are stored behind the next one
  Words words[kChunks];
  bool loaded = false;  // whether `words` has been read ahead
#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
    const int active = rows.active(time(s)), active_before = s == 0 ? 0 : rows.active(time(s - 1));
    const int64_t start = rows.start(time(s));
#pragma unroll 1
    for (int j = 0; j < tiles; ++j) {
      const bool last_tile = j + 1 == tiles;
      // Uniform in the group: nobody sends or waits for a tile without this step. The copies of its
      // last tile must still be waited for and continued.
      if (active <= j * 8) {
        if (last_tile) {
          ptx::wait_copies<Layout::kAhead - 2>();
          __syncthreads();
          fetch(s + Layout::kAhead);
        }
        continue;
      }
      const int row = j * 8 + row_in_tile;
      if (active_before > j * 8) {
        exchange.wait(words, j, loaded);
      } else {
#pragma unroll
        for (int c = 0; c < kChunks; ++c) words[c] = initial(j, c);
      }

      // ---- product
      float sum[kTiles][1][4] = {};
#pragma unroll
      for (int c = 0; c < 2 * kChunks; ++c) {
        const uint2 b[1] = {words[c / 2].half(c % 2)};
        multiply_chunk<T>(weights, c, b, sum);
      }
      const uint32_t sums = parity * Layout::kSumBytes;
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        const int output = m % kStateGates * kGridUnits + m / kStateGates * 16;
        store_sums(sums_to + sums + output * 8 * 4, sum[m][0]);
      }
      // The partial sums are complete, and after the last tile the next stage is there. The sums
      // have two buffers, so one barrier a tile is enough.
      if (last_tile) ptx::wait_copies<Layout::kAhead - 2>();
      __syncthreads();

      float gates[kGates];
      const bool anew = any_resets && marks.before(j) && real;
      const auto next_start =
          resets.template states<uint16_t>(anew, time(s + 1), row, first_unit + unit);
      const uint32_t in_stage = stage_of(s) + row * Layout::kStageRow + unit * 2;
#pragma unroll
      for (int m = 0; m < kGates; ++m) {
        gates[m] = bias[m * kGridUnits + unit];
        if (m >= kFirstInput) {
          gates[m] = widen_bits<T>(ptx::load2(in_stage + m * gate_bytes)) + gates[m];
        }
        if (m >= kStateGates) continue;
        // Not shared with the other kernels: a function for it changes the machine code.
        float parts[kGridWarps];
#pragma unroll
        for (int k = 0; k < kGridWarps; ++k) {
          parts[k] = ptx::load_float(own_sums + sums + (k * kStateGates + m) * kGridUnits * 8 * 4);
        }
        gates[m] += sum_in_pairs(parts);
      }
      // The next tile's loads travel while the cell is computed.
      loaded = tiles > 1 && (last_tile ? s + 1 < steps && rows.active(time(s + 1)) > 0
                                       : active > j * 8 + 8 && active_before > j * 8 + 8);
      if (loaded) exchange.load_next(words, j, last_tile);

      // ---- the cell
      const int item = j * kGridThreads + thread;
      uint16_t h = last_h[item];
      if (real && row < active) {
        const auto next = Cell::forward(gates, c_states[item]);
        c_states[item] = next.new_cell;
        h = Narrow<T>::from(next.new_h).bits;
        last_h[item] = h;
      }
      if (anew) c_states[item] = next_start.c;
      const uint2 four = gather_four(h);
      uint2 sent = four;
      if (any_resets && __any_sync(~0u, anew)) {
        // Rounded anew, as h0.
        sent = gather_four(anew ? Narrow<T>::from(widen_bits<T>(next_start.h)).bits : h);
      }
      if (lane < 8) {
        if (s + 1 < steps) exchange.send(j, 0, sent);
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
          ptx::store2(in_stage + m * gate_bytes, Narrow<T>::from(gates[m]).bits);
        }
      }
      parity ^= 1;
      if (last_tile) fetch(s + Layout::kAhead);
    }
    exchange.advance();
    marks.load(s + 2);
  }
  __syncthreads();
  if (save && before_j >= 0) store_gates(before_s, before_j);
  for (int j = 0; j < tiles; ++j) {
    const int row = j * 8 + row_in_tile, item = j * kGridThreads + thread;
    if (!real || row >= rows.count) continue;
    const int64_t at = (state_row + row) * hidden + first_unit + unit;
    static_cast<uint16_t*>(args.h)[at] = last_h[item];
    store_c<T>(args.c, at, args.sizes.half_c, c_states[item]);
  }
#endif
}

}  // namespace treadle
