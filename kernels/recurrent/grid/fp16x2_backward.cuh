// The backward grid kernel for any cell in float32 (grid/grid.cuh; engine/fp16x2.cuh explains the
// products): the cell's backward pass, then grad_h_{t-1} = grad_gates_t W_hh. `rows_each` is the
// number of rows per group. The half-type version is grid/half_backward.cuh.
#pragma once

#include "kernels/recurrent/grid/fp16x2_backward_mma.cuh"
#include "kernels/recurrent/grid/half_backward_epilogue.cuh"
#include "kernels/recurrent/grid/kernels.cuh"

namespace treadle {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800

template <class Cell, class Layout, bool any_resets, bool alone>
struct GridSplitBackwardFinisher : GridBackwardFinishing<Cell, float, Layout, any_resets> {
  using Base = GridBackwardFinishing<Cell, float, Layout, any_resets>;
  using Base::args, Base::kGates, Base::kStateGates, Base::rows, Base::resets, Base::ring;
  using Base::kMeeting, Base::pair, Base::real, Base::row_in_tile, Base::steps, Base::thread;
  using Base::team, Base::tiles, Base::time, Base::unit;
  static constexpr int kBiasBytes = Layout::kFinishing * 8;  // per gate: 2 floats per thread

  // A thread's addresses of a tile's data in global memory and shared memory, and its offsets in
  // the exchange.
  struct Place {
    char* grads;
    int send, put_back;
    uint32_t stage, states;
  };

  const uint32_t columns, own_biases;
  const bool exact;  // whether a column of the pair is outside the range of fp16x2
  char *const exchange, *const words_to, *const scales_to;

  __device__ __forceinline__ GridSplitBackwardFinisher(const PersistentBackward& args,
                                                       const Group& group, char* exchange,
                                                       GridRing ring, int rank, int rows_each,
                                                       uint32_t base)
      : Base(args, group, ring, rank, rows_each, base),
        columns(base + Layout::kColumns + pair * 8),
        own_biases(base + Layout::kBiases + thread * 8),
        exact((ptx::load4(base + Layout::kExact) >> 2 * pair & 3) != 0),
        exchange(exchange),
        words_to(exchange + Layout::word_of(unit / 2) + row_in_tile * 64),
        scales_to(exchange + Layout::scale_of(unit / 16, row_in_tile / 4)) {}

  // Computes everything that does not need the sums; returns the gradient of the output.
  __device__ __forceinline__ uint2 prepare(const Place& at,
                                           typename Cell::Slopes (&slopes)[2]) const {
    float gates[2][kGates];
#pragma unroll
    for (int m = 0; m < kGates; ++m) {
      const uint2 both = ptx::load8(at.stage + m * Base::array_bytes);
      gates[0][m] = __uint_as_float(both.x), gates[1][m] = __uint_as_float(both.y);
    }
    typename Base::C c[2];
    Base::staged_c(at.stage + Base::c_at, Base::c_plane(), c);
    slopes[0] = Cell::slopes(gates[0], c[0]);
    slopes[1] = Cell::slopes(gates[1], c[1]);
    return args.grad_output == nullptr ? uint2{0, 0}
                                       : ptx::load8(at.stage + kGates * Base::array_bytes);
  }

  // Adds the sums to the gradients of h, and releases their buffer. `taken` means that the row had
  // the previous step. Other rows sent zeros. Their products are not added, because 0 x inf is NaN.
  __device__ __forceinline__ void add_sums(int s, int j, int buffer, bool taken,
                                           float (&dh)[2]) const {
    ptx::sync_threads(kSumsFull + buffer, kMeeting);
    float parts[2][Layout::kMultiplyingWarps];
#pragma unroll
    for (int w = 0; w < Layout::kMultiplyingWarps; ++w) {
      const uint2 sums =
          ptx::load8(Base::own_sums + buffer * Layout::kSumBytes + w * Layout::kTiles * 512);
      parts[0][w] = __uint_as_float(sums.x), parts[1][w] = __uint_as_float(sums.y);
    }
    ptx::arrive_threads(kSumsEmpty + buffer, kMeeting);
    const uint2 scales = ptx::load8(columns);
    float sum[2] = {sum_in_pairs(parts[0]) * __uint_as_float(scales.x),
                    sum_in_pairs(parts[1]) * __uint_as_float(scales.y)};
    if (!taken) return;
    if (exact || sum[0] + sum[1] != sum[0] + sum[1]) multiply_exactly(s, j, sum);
    dh[0] += sum[0], dh[1] += sum[1];
  }

  __device__ __forceinline__ void multiply_exactly(int s, int j, float (&sum)[2]) const {
    const int row = j * 8 + row_in_tile;
    const int64_t at =
        Base::group.direction * rows.start(steps) + rows.start(time(s - 1)) + rows.first;
    const auto* const grads =
        static_cast<const float*>(args.grad_gates) + (at + row) * kGates * args.sizes.hidden;
    const char* const tile = exchange + ring.place(s - 1) + j * Layout::kTileBytes;
    GridSplitColumns<Cell, Layout>{args, Base::group, tile, grads, unit, row_in_tile}.multiply(sum);
  }

  // Computes this thread's row of tile j in step s. `active` rows have step s, and `before` rows
  // had the previous step.
  __device__ __forceinline__ void finish(int s, int j, int buffer, int active, int before,
                                         const Place& at) const {
    const int row = j * 8 + row_in_tile;
    const bool product = before > j * 8, taken = row < active;
    const bool anew = any_resets && resets.mark(time(s - 1), row) != 0;
    float dh[2];
    typename Base::C dc[2];
    Base::take_states(at.states, dh, dc);
    typename Cell::Slopes slopes[2];
    const uint2 grad_out = prepare(at, slopes);
    if (product) add_sums(s, j, buffer, row < before, dh);
    if (any_resets && anew) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (real[i]) resets.take(time(s - 1), row, unit + i, dh[i], dc[i]);
      }
    }
    // A row without this step keeps its gradients and sends zeros.
    float grads[kGates][2] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float out = __uint_as_float(i == 0 ? grad_out.x : grad_out.y);
      const auto grad = Cell::backward(slopes[i], dh[i] + out, dc[i]);
      if (!taken || !real[i]) continue;
      dh[i] = 0, dc[i] = grad.old_cell;
#pragma unroll
      for (int m = 0; m < kGates; ++m) grads[m][i] = grad.gates[m];
    }
    if (active > j * 8) send(at, grads, product);
    Base::keep_states(at.states, dh, dc);
    if (!taken) return;
    store(at, grads);
    add_to_biases(grads);
  }

  __device__ __forceinline__ void store(const Place& at, const float (&grads)[kGates][2]) const {
#pragma unroll
    for (int m = 0; m < kGates; ++m) {
      char* const to = at.grads + m * args.sizes.hidden * 4;
      if (Base::even) {
        if (real[0]) *reinterpret_cast<float2*>(to) = {grads[m][0], grads[m][1]};
        continue;
      }
      if (real[0]) reinterpret_cast<float*>(to)[0] = grads[m][0];
      if (real[1]) reinterpret_cast<float*>(to)[1] = grads[m][1];
    }
  }

  // Called by whole warps, whose lanes have the 16 units of one span (grid/fp16x2_columns.cuh) in
  // four rows. `again` means that the tile was also sent in the previous step.
  __device__ __forceinline__ void send(const Place& at, const float (&grads)[kGates][2],
                                       bool again) const {
    bool large = false;
    uint32_t most = 0;
#pragma unroll
    for (int m = 0; m < kStateGates; ++m) {
      large |= is_large_gradient(grads[m][0]) || is_large_gradient(grads[m][1]);
      most = larger(larger(most, grads[m][0]), grads[m][1]);
    }
    if (large) {
      store(at, grads);
      __threadfence();  // other blocks will read grad_gates after the packet
      most = 0;
    }
#pragma unroll
    for (int with = 4; with < kWarp; with *= 2) most = max(most, __shfl_xor_sync(~0u, most, with));
    const SplitSpan span(most);
    uint32_t bytes = span.byte() << thread % 4 * 8;
    bytes |= __shfl_xor_sync(~0u, bytes, 1);
    bytes |= __shfl_xor_sync(~0u, bytes, 2);
    const float factor = span.factor();
#pragma unroll
    for (int m = 0; m < kStateGates; ++m) {
      const SplitFloat a(grads[m][0] * factor), b(grads[m][1] * factor);
      const uint32_t highs = a.high | uint32_t{b.high} << 16, lows = a.low | uint32_t{b.low} << 16;
      char* const to = words_to + at.send + m * 512;
      store_word4(to, large ? kLargePair : highs);
      if (Layout::kWords == 2) store_word4(to + Layout::kLowAt, large ? 0 : lows);
    }
    // The scales are sent last, so that when a reader sees them, the packets have usually arrived.
    if (thread % kWarp == 0) store_word4(scales_to + at.send, bytes);
    if (!again) return;
    if (thread % kWarp == 0) store_word4(scales_to + at.put_back, ~0u);
#pragma unroll
    for (int m = 0; m < kStateGates; ++m) {
      char* const to = words_to + at.put_back + m * 512;
      store_word4(to, ~0u);
      if (Layout::kWords == 2) store_word4(to + Layout::kLowAt, ~0u);
    }
  }

  // Adds a row's gradients of a pair to the thread's sums over all tiles and steps.
  __device__ __forceinline__ void add_to_biases(const float (&grads)[kGates][2]) const {
    if (args.bias_sums == nullptr) return;
#pragma unroll
    for (int m = 0; m < kGates; ++m) {
      const uint32_t at = own_biases + m * kBiasBytes;
      const uint2 sums = ptx::load8(at);
      ptx::store_floats(at, __uint_as_float(sums.x) + grads[m][0],
                        __uint_as_float(sums.y) + grads[m][1]);
    }
  }

  // The threads of team 0 that have a tile's first row add the sums of all rows of all teams.
  __device__ __forceinline__ void end_biases() const {
    if (args.bias_sums == nullptr || rows.count <= 0 || team != 0 || row_in_tile != 0) return;
    const int64_t part = Base::group.direction * args.bias_parts + rows.first / (tiles * 8);
    float* const to = args.bias_sums + part * kGates * args.sizes.hidden + unit;
#pragma unroll 1
    for (int m = 0; m < kGates; ++m) {
      float sum[2] = {};
#pragma unroll
      for (int r = 0; r < Layout::kTeams * 8; ++r) {
        const int other = r / 8 * Layout::kTeam + r % 8 / 4 * kWarp + r % 4;
        const uint2 sums = ptx::load8(own_biases + m * kBiasBytes + other * 8);
        sum[0] += __uint_as_float(sums.x), sum[1] += __uint_as_float(sums.y);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (real[i]) to[m * args.sizes.hidden + i] = sum[i];
      }
    }
  }

  __device__ __forceinline__ void run() const {
#pragma unroll
    for (int m = 0; m < kGates; ++m) ptx::store_floats(own_biases + m * kBiasBytes, 0, 0);
    Base::template run<alone>([&](int s, int64_t start, int j, int buffer, int active, int before) {
      const int tile = j * Layout::kTileBytes;
      const int stage_row = (j * 8 + row_in_tile) * Layout::kStageRow;
      finish(s, j, buffer, active, before,
             {Base::grads_at(start, j), ring.place(s) + tile, ring.place(s + kGridRing - 2) + tile,
              Base::stage_of(s) + stage_row + pair * 8, Base::states_of(j)});
    });
    end_biases();
  }
};

template <class Cell, class Layout, bool any_resets, bool alone>
__device__ __forceinline__ void run_grid_split_backward(const PersistentBackward& args,
                                                        int rows_each) {
  extern __shared__ __align__(128) unsigned char memory[];
  const uint32_t base = ptx::shared_address(memory);
  const int block = static_cast<int>(blockIdx.x);
  const int rank = block % Layout::kBlocks, number = block / Layout::kBlocks;
  const Group group(args.sizes, number, rows_each);
  const GridRing ring{rows_each / 8 * Layout::kTileBytes};
  char* const exchange =
      static_cast<char*>(args.exchange) + int64_t{number} * kGridRing * ring.step_bytes;
  describe_columns<Cell, Layout>(args, group.direction, memory, rank * Layout::kUnits);
  if (threadIdx.x < Layout::kMultiplying) {
    ptx::setmaxnreg_inc<Layout::kMultiplyingRegisters>();
    GridSplitBackwardMultiplier<Cell, Layout, alone>(args, group, exchange, ring, rank, base).run();
  } else {
    ptx::setmaxnreg_dec<Layout::kFinishingRegisters>();
    GridSplitBackwardFinisher<Cell, Layout, any_resets, alone>(args, group, exchange, ring, rank,
                                                               rows_each, base)
        .run();
  }
}

#endif

}  // namespace treadle
