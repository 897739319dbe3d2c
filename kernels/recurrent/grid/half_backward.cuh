// The backward grid kernel for any cell in half types (grid/grid.cuh): grad_h_{t-1} = grad_gates_t
// W_hh. A block computes grad_h for its own units, and needs the gradients of all gates of all
// units. `rows_each` is the number of rows per group. Twin: kernels/recurrent/cpu/rows_backward.h.
#pragma once

#include "kernels/recurrent/grid/half_backward_epilogue.cuh"
#include "kernels/recurrent/grid/half_backward_mma.cuh"
#include "kernels/recurrent/grid/kernels.cuh"

namespace treadle {

// The epilogue warps.
template <class Cell, class T, class Layout, bool any_resets, bool alone>
struct GridBackwardFinisher : GridBackwardFinishing<Cell, T, Layout, any_resets> {
  using Base = GridBackwardFinishing<Cell, T, Layout, any_resets>;
  using Base::args, Base::kGates, Base::kStateGates, Base::rows, Base::resets, Base::ring;
  using Base::kMeeting, Base::pair, Base::real, Base::row_in_tile, Base::time, Base::unit;
  static constexpr int kTileBytes = Layout::kTileBytes;

  // A thread's addresses of a tile's data.
  struct Place {
    char *grads, *send, *put_back;
    uint32_t stage, c, states;
  };

  char* const send_to;

  __device__ __forceinline__ GridBackwardFinisher(const PersistentBackward& args,
                                                  const Group& group, char* exchange, GridRing ring,
                                                  int rank, int rows_each, uint32_t base)
      : Base(args, group, ring, rank, rows_each, base),
        send_to(exchange + rank * Layout::kUnits / 32 * kStateGates * 512 + row_in_tile * 64 +
                (rank * Layout::kUnits % 32 / 2 + pair) * 4) {}

  // Computes everything that does not need the sums; returns the gradient of the output.
  __device__ __forceinline__ uint32_t prepare(const Place& at,
                                              typename Cell::Slopes (&slopes)[2]) const {
    uint32_t saved[kGates];
#pragma unroll
    for (int m = 0; m < kGates; ++m) saved[m] = ptx::load4(at.stage + m * Base::array_bytes);
    typename Base::C c[2];
    Base::staged_c(at.c, Base::c_plane(), c);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float gates[kGates];
#pragma unroll
      for (int m = 0; m < kGates; ++m) {
        gates[m] = widen_bits<T>(static_cast<uint16_t>(saved[m] >> (16 * i)));
      }
      slopes[i] = Cell::slopes(gates, c[i]);
    }
    return args.grad_output == nullptr ? 0 : ptx::load4(at.stage + kGates * Base::array_bytes);
  }

  // Adds the sums to the gradients of h, and releases their buffer.
  __device__ __forceinline__ void add_sums(int buffer, bool taken, float (&dh)[2]) const {
    ptx::sync_threads(kSumsFull + buffer, kMeeting);
    float parts[2][Layout::kMultiplyingWarps];
#pragma unroll
    for (int w = 0; w < Layout::kMultiplyingWarps; ++w) {
      const uint2 sums =
          ptx::load8(Base::own_sums + buffer * Layout::kSumBytes + w * Layout::kTiles * 512);
      parts[0][w] = __uint_as_float(sums.x), parts[1][w] = __uint_as_float(sums.y);
    }
    const float first = sum_in_pairs(parts[0]), second = sum_in_pairs(parts[1]);
    // Rows without the previous step sent zeros. Their products are not added, because 0 x inf is
    // NaN.
    if (taken) dh[0] += first, dh[1] += second;
    ptx::arrive_threads(kSumsEmpty + buffer, kMeeting);
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
    const uint32_t grad_out = prepare(at, slopes);
    if (product) add_sums(buffer, row < before, dh);
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
    Base::keep_states(at.states, dh, dc);
    if (!taken) return;
#pragma unroll
    for (int m = 0; m < kGates; ++m) {
      store_pair(at.grads + m * args.sizes.hidden * 2, grads[m], Base::even, real);
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

  __device__ __forceinline__ void run() const {
    Base::template run<alone>([&](int s, int64_t start, int j, int buffer, int active, int before) {
      const int row = j * 8 + row_in_tile;
      const uint32_t stage = Base::stage_of(s);
      finish(s, j, buffer, active, before,
             {Base::grads_at(start, j), send_to + ring.place(s) + j * kTileBytes,
              send_to + ring.place(s + kGridRing - 2) + j * kTileBytes,
              stage + row * Layout::kStageRow + pair * 4,
              stage + Base::c_at + row * Layout::kCRow + pair * 8, Base::states_of(j)});
    });
  }
};

template <class Cell, class T, class Layout, bool any_resets, int late>
__device__ __forceinline__ void run_grid_backward(const PersistentBackward& args, int rows_each) {
  extern __shared__ __align__(128) unsigned char memory[];
  const int rank = static_cast<int>(blockIdx.x) % Layout::kBlocks;
  const int number = static_cast<int>(blockIdx.x) / Layout::kBlocks;
  const int tiles = rows_each / 8;
  const Group group(args.sizes, number, rows_each);
  const GridRing ring{tiles * Layout::kTileBytes};
  char* const exchange =
      static_cast<char*>(args.exchange) + int64_t{number} * kGridRing * ring.step_bytes;
  if (threadIdx.x < Layout::kMultiplying) {
    ptx::setmaxnreg_inc<Layout::kMultiplyingRegisters>();
    GridBackwardMultiplier<Cell, T, Layout, late>(args, group, exchange, ring, rank,
                                                  ptx::shared_address(memory))
        .run();
  } else {
    ptx::setmaxnreg_dec<Layout::kFinishingRegisters>();
    GridBackwardFinisher<Cell, T, Layout, any_resets, late == 2>(
        args, group, exchange, ring, rank, rows_each, ptx::shared_address(memory))
        .run();
  }
}

}  // namespace treadle
