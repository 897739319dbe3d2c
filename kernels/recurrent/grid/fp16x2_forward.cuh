// The forward grid kernel for any cell in float32 (grid/grid.cuh; engine/fp16x2.cuh explains the
// products): gates_t = products_t + bias + h_{t-1} W_hh^T, then the cell. `rows_each` is the number
// of rows per group. The half-type version, grid/half_forward.cuh, explains the warps.
#pragma once

#include "kernels/math/h_bound.h"
#include "kernels/recurrent/grid/fp16x2_forward_mma.cuh"
#include "kernels/recurrent/grid/fp16x2_terms.cuh"
#include "kernels/recurrent/grid/kernels.cuh"

namespace treadle {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800

template <class Cell, class Layout, bool any_resets, int buffers>
struct GridSplitFinisher {
  static constexpr int kGates = Cell::kGates, kStateGates = Cell::kStateGates;
  static constexpr int kFirstInput = kGates - Cell::kInputGates;
  static constexpr int kMeeting = Layout::kMultiplying + Layout::kTeam;
  static constexpr int kCParts = Cell::kCParts;
  static constexpr int kStatesBytes = Layout::kTeam * Layout::kStateBytes;  // c and h of a tile
  using C = math::CType<float, kCParts>;

  // A thread's addresses of a tile's data.
  struct Place {
    char *output, *gates, *send, *put_back;
    uint32_t stage, states;
  };

  const PersistentForward& args;
  const GroupRows& rows;
  const Group& group;
  const GroupResets<any_resets> resets;
  const GridRing ring;
  const int steps, tiles, thread, team, pair, row_in_tile, first_unit, unit, gate_bytes;
  const bool real[2], even;  // even: one store writes a pair
  const uint32_t stages, states, own_sums, own_rows;
  char *send_to, *output_to, *gates_to;
  const char* copy_from;
  bool exact = false;  // whether a row of W_hh of the pair is outside the range of fp16x2

  __device__ __forceinline__ GridSplitFinisher(const PersistentForward& args, const Group& group,
                                               char* exchange, GridRing ring, int rank,
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
        pair(thread % kWarp / 4),
        row_in_tile(thread / kWarp % 2 * 4 + thread % 4),
        first_unit(rank * Layout::kUnits),
        unit(first_unit + 2 * pair),
        gate_bytes(rows_each * Layout::kStageRow),
        real{unit < args.sizes.hidden, unit + 1 < args.sizes.hidden},
        even(args.sizes.hidden % 2 == 0 && args.output_row % 2 == 0 &&
             (reinterpret_cast<uintptr_t>(args.output) | reinterpret_cast<uintptr_t>(args.gates)) %
                     8 ==
                 0),
        stages(base + Layout::kStages),
        states(stages + Layout::kDepth * kGates * gate_bytes +
               thread % Layout::kTeam * Layout::kStateBytes),
        own_sums(base + (buffers == 2 ? team : 0) * Layout::kSumBytes +
                 sums_place(pair, row_in_tile / 2) + row_in_tile % 2 * 8),
        own_rows(base + Layout::kBias + pair * 16) {
    const int64_t hidden = args.sizes.hidden, d = group.direction;
    const int64_t row = rows.first + row_in_tile;
    send_to = exchange + row_in_tile * 64 + Layout::word_of(rank * (Layout::kUnits / 2) + pair);
    output_to = static_cast<char*>(args.output) + 4 * (row * args.output_row + d * hidden + unit);
    gates_to = static_cast<char*>(args.gates) +
               4 * ((d * rows.start(steps) + row) * kGates * hidden + unit);
    copy_from = static_cast<const char*>(args.products) +
                4 * (d * args.product_direction + rows.first * args.product_row + copy_unit());
#pragma unroll
    for (int m = 0; m < kStateGates; ++m) {
      exact |= (ptx::load4(base + Layout::kExact + m * 4) >> 2 * pair & 3) != 0;
    }
  }

  __device__ __forceinline__ int time(int s) const { return group.forward_time(s, steps); }
  __device__ __forceinline__ int copy_unit() const { return first_unit + thread % 4 * 4; }
  __device__ __forceinline__ uint32_t stage_of(int s) const {
    return stages + s % Layout::kDepth * (kGates * gate_bytes);
  }
  __device__ __forceinline__ uint32_t states_of(int j) const { return states + j * kStatesBytes; }

  // Prefetches the input products of step s. A thread copies 16 bytes per gate of every 32nd row.
  __device__ __forceinline__ void fetch(int s) const {
    if (s < steps && copy_unit() < args.sizes.hidden) {
      const int active = rows.active(time(s)), row_bytes = static_cast<int>(args.product_row) * 4;
      const char* const all = copy_from + rows.start(time(s)) * row_bytes;
      const uint32_t to = stage_of(s) + thread % 4 * 16;
      for (int row = thread / 4; row < active; row += Layout::kFinishing / 4) {
#pragma unroll
        for (int m = kFirstInput; m < kGates; ++m) {
          ptx::copy16_async(to + row * Layout::kStageRow + m * gate_bytes,
                            all + int64_t{row} * row_bytes + m * args.product_gate * 4);
        }
      }
    }
    ptx::commit_copies();
  }

  // Loads the states before the first step, and sends h as a step would.
  __device__ __forceinline__ void begin() const {
    for (int j = team; j < tiles; j += 2) {
      const int row = j * 8 + row_in_tile;
      const bool anew = resets.before_first(row);
      float h[2] = {}, sent[2] = {};
      C c[2] = {};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (!real[i] || row >= rows.count) continue;
        const int64_t hidden = args.sizes.hidden, at = state_row(row);
        c[i] = load_unit_c<float, C>(args.c0, at, hidden, unit + i, /*half=*/false);
        c[i] = resets.first_c(anew, c[i], row, unit + i);
        h[i] = static_cast<const float*>(args.h0)[at * hidden + unit + i];
        sent[i] = resets.template first_h<float>(anew, h[i], row, unit + i);
      }
      send_split<Layout>(send_to + ring.before_first() + j * Layout::kTileBytes, sent);
      keep_states(states_of(j), c, h);
    }
  }

  __device__ __forceinline__ int64_t state_row(int row) const {
    return group.direction * args.sizes.batch + rows.first + row;
  }

  static __device__ __forceinline__ void keep_states(uint32_t at, const C (&c)[2],
                                                     const float (&h)[2]) {
    if constexpr (kCParts == 1) {
      ptx::store16(at, {__float_as_uint(c[0]), __float_as_uint(c[1]), __float_as_uint(h[0]),
                        __float_as_uint(h[1])});
    } else {
#pragma unroll
      for (int p = 0; p < kCParts; ++p) {
        ptx::store_floats(at + 8 * p, math::part(c[0], p), math::part(c[1], p));
      }
      ptx::store_floats(at + 8 * kCParts, h[0], h[1]);
    }
  }

  static __device__ __forceinline__ void take_states(uint32_t at, C (&c)[2], float (&h)[2]) {
    if constexpr (kCParts == 1) {
      const uint4 kept = ptx::load16(at);
      c[0] = __uint_as_float(kept.x), c[1] = __uint_as_float(kept.y);
      h[0] = __uint_as_float(kept.z), h[1] = __uint_as_float(kept.w);
    } else {
#pragma unroll
      for (int p = 0; p < kCParts; ++p) {
        const uint2 both = ptx::load8(at + 8 * p);
        math::part(c[0], p) = __uint_as_float(both.x);
        math::part(c[1], p) = __uint_as_float(both.y);
      }
      const uint2 both = ptx::load8(at + 8 * kCParts);
      h[0] = __uint_as_float(both.x), h[1] = __uint_as_float(both.y);
    }
  }

  // The sums of both units.
  __device__ __forceinline__ void read_sums(float (&found)[2][kStateGates]) const {
#pragma unroll
    for (int m = 0; m < kStateGates; ++m) {
      float parts[2][Layout::kMultiplyingWarps];
#pragma unroll
      for (int w = 0; w < Layout::kMultiplyingWarps; ++w) {
        const uint2 sums = ptx::load8(own_sums + (w * kStateGates + m) * 512);
        parts[0][w] = __uint_as_float(sums.x), parts[1][w] = __uint_as_float(sums.y);
      }
      found[0][m] = sum_in_pairs(parts[0]);
      found[1][m] = sum_in_pairs(parts[1]);
    }
  }

  // Computes this thread's row of a tile in step s. `taken` means that the row has this step,
  // `begun` that it had the previous step, and `again` that the tile was sent in the previous step.
  __device__ __forceinline__ void finish(int s, int row, bool taken, bool begun, bool again,
                                         const Place& at) const {
    const bool anew = any_resets && resets.mark(time(s + 1), row) != 0;
    C c[2];
    float h[2];
    take_states(at.states, c, h);
    float gates[2][kGates];
#pragma unroll
    for (int m = 0; m < kGates; ++m) {
      const uint4 both = ptx::load16(own_rows + m * Layout::kUnits * 8);  // bias and scale
      const uint2 products = m < kFirstInput ? uint2{0, 0} : ptx::load8(at.stage + m * gate_bytes);
      gates[0][m] = __uint_as_float(both.x) + __uint_as_float(products.x);
      gates[1][m] = __uint_as_float(both.z) + __uint_as_float(products.y);
    }
    ptx::sync_threads(kSumsFull + team, kMeeting);
    float sums[2][kStateGates];
    read_sums(sums);
    float all = 0;
#pragma unroll
    for (int m = 0; m < kStateGates; ++m) all += sums[0][m] + sums[1][m];
    const bool exactly = taken && (exact || all != all);
    if (exactly) {
      using Exact = GridSplitExact<Cell, Layout, any_resets>;
      Exact{args, group, resets, ring, own_sums, unit, s, row, begun, again}.multiply();
      read_sums(sums);
    }
    ptx::arrive_threads(kSumsEmpty + team, kMeeting);
#pragma unroll
    for (int m = 0; m < kStateGates; ++m) {
      const uint4 both = ptx::load16(own_rows + m * Layout::kUnits * 8);
      gates[0][m] = fmaf(sums[0][m], exactly ? 1.0f : __uint_as_float(both.y), gates[0][m]);
      gates[1][m] = fmaf(sums[1][m], exactly ? 1.0f : __uint_as_float(both.w), gates[1][m]);
    }

    // A row without this step keeps its states.
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto next = Cell::forward(gates[i], c[i]);
      c[i] = taken && real[i] ? next.new_cell : c[i];
      h[i] = taken && real[i] ? next.new_h : h[i];
    }
    float sent[2] = {h[0], h[1]};
    if (any_resets && anew) {
      const auto first = resets.template states<float, C>(real[0], time(s + 1), row, unit);
      const auto second = resets.template states<float, C>(real[1], time(s + 1), row, unit + 1);
      sent[0] = first.h, sent[1] = second.h;
      c[0] = first.c, c[1] = second.c;
    }
    if (Cell::kHBound != math::HBound::kOne && taken && is_large(h)) store(at.output, h);
    send_split<Layout>(at.send, sent);
    if (again) put_back_split<Layout>(at.put_back);
    keep_states(at.states, c, h);
    if (!taken) return;
    store(at.output, h);
#pragma unroll
    for (int m = 0; m < kGates; ++m) {
      const float both[2] = {gates[0][m], gates[1][m]};
      if (args.gates != nullptr) store(at.gates + m * args.sizes.hidden * 4, both);
    }
  }

  __device__ __forceinline__ void store(char* at, const float (&x)[2]) const {
    if (even) {
      if (real[0]) *reinterpret_cast<float2*>(at) = {x[0], x[1]};
      return;
    }
    if (real[0]) reinterpret_cast<float*>(at)[0] = x[0];
    if (real[1]) reinterpret_cast<float*>(at)[1] = x[1];
  }

  __device__ __forceinline__ void run() {
    for (int s = 0; s < Layout::kDepth - 1; ++s) fetch(s);
    if (team < buffers) ptx::arrive_threads(kSumsEmpty + team, kMeeting);
    begin();
    const int64_t gates_row = kGates * args.sizes.hidden * 4, output_row = args.output_row * 4;
    int visits = 0, before = 0;  // tiles of all steps so far; rows of the previous step
#pragma unroll 1
    for (int s = 0; s < steps; ++s) {
      ptx::wait_copies<Layout::kDepth - 2>();
      ptx::sync_threads(kFinishers, Layout::kFinishing);
      const int active = rows.active(time(s));
      const int first = buffers == 1 ? team : (visits ^ team) & 1;
      const int64_t start = rows.start(time(s));
#pragma unroll 1
      for (int j = first; j * 8 < active; j += 2) {
        const int own = j * 8 + row_in_tile, tile = j * Layout::kTileBytes;
        const bool again = before > j * 8;
        const Place at = {output_to + (start + j * 8) * output_row,
                          gates_to + (start + j * 8) * gates_row,
                          send_to + ring.place(s) + tile,
                          send_to + ring.place(s + kGridRing - 2) + tile,
                          stage_of(s) + own * Layout::kStageRow + pair * 8,
                          states_of(j)};
        finish(s, own, own < active, own < before, again, at);
      }
      visits += (active + 7) / 8;
      before = active;
      fetch(s + Layout::kDepth - 1);
      order_exchange(s);
    }
    ptx::sync_threads(kFinishers, Layout::kFinishing);
    end();
  }

  __device__ __forceinline__ void end() const {
    for (int j = team; j < tiles; j += 2) {
      const int row = j * 8 + row_in_tile;
      C c[2];
      float h[2];
      take_states(states_of(j), c, h);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (!real[i] || row >= rows.count) continue;
        const int64_t hidden = args.sizes.hidden, at = state_row(row);
        store_unit_c<float>(args.c, at, hidden, unit + i, /*half=*/false, c[i]);
        static_cast<float*>(args.h)[at * hidden + unit + i] = h[i];
      }
    }
  }
};

template <class Cell, class Layout, bool any_resets, bool alone>
__device__ __forceinline__ void run_grid_split_forward(const PersistentForward& args,
                                                       int rows_each) {
  extern __shared__ __align__(128) unsigned char memory[];
  const uint32_t base = ptx::shared_address(memory);
  const int block = static_cast<int>(blockIdx.x);
  const int rank = block % Layout::kBlocks, number = block / Layout::kBlocks;
  const Group group(args.sizes, number, rows_each);
  const GridRing ring{rows_each / 8 * Layout::kTileBytes};
  char* const exchange =
      static_cast<char*>(args.exchange) + int64_t{number} * (kGridRing + 1) * ring.step_bytes;
  describe_rows<Cell, Layout>(args, group.direction, memory, rank * Layout::kUnits);
  if (threadIdx.x < Layout::kMultiplying) {
    ptx::setmaxnreg_inc<Layout::kMultiplyingRegisters>();
    GridWideMultiplier<Layout, GridSplitProducts<Cell, Layout>, alone>(args, group, exchange, ring,
                                                                       rank, base)
        .run();
  } else {
    ptx::setmaxnreg_dec<Layout::kFinishingRegisters>();
    GridSplitFinisher<Cell, Layout, any_resets, alone ? 1 : 2>(args, group, exchange, ring, rank,
                                                               rows_each, base)
        .run();
  }
}

#endif

}  // namespace treadle
