// Grid kernel, backward, for any cell in half types (grid.cuh): grad_h_{t-1} = grad_gates_t
// W_hh. A block computes it for its own units and needs the gradients of all gates of all units.
// rows_each: rows a group. Twin: kernels/recurrent/cpu/rows_backward.h.
#pragma once

#include "kernels/recurrent/grid_backward_multiply.cuh"

namespace treadle {

// A thread of the warps that finish: a pair of units of one row of each tile.
template <class Cell, class T, bool any_resets, bool alone>
struct GridBackwardFinisher {
  static constexpr int kGates = Cell::kGates, kStateGates = Cell::kStateGates;
  static constexpr int kTileBytes = kGridBackwardTile<kStateGates>;
  using Layout = GridBackward<kGates, kStateGates>;
  static constexpr int kGradsBytes = Layout::kFinishing * 16;  // of a tile: 4 floats a thread

  // Where a thread finds and leaves what is of a tile.
  struct Place {
    char *grads, *send, *put_back;
    uint32_t stage, c, states;
  };

  const PersistentBackward& args;
  const GroupRows& rows;
  const Group& group;
  const GroupResets<any_resets> resets;
  const GridRing ring;
  const int steps, tiles, thread, pair, row_in_tile, first_unit, unit, array_bytes, c_at,
      stage_bytes;
  const bool real[2], even;  // even: a pair can be stored at once
  const uint32_t stages, states, own_sums;
  char *send_to, *grads_to;
  int buffer = 0;

  __device__ __forceinline__ GridBackwardFinisher(const PersistentBackward& args,
                                                  const Group& group, char* exchange, GridRing ring,
                                                  int rank, int rows_each, uint32_t base)
      : args(args),
        rows(group.rows),
        group(group),
        resets{args.resets, args.sizes, group},
        ring(ring),
        steps(static_cast<int>(args.sizes.steps)),
        tiles(rows_each / 8),
        thread(threadIdx.x - Layout::kMultiplying),
        pair(thread / (2 * kWarp) * 8 + thread % kWarp / 4),
        row_in_tile(thread / kWarp % 2 * 4 + thread % 4),
        first_unit(rank * Layout::kUnits),
        unit(first_unit + 2 * pair),
        array_bytes(rows_each * Layout::kStageRow),
        c_at((kGates + 1) * array_bytes),
        stage_bytes(c_at + rows_each * Layout::kCRow),
        real{unit < args.sizes.hidden, unit + 1 < args.sizes.hidden},
        even(args.sizes.hidden % 2 == 0),
        stages(base + Layout::kStages),
        states(stages + Layout::kDepth * stage_bytes + thread * 16),
        own_sums(base + pair / 8 * 512 + sums_place(pair % 8, row_in_tile / 2) +
                 row_in_tile % 2 * 8) {
    const int64_t first = group.direction * rows.start(steps) + rows.first + row_in_tile;
    send_to = exchange + rank * kStateGates * 512 + row_in_tile * 64 + pair * 4;
    grads_to =
        static_cast<char*>(args.grad_gates) + 2 * (first * kGates * args.sizes.hidden + unit);
  }

  __device__ __forceinline__ int time(int s) const { return group.backward_time(s, steps); }
  __device__ __forceinline__ uint32_t stage_of(int s) const {
    return stages + s % Layout::kDepth * stage_bytes;
  }
  __device__ __forceinline__ uint32_t states_of(int j) const { return states + j * kGradsBytes; }
  __device__ __forceinline__ int64_t state(int row, int i) const {
    return (group.direction * args.sizes.batch + rows.first + row) * args.sizes.hidden + unit + i;
  }

  // Prefetches what forward saved: a thread copies of every 32nd row 16 bytes of each gate and of
  // grad_output, and 32 of c.
  __device__ __forceinline__ void fetch(int s) const {
    const int piece = thread % 4, copy_unit = first_unit + piece * 8;
    if (s < steps && copy_unit < args.sizes.hidden) {
      const int active = rows.active(time(s));
      const int64_t first = rows.start(time(s)) + rows.first, d = group.direction;
      for (int row = thread / 4; row < active; row += Layout::kFinishing / 4) {
        const auto from = [&](const void* all, int64_t direction, int64_t each, int bytes) {
          const int64_t at = d * direction + (first + row) * each + copy_unit;
          return static_cast<const char*>(all) + at * bytes;
        };
        const uint32_t to = stage_of(s) + row * Layout::kStageRow + piece * 16;
        const uint32_t c_to = stage_of(s) + c_at + row * Layout::kCRow + piece * 32;
        const char* const gates = from(args.gates, args.gate_direction, args.gate_row, 2);
#pragma unroll
        for (int m = 0; m < kGates; ++m) {
          ptx::copy16_async(to + m * array_bytes, gates + m * args.gate_gate * 2);
        }
        if (args.grad_output != nullptr) {
          ptx::copy16_async(to + kGates * array_bytes,
                            from(args.grad_output, args.grad_direction, args.grad_row, 2));
        }
        const char* const c = from(args.c_states, args.c_direction, args.c_row, 4);
        ptx::copy16_async(c_to, c);
        ptx::copy16_async(c_to + 16, c + 16);
      }
    }
    ptx::commit_copies();
  }

  // The gradients of h and c after the last step.
  __device__ __forceinline__ void begin() const {
    for (int j = 0; j < tiles; ++j) {
      const int row = j * 8 + row_in_tile;
      float h[2] = {}, c[2] = {};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (!real[i] || row >= rows.count) continue;
        const int64_t at = state(row, i);
        if (args.grad_h_n != nullptr) h[i] = widen(static_cast<const T*>(args.grad_h_n)[at]);
        if (args.grad_c_n != nullptr) c[i] = load_c<T>(args.grad_c_n, at, args.sizes.half_c);
      }
      ptx::store_floats(states_of(j), h[0], h[1]);
      ptx::store_floats(states_of(j) + 8, c[0], c[1]);
    }
  }

  // What can be computed before the sums are there; returns the gradient of the output.
  __device__ __forceinline__ uint32_t prepare(const Place& at,
                                              typename Cell::Slopes (&slopes)[2]) const {
    uint32_t saved[kGates];
#pragma unroll
    for (int m = 0; m < kGates; ++m) saved[m] = ptx::load4(at.stage + m * array_bytes);
    const uint2 c = ptx::load8(at.c);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float gates[kGates];
#pragma unroll
      for (int m = 0; m < kGates; ++m) {
        gates[m] = widen_bits<T>(static_cast<uint16_t>(saved[m] >> (16 * i)));
      }
      slopes[i] = Cell::slopes(gates, __uint_as_float(i == 0 ? c.x : c.y));
    }
    return args.grad_output == nullptr ? 0 : ptx::load4(at.stage + kGates * array_bytes);
  }

  // Adds the sums to the gradients of h, and gives their buffer back.
  __device__ __forceinline__ void add_sums(float (&dh)[2], bool taken) {
    ptx::sync_threads(kSumsFull + buffer, Layout::kThreads);
    float parts[2][Layout::kMultiplyingWarps];
#pragma unroll
    for (int w = 0; w < Layout::kMultiplyingWarps; ++w) {
      const uint2 sums =
          ptx::load8(own_sums + buffer * Layout::kSumBytes + w * Layout::kTiles * 512);
      parts[0][w] = __uint_as_float(sums.x), parts[1][w] = __uint_as_float(sums.y);
    }
    const float first = sum_in_pairs(parts[0]), second = sum_in_pairs(parts[1]);
    // Rows without the step before sent zeros; their products are not added: 0 x inf would be NaN.
    if (taken) dh[0] += first, dh[1] += second;
    ptx::arrive_threads(kSumsEmpty + buffer, Layout::kThreads);
    if (!alone) buffer ^= 1;
  }

  // Row r of tile j in step s, of which `active` rows have the step and `before` the one before.
  __device__ __forceinline__ void finish(int s, int j, int active, int before, const Place& at) {
    const int row = j * 8 + row_in_tile;
    const bool product = before > j * 8, taken = row < active;
    const bool anew = any_resets && resets.mark(time(s - 1), row) != 0;
    const uint2 grad_h = ptx::load8(at.states), grad_c = ptx::load8(at.states + 8);
    float dh[2] = {__uint_as_float(grad_h.x), __uint_as_float(grad_h.y)};
    float dc[2] = {__uint_as_float(grad_c.x), __uint_as_float(grad_c.y)};
    typename Cell::Slopes slopes[2];
    const uint32_t grad_out = prepare(at, slopes);
    if (product) add_sums(dh, row < before);
    if (any_resets && anew) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (real[i]) resets.take(time(s - 1), row, unit + i, dh[i], dc[i]);
      }
    }
    // A row without this step keeps its gradients and sends zeros.
    uint32_t grads[kGates] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float out = args.grad_output == nullptr
                            ? 0.0f
                            : widen_bits<T>(static_cast<uint16_t>(grad_out >> (16 * i)));
      const auto grad = Cell::backward(slopes[i], dh[i] + out, dc[i]);
      if (!taken || !real[i]) continue;
      dh[i] = 0, dc[i] = grad.old_cell;
#pragma unroll
      for (int m = 0; m < kGates; ++m) {
        grads[m] |= static_cast<uint32_t>(Narrow<T>::from(grad.gates[m]).bits) << (16 * i);
      }
    }
    if (active > j * 8) send(at, grads, product);
    ptx::store_floats(at.states, dh[0], dh[1]);
    ptx::store_floats(at.states + 8, dc[0], dc[1]);
    if (!taken) return;
#pragma unroll
    for (int m = 0; m < kGates; ++m) {
      store_pair(at.grads + m * args.sizes.hidden * 2, grads[m], even, real);
    }
  }

  __device__ __forceinline__ void send(const Place& at, const uint32_t (&grads)[kGates],
                                       bool again) const {
#pragma unroll
    for (int m = 0; m < kStateGates; ++m) store_word4(at.send + m * 512, grads[m]);
    if (!again) return;
#pragma unroll
    for (int m = 0; m < kStateGates; ++m) store_word4(at.put_back + m * 512, ~0u);
  }

  __device__ __forceinline__ void run() {
    for (int s = 0; s < Layout::kDepth - 1; ++s) fetch(s);
    for (int b = 0; b < (alone ? 1 : 2); ++b) {
      ptx::arrive_threads(kSumsEmpty + b, Layout::kThreads);
    }
    begin();
    const int64_t grads_row = kGates * args.sizes.hidden * 2;
    int before = 0;
    // One iteration more than steps, for grad_h0.
#pragma unroll 1
    for (int s = 0; s <= steps; ++s) {
      ptx::wait_copies<Layout::kDepth - 2>();
      ptx::sync_threads(kFinishers, Layout::kFinishing);
      const int active = s < steps ? rows.active(time(s)) : 0;
      const int64_t start = s < steps ? rows.start(time(s)) : 0;
      Place at = {grads_to + start * grads_row,
                  send_to + ring.place(s),
                  send_to + ring.place(s + kGridRing - 2),
                  stage_of(s) + row_in_tile * Layout::kStageRow + pair * 4,
                  stage_of(s) + c_at + row_in_tile * Layout::kCRow + pair * 8,
                  states};
#pragma unroll 1
      for (int j = 0; j * 8 < active || j * 8 < before; ++j) {
        finish(s, j, active, before, at);
        at = {at.grads + 8 * grads_row,         at.send + kTileBytes,     at.put_back + kTileBytes,
              at.stage + 8 * Layout::kStageRow, at.c + 8 * Layout::kCRow, at.states + kGradsBytes};
      }
      before = active;
      fetch(s + Layout::kDepth - 1);
      order_exchange(s);
    }
    end();
  }

  __device__ __forceinline__ void end() const {
    for (int j = 0; j < tiles; ++j) {
      const int row = j * 8 + row_in_tile;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (!real[i] || row >= rows.count) continue;
        const int64_t at = state(row, i);
        const float h = ptx::load_float(states_of(j) + 4 * i);
        const float c = ptx::load_float(states_of(j) + 8 + 4 * i);
        if (args.grad_h0 != nullptr) static_cast<T*>(args.grad_h0)[at] = Narrow<T>::from(h);
        if (args.grad_c0 != nullptr) store_c<T>(args.grad_c0, at, args.sizes.half_c, c);
      }
    }
  }
};

template <class Cell, class T, bool any_resets, bool alone>
__global__ void __launch_bounds__(GridBackward<Cell::kGates, Cell::kStateGates>::kThreads, 1)
    grid_backward(const __grid_constant__ PersistentBackward args, int rows_each) {
  begin_kernel();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  using Layout = GridBackward<Cell::kGates, Cell::kStateGates>;
  extern __shared__ __align__(128) unsigned char memory[];
  const int rank = static_cast<int>(blockIdx.x) % Layout::kBlocks;
  const int number = static_cast<int>(blockIdx.x) / Layout::kBlocks;
  const int tiles = rows_each / 8;
  const Group group(args.sizes, number, rows_each);
  const GridRing ring{tiles * kGridBackwardTile<Cell::kStateGates>};
  char* const exchange =
      static_cast<char*>(args.exchange) + int64_t{number} * kGridRing * ring.step_bytes;
  if (threadIdx.x < Layout::kMultiplying) {
    ptx::setmaxnreg_inc<Layout::kMultiplyingRegisters>();
    GridBackwardMultiplier<Cell, T, alone>(args, group, exchange, ring, rank,
                                           ptx::shared_address(memory))
        .run();
  } else {
    ptx::setmaxnreg_dec<Layout::kFinishingRegisters>();
    GridBackwardFinisher<Cell, T, any_resets, alone>(args, group, exchange, ring, rank, rows_each,
                                                     ptx::shared_address(memory))
        .run();
  }
#endif
}

}  // namespace treadle
