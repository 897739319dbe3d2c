// Code that the epilogue warps of grid/half_backward.cuh and grid/fp16x2_backward.cuh share: a
// thread's rows and units, the values saved by the forward pass, and the gradients of states
// between steps.
#pragma once

#include "kernels/recurrent/grid/grid.cuh"

namespace treadle {

// A thread computes two adjacent units of one row in each tile. The threads of a team cover a tile.
// If there are two teams, they alternate between tiles.
template <class Cell, class T, class Layout, bool any_resets>
struct GridBackwardFinishing {
  static constexpr int kGates = Cell::kGates, kStateGates = Cell::kStateGates;
  static constexpr int kBytes = sizeof(T);
  static constexpr int kCParts = Cell::kCParts;
  // Bytes per tile for the gradients of h and c.
  static constexpr int kStatesBytes = Layout::kTeam * Layout::kStateBytes;
  using C = math::CType<float, kCParts>;
  static constexpr int kTeams = Layout::kTeams;
  static constexpr int kMeeting = Layout::kMultiplying + Layout::kTeam;

  const PersistentBackward& args;
  const GroupRows& rows;
  const Group& group;
  const GroupResets<any_resets> resets;
  const GridRing ring;
  const int steps, tiles, thread, team, pair, row_in_tile, first_unit, unit, array_bytes, c_at,
      stage_bytes;
  const bool real[2], even;  // even: one store writes a pair
  const uint32_t stages, states, own_sums;
  char* const grads_to;

  __device__ __forceinline__ GridBackwardFinishing(const PersistentBackward& args,
                                                   const Group& group, GridRing ring, int rank,
                                                   int rows_each, uint32_t base)
      : args(args),
        rows(group.rows),
        group(group),
        resets{args.resets, args.sizes, group},
        ring(ring),
        steps(static_cast<int>(args.sizes.steps)),
        tiles(rows_each / 8),
        thread(threadIdx.x - Layout::kMultiplying),
        team(thread / Layout::kTeam),
        pair(thread % Layout::kTeam / (2 * kWarp) * 8 + thread % kWarp / 4),
        row_in_tile(thread / kWarp % 2 * 4 + thread % 4),
        first_unit(rank * Layout::kUnits),
        unit(first_unit + 2 * pair),
        array_bytes(rows_each * Layout::kStageRow),
        c_at((kGates + 1) * array_bytes),
        stage_bytes(c_at + kCParts * rows_each * Layout::kCRow),
        real{unit < args.sizes.hidden, unit + 1 < args.sizes.hidden},
        even(args.sizes.hidden % 2 == 0 &&
             reinterpret_cast<uintptr_t>(args.grad_gates) % (2 * kBytes) == 0),
        stages(base + Layout::kStages),
        states(stages + Layout::kDepth * stage_bytes +
               thread % Layout::kTeam * Layout::kStateBytes),
        own_sums(base + pair / 8 * 512 + sums_place(pair % 8, row_in_tile / 2) +
                 row_in_tile % 2 * 8),
        grads_to(static_cast<char*>(args.grad_gates) +
                 kBytes * ((group.direction * rows.start(steps) + rows.first + row_in_tile) *
                               kGates * args.sizes.hidden +
                           unit)) {}

  __device__ __forceinline__ int time(int s) const { return group.backward_time(s, steps); }
  __device__ __forceinline__ uint32_t stage_of(int s) const {
    return stages + s % Layout::kDepth * stage_bytes;
  }
  __device__ __forceinline__ uint32_t states_of(int j) const { return states + j * kStatesBytes; }
  __device__ __forceinline__ int64_t state_row(int row) const {
    return group.direction * args.sizes.batch + rows.first + row;
  }
  // The distance between the parts of c in a stage.
  __device__ __forceinline__ int c_plane() const { return tiles * 8 * Layout::kCRow; }

  // Prefetches saved values. For each of its rows, a thread copies 16 bytes of each gate and of
  // grad_output, and the same units of c.
  __device__ __forceinline__ void fetch(int s) const {
    constexpr int kEach = 16 / kBytes, kPieces = Layout::kUnits / kEach;
    const int piece = thread % kPieces, copy_unit = first_unit + piece * kEach;
    if (s < steps && copy_unit < args.sizes.hidden) {
      const int active = rows.active(time(s));
      const int64_t first = rows.start(time(s)) + rows.first, d = group.direction;
      for (int row = thread / kPieces; row < active; row += Layout::kFinishing / kPieces) {
        const auto from = [&](const void* all, int64_t direction, int64_t each, int bytes) {
          const int64_t at = d * direction + (first + row) * each + copy_unit;
          return static_cast<const char*>(all) + at * bytes;
        };
        const uint32_t to = stage_of(s) + row * Layout::kStageRow + piece * 16;
        const uint32_t c_to = stage_of(s) + c_at + row * Layout::kCRow + piece * kEach * 4;
        const char* const gates = from(args.gates, args.gate_direction, args.gate_row, kBytes);
#pragma unroll
        for (int m = 0; m < kGates; ++m) {
          ptx::copy16_async(to + m * array_bytes, gates + m * args.gate_gate * kBytes);
        }
        if (args.grad_output != nullptr) {
          ptx::copy16_async(to + kGates * array_bytes,
                            from(args.grad_output, args.grad_direction, args.grad_row, kBytes));
        }
        const char* const c = from(args.c_states, args.c_direction, args.c_row, 4);
#pragma unroll
        for (int p = 0; p < kCParts; ++p) {
          const char* const of_part = c + p * (args.c_row / kCParts) * 4;
#pragma unroll
          for (int i = 0; i < kEach * 4; i += 16) {
            ptx::copy16_async(c_to + p * c_plane() + i, of_part + i);
          }
        }
      }
    }
    ptx::commit_copies();
  }

  static __device__ __forceinline__ void keep_states(uint32_t at, const float (&dh)[2],
                                                     const C (&dc)[2]) {
    if constexpr (kCParts == 1) {
      ptx::store16(at, {__float_as_uint(dh[0]), __float_as_uint(dh[1]), __float_as_uint(dc[0]),
                        __float_as_uint(dc[1])});
    } else {
      ptx::store_floats(at, dh[0], dh[1]);
#pragma unroll
      for (int p = 0; p < kCParts; ++p) {
        ptx::store_floats(at + 8 + 8 * p, math::part(dc[0], p), math::part(dc[1], p));
      }
    }
  }

  static __device__ __forceinline__ void take_states(uint32_t at, float (&dh)[2], C (&dc)[2]) {
    if constexpr (kCParts == 1) {
      const uint4 kept = ptx::load16(at);
      dh[0] = __uint_as_float(kept.x), dh[1] = __uint_as_float(kept.y);
      dc[0] = __uint_as_float(kept.z), dc[1] = __uint_as_float(kept.w);
    } else {
      const uint2 both = ptx::load8(at);
      dh[0] = __uint_as_float(both.x), dh[1] = __uint_as_float(both.y);
      staged_c(at + 8, 8, dc);
    }
  }

  // Loads c of a pair of units, or its gradients, from shared memory, where parts are `plane` bytes
  // apart.
  static __device__ __forceinline__ void staged_c(uint32_t at, int plane, C (&c)[2]) {
#pragma unroll
    for (int p = 0; p < kCParts; ++p) {
      const uint2 both = ptx::load8(at + p * plane);
      math::part(c[0], p) = __uint_as_float(both.x);
      math::part(c[1], p) = __uint_as_float(both.y);
    }
  }

  // The address of this thread's gate gradients in a tile.
  __device__ __forceinline__ char* grads_at(int64_t start, int j) const {
    return grads_to + (start + j * 8) * (kGates * args.sizes.hidden * kBytes);
  }

  // Runs all steps. Calls finish(s, start, j, buffer, active, before) for each tile j of step s,
  // whose rows begin at `start`. `active` rows have step s, and `before` rows had the previous
  // step. `alone` means that the group has a single tile.
  template <bool alone, class Finish>
  __device__ __forceinline__ void run(const Finish& finish) const {
    for (int s = 0; s < Layout::kDepth - 1; ++s) fetch(s);
    for (int b = 0; b < (alone ? 1 : 2); ++b) {
      if (kTeams == 1 || b == team) ptx::arrive_threads(kSumsEmpty + b, kMeeting);
    }
    begin();
    // The number of tiles summed so far, and the number of rows that had the previous step.
    int sums = 0, before = 0;
    // There is one more iteration than steps, for grad_h0.
#pragma unroll 1
    for (int s = 0; s <= steps; ++s) {
      ptx::wait_copies<Layout::kDepth - 2>();
      ptx::sync_threads(kFinishers, Layout::kFinishing);
      const int active = s < steps ? rows.active(time(s)) : 0;
      const int64_t start = s < steps ? rows.start(time(s)) : 0;
#pragma unroll 1
      for (int j = 0; j * 8 < active || j * 8 < before; ++j) {
        const int buffer = alone ? 0 : (sums + j) & 1;
        if (kTeams == 1 || buffer == team) finish(s, start, j, buffer, active, before);
      }
      sums += (before + 7) / 8;
      before = active;
      fetch(s + Layout::kDepth - 1);
      order_exchange(s);
    }
    ptx::sync_threads(kFinishers, Layout::kFinishing);
    end();
  }

  // Loads the gradients of h and c after the last step.
  __device__ __forceinline__ void begin() const {
    for (int j = team; j < tiles; j += Layout::kTeams) {
      const int row = j * 8 + row_in_tile;
      float h[2] = {};
      C c[2] = {};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (!real[i] || row >= rows.count) continue;
        const int64_t hidden = args.sizes.hidden, at = state_row(row);
        if (args.grad_h_n != nullptr) {
          h[i] = widen(static_cast<const T*>(args.grad_h_n)[at * hidden + unit + i]);
        }
        if (args.grad_c_n != nullptr) {
          c[i] = load_unit_c<T, C>(args.grad_c_n, at, hidden, unit + i, args.sizes.half_c);
        }
      }
      keep_states(states_of(j), h, c);
    }
  }

  // Stores the gradients of h and c before the first step.
  __device__ __forceinline__ void end() const {
    for (int j = team; j < tiles; j += Layout::kTeams) {
      const int row = j * 8 + row_in_tile;
      float h[2];
      C c[2];
      take_states(states_of(j), h, c);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (!real[i] || row >= rows.count) continue;
        const int64_t hidden = args.sizes.hidden, at = state_row(row);
        if (args.grad_h0 != nullptr) {
          static_cast<T*>(args.grad_h0)[at * hidden + unit + i] = Narrow<T>::from(h[i]);
        }
        if (args.grad_c0 != nullptr) {
          store_unit_c<T>(args.grad_c0, at, hidden, unit + i, args.sizes.half_c, c[i]);
        }
      }
    }
  }
};

}  // namespace treadle
