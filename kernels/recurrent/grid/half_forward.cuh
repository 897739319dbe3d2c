// The forward grid kernel for any cell in half types (grid/grid.cuh):
// gates_t = products_t + bias + h_{t-1} W_hh^T, then the cell. `rows_each` is the number of rows
// per group. Twin: kernels/recurrent/cpu/rows_forward.h.
#pragma once

#include "kernels/recurrent/grid/h1024_mma.cuh"
#include "kernels/recurrent/grid/kernels.cuh"

namespace treadle {

// The epilogue warps. A thread computes a pair of units of one row of a tile. Two teams, one for
// each buffer of sums, alternate between tiles. In the next step the other team may compute the
// same tile. So c and h are in shared memory, and there is a barrier in each step.
template <class Cell, class T, class Layout, bool any_resets, int buffers>
struct GridFinisher {
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
  const uint32_t stages, states, own_sums;
  char *send_to, *output_to, *gates_to;
  const char* copy_from;
  float bias[kGates][2];

  __device__ __forceinline__ GridFinisher(const PersistentForward& args, const Group& group,
                                          char* exchange, GridRing ring, int rank, int rows_each,
                                          uint32_t base)
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
        even(args.sizes.hidden % 2 == 0 && args.output_row % 2 == 0),
        stages(base + Layout::kStages),
        states(stages + Layout::kDepth * kGates * gate_bytes +
               thread % Layout::kTeam * Layout::kStateBytes),
        own_sums(base + (buffers == 2 ? team : 0) * Layout::kSumBytes +
                 sums_place(pair, row_in_tile / 2) + row_in_tile % 2 * 8) {
    const int64_t hidden = args.sizes.hidden, d = group.direction;
    const int64_t row = rows.first + row_in_tile;
    const int k = rank * (Layout::kUnits / 2) + pair;  // in pairs of units
    send_to = exchange + k / 16 * 512 + row_in_tile * 64 + k % 16 * 4;
    output_to = static_cast<char*>(args.output) + 2 * (row * args.output_row + d * hidden + unit);
    gates_to = static_cast<char*>(args.gates) +
               2 * ((d * rows.start(steps) + row) * kGates * hidden + unit);
    copy_from = static_cast<const char*>(args.products) +
                2 * (d * args.product_direction + rows.first * args.product_row + copy_unit());
#pragma unroll
    for (int m = 0; m < kGates; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) bias[m][i] = real[i] ? bias_of<Cell, T>(args, d, m, unit + i) : 0;
    }
  }

  __device__ __forceinline__ int time(int s) const { return group.forward_time(s, steps); }
  __device__ __forceinline__ int copy_unit() const { return first_unit + thread % 2 * 8; }
  __device__ __forceinline__ uint32_t stage_of(int s) const {
    return stages + s % Layout::kDepth * (kGates * gate_bytes);
  }
  __device__ __forceinline__ uint32_t states_of(int j) const { return states + j * kStatesBytes; }

  // Prefetches the input products of step s. A thread copies 16 bytes per gate of every 64th row.
  __device__ __forceinline__ void fetch(int s) const {
    if (s < steps && copy_unit() < args.sizes.hidden) {
      const int active = rows.active(time(s)), row_bytes = static_cast<int>(args.product_row) * 2;
      const char* const all = copy_from + rows.start(time(s)) * row_bytes;
      const uint32_t to = stage_of(s) + thread % 2 * 16;
      for (int row = thread / 2; row < active; row += Layout::kFinishing / 2) {
#pragma unroll
        for (int m = kFirstInput; m < kGates; ++m) {
          ptx::copy16_async(to + row * Layout::kStageRow + m * gate_bytes,
                            all + row * row_bytes + m * args.product_gate * 2);
        }
      }
    }
    ptx::commit_copies();
  }

  static __device__ __forceinline__ uint16_t rounded(uint16_t bits) {
    return Narrow<T>::from(widen_bits<T>(bits)).bits;
  }

  // Loads the states before the first step, and sends h as a step would.
  __device__ __forceinline__ void begin() const {
    for (int j = team; j < tiles; j += 2) {
      const int row = j * 8 + row_in_tile;
      const bool anew = resets.before_first(row);
      uint16_t h[2] = {}, sent[2] = {};
      C c[2] = {};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (!real[i] || row >= rows.count) continue;
        const int64_t hidden = args.sizes.hidden, at = state_row(row);
        c[i] = load_unit_c<T, C>(args.c0, at, hidden, unit + i, args.sizes.half_c);
        c[i] = resets.first_c(anew, c[i], row, unit + i);
        // h0 is rounded, because readers would wait forever for a NaN that is all ones.
        const uint16_t h0 = static_cast<const uint16_t*>(args.h0)[at * hidden + unit + i];
        h[i] = rounded(h0);
        sent[i] = rounded(resets.template first_h<uint16_t>(anew, h0, row, unit + i));
      }
      store_word4(send_to + ring.before_first() + j * Layout::kTileBytes, sent[0] | sent[1] << 16);
      keep_states(states_of(j), c, h[0] | h[1] << 16);
    }
  }

  __device__ __forceinline__ int64_t state_row(int row) const {
    return group.direction * args.sizes.batch + rows.first + row;
  }

  static __device__ __forceinline__ void keep_states(uint32_t at, const C (&c)[2], uint32_t h) {
#pragma unroll
    for (int p = 0; p < kCParts; ++p) {
      ptx::store4(at + 8 * p, __float_as_uint(math::part(c[0], p)));
      ptx::store4(at + 8 * p + 4, __float_as_uint(math::part(c[1], p)));
    }
    ptx::store4(at + 8 * kCParts, h);
  }
  static __device__ __forceinline__ uint32_t kept_h(uint32_t at) {
    return ptx::load4(at + 8 * kCParts);
  }
  static __device__ __forceinline__ C kept_c(uint32_t at, int i) {
    C found;
#pragma unroll
    for (int p = 0; p < kCParts; ++p) math::part(found, p) = ptx::load_float(at + 8 * p + 4 * i);
    return found;
  }

  // Adds the sums to the gates of both units, and releases their buffer.
  __device__ __forceinline__ void add_sums(float (&gates)[2][kGates]) const {
#pragma unroll
    for (int m = 0; m < kStateGates; ++m) {
      float parts[2][Layout::kMultiplyingWarps];
#pragma unroll
      for (int w = 0; w < Layout::kMultiplyingWarps; ++w) {
        const uint2 sums = ptx::load8(own_sums + (w * kStateGates + m) * 512);
        parts[0][w] = __uint_as_float(sums.x), parts[1][w] = __uint_as_float(sums.y);
      }
      gates[0][m] += sum_in_pairs(parts[0]);
      gates[1][m] += sum_in_pairs(parts[1]);
    }
    ptx::arrive_threads(kSumsEmpty + team, kMeeting);
  }

  // Computes this thread's row of a tile in step s. `taken` means that the row has this step, and
  // `again` that the tile was also sent in the previous step.
  __device__ __forceinline__ void finish(int s, int row, bool taken, bool again,
                                         const Place& at) const {
    const bool anew = any_resets && resets.mark(time(s + 1), row) != 0;
    C c[2] = {kept_c(at.states, 0), kept_c(at.states, 1)};
    uint32_t h = kept_h(at.states);
    float gates[2][kGates];
#pragma unroll
    for (int m = 0; m < kGates; ++m) {
      const uint32_t products = m < kFirstInput ? 0 : ptx::load4(at.stage + m * gate_bytes);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        gates[i][m] = bias[m][i];
        if (m < kFirstInput) continue;
        gates[i][m] += widen_bits<T>(static_cast<uint16_t>(products >> (16 * i)));
      }
    }
    ptx::sync_threads(kSumsFull + team, kMeeting);
    add_sums(gates);

    // A row without this step keeps its states.
    uint16_t bits[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto next = Cell::forward(gates[i], c[i]);
      c[i] = taken && real[i] ? next.new_cell : c[i];
      bits[i] = taken && real[i] ? Narrow<T>::from(next.new_h).bits
                                 : static_cast<uint16_t>(h >> (16 * i));
    }
    h = bits[0] | bits[1] << 16;
    uint32_t sent = h;
    if (any_resets && anew) {
      const auto first = resets.template states<uint16_t, C>(real[0], time(s + 1), row, unit);
      const auto second = resets.template states<uint16_t, C>(real[1], time(s + 1), row, unit + 1);
      sent = rounded(first.h) | rounded(second.h) << 16;
      c[0] = first.c, c[1] = second.c;
    }
    store_word4(at.send, sent);
    if (again) store_word4(at.put_back, ~0u);
    keep_states(at.states, c, h);
    if (!taken) return;
    store_pair(at.output, h, even, real);
    if (args.gates == nullptr) return;
#pragma unroll
    for (int m = 0; m < kGates; ++m) {
      const uint32_t both = Narrow<T>::from(gates[0][m]).bits | Narrow<T>::from(gates[1][m]).bits
                                                                    << 16;
      store_pair(at.gates + m * args.sizes.hidden * 2, both, even, real);
    }
  }

  __device__ __forceinline__ void run() {
    for (int s = 0; s < Layout::kDepth - 1; ++s) fetch(s);
    if (team < buffers) ptx::arrive_threads(kSumsEmpty + team, kMeeting);
    begin();
    const int64_t gates_row = kGates * args.sizes.hidden * 2, output_row = args.output_row * 2;
    int visits = 0, before = 0;  // tiles of all steps so far; rows of the previous step
#pragma unroll 1
    for (int s = 0; s < steps; ++s) {
      ptx::wait_copies<Layout::kDepth - 2>();
      ptx::sync_threads(kFinishers, Layout::kFinishing);
      const int active = rows.active(time(s));
      const int first = buffers == 1 ? team : (visits ^ team) & 1;
      const int64_t row = rows.start(time(s)) + first * 8;
      Place at = {output_to + row * output_row,
                  gates_to + row * gates_row,
                  send_to + ring.place(s) + first * Layout::kTileBytes,
                  send_to + ring.place(s + kGridRing - 2) + first * Layout::kTileBytes,
                  stage_of(s) + (first * 8 + row_in_tile) * Layout::kStageRow + pair * 4,
                  states_of(first)};
#pragma unroll 1
      for (int j = first; j * 8 < active; j += 2) {
        const int own = j * 8 + row_in_tile;
        const bool taken = own < active;
        const bool again = before > j * 8;
        finish(s, own, taken, again, at);
        at = {at.output + 16 * output_row,       at.gates + 16 * gates_row,
              at.send + 2 * Layout::kTileBytes,  at.put_back + 2 * Layout::kTileBytes,
              at.stage + 16 * Layout::kStageRow, at.states + 2 * kStatesBytes};
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
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (!real[i] || row >= rows.count) continue;
        const int64_t hidden = args.sizes.hidden, at = state_row(row);
        const uint32_t h = kept_h(states_of(j)) >> (16 * i);
        static_cast<uint16_t*>(args.h)[at * hidden + unit + i] = static_cast<uint16_t>(h);
        store_unit_c<T>(args.c, at, hidden, unit + i, args.sizes.half_c, kept_c(states_of(j), i));
      }
    }
  }
};

template <class Cell, class T, class Layout, bool any_resets, int late>
__device__ __forceinline__ void run_grid_forward(const PersistentForward& args, int rows_each) {
  using Multiplier =
      std::conditional_t<Layout::kWide,
                         GridWideMultiplier<Layout, GridWideProducts<Cell, T, Layout>, late == 2>,
                         GridMultiplier<Cell, T, Layout, late>>;
  extern __shared__ __align__(128) unsigned char memory[];
  const int rank = static_cast<int>(blockIdx.x) % Layout::kBlocks;
  const int number = static_cast<int>(blockIdx.x) / Layout::kBlocks;
  const int tiles = rows_each / 8;
  const Group group(args.sizes, number, rows_each);
  const GridRing ring{tiles * Layout::kTileBytes};
  char* const exchange =
      static_cast<char*>(args.exchange) + int64_t{number} * (kGridRing + 1) * ring.step_bytes;
  if (threadIdx.x < Layout::kMultiplying) {
    ptx::setmaxnreg_inc<Layout::kMultiplyingRegisters>();
    Multiplier(args, group, exchange, ring, rank, ptx::shared_address(memory)).run();
  } else {
    ptx::setmaxnreg_dec<Layout::kFinishingRegisters>();
    GridFinisher<Cell, T, Layout, any_resets, late == 2 ? 1 : 2>(
        args, group, exchange, ring, rank, rows_each, ptx::shared_address(memory))
        .run();
  }
}

}  // namespace treadle
