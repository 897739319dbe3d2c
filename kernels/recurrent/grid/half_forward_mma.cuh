// The MMA warps of grid/half_forward.cuh. They poll the exchange for a tile, multiply, and write
// partial sums for the epilogue warps. grid/grid.cuh explains these terms.
#pragma once

#include "kernels/recurrent/grid/grid.cuh"

namespace treadle {

// Loads a warp's weights. Calls put(c, gate, weights of this lane) for each half-chunk c of 16
// elements of K, the reduction dimension. Lane (g, q) has elements 8q to 8q + 7 of a chunk of 32,
// for two mma instructions. Rows g and g + 8 of their A operand are a pair of units.
template <class Cell, class Layout, class Put>
__device__ __forceinline__ void load_forward_weights(const PersistentForward& args, int64_t d,
                                                     int rank, const Put& put) {
  constexpr int kStateGates = Cell::kStateGates, kChunks = Layout::kChunks;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, g = lane / 4, q = lane % 4;
  const int64_t hidden = args.sizes.hidden, u = rank * Layout::kUnits + 2 * g;
  const auto* all =
      static_cast<const uint16_t*>(args.weight_hh) + d * kStateGates * hidden * hidden;
  const bool aligned = hidden % 4 == 0 && reinterpret_cast<uintptr_t>(all) % 8 == 0;
  using Fragments = GateFragments<kStateGates>;
  const auto load = [&](int c) {
    const int64_t k = (warp * kChunks + c / 2) * 32 + 8 * q + c % 2 * 4;
    return load_gate_fragments<Cell>(all, hidden, u, /*apart=*/1, k, aligned);
  };
  // Without setmaxnreg, a thread has so few registers that the rolled loop made the compiler spill
  // weights of an LSTM, and steps took up to a tenth longer.
  constexpr bool kAtOnce = !Layout::kSetmaxnreg && 2 * kChunks <= 8;
  constexpr int kBatch = kAtOnce ? 2 * kChunks : Fragments::kBatch;
  load_in_batches<2 * kChunks, kBatch>(load, [&](int c, const Fragments& of) {
#pragma unroll
    for (int m = 0; m < kStateGates; ++m) put(c, m, of.gate[m]);
  });
}

// An MMA warp computes the products of all units of the block over an eighth of K. `late` says when
// the warp loads the packets of the next visit (a tile in a step). If `late` is 0, it loads them
// while it multiplies; if `late` is 2, after it has stored its sums; if `late` is 1, it alternates
// between the two. 2 is for groups with one tile, where the next packets cannot arrive before the
// tile's epilogue. 1 is for groups with two tiles.
template <class Cell, class T, class Layout, int late>
struct GridMultiplier {
  static constexpr int kStateGates = Cell::kStateGates;
  static constexpr int kChunks = Layout::kChunks;
  using Words = uint4[kChunks];

  uint32_t weights[2 * kChunks * kStateGates * 4] = {};
  GridRing ring;
  GridVisits<false> visit;  // the next visit
  const char* from;
  const char* at;  // the address of the next visit's packets
  uint32_t sums_to;
  int buffer = 0;
  bool more, orders = false;  // whether there is a next visit; whether it begins a new step

  __device__ __forceinline__ GridMultiplier(const PersistentForward& args, const Group& group,
                                            const char* exchange, GridRing ring, int rank,
                                            uint32_t base)
      : ring(ring), visit(group, static_cast<int>(args.sizes.steps)) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    load_forward_weights<Cell, Layout>(args, group.direction, rank, [&](int c, int m, uint4 of) {
      uint32_t* const to = weights + (c * kStateGates + m) * 4;
      to[0] = of.x, to[1] = of.y, to[2] = of.z, to[3] = of.w;
    });
    from = exchange + (warp * kChunks * kWarp + lane) * 16;
    sums_to = base + warp * kStateGates * 512 + sums_place(lane / 4, lane % 4);
    keep(sums_to);
    more = visit.next();
    at = from + source();
  }

  // The offset of the visit's tile, as sent in the previous step.
  __device__ __forceinline__ int source() const {
    const int step = visit.before > visit.j * 8 ? ring.place(visit.s - 1) : ring.before_first();
    return step + visit.j * Layout::kTileBytes;
  }

  // Multiplies the packets `now`, whose loads from `here` have been issued before, and issues the
  // loads of the next visit. After the last visit, the loaded packets are not used.
  template <bool early>
  __device__ __forceinline__ void multiply(Words& now, Words& next, const char*& here) {
    poll(now, here);
    if (early) ask(next, at);
    float sum[kStateGates][4] = {};
#pragma unroll
    for (int c = 0; c < 2 * kChunks; ++c) {
#pragma unroll
      for (int m = 0; m < kStateGates; ++m) {
        const uint32_t* const a = weights + (c * kStateGates + m) * 4;
        const uint4& b = now[c / 2];
        ptx::multiply_add<T>(sum[m], a[0], a[1], a[2], a[3], c % 2 ? b.z : b.x, c % 2 ? b.w : b.y);
      }
    }
    if (late == 0) ptx::sync_threads(kSumsEmpty + buffer, Layout::kMultiplying + Layout::kTeam);
#pragma unroll
    for (int m = 0; m < kStateGates; ++m) {
      ptx::store16(sums_to + buffer * Layout::kSumBytes + m * 512,
                   {__float_as_uint(sum[m][0]), __float_as_uint(sum[m][2]),
                    __float_as_uint(sum[m][1]), __float_as_uint(sum[m][3])});
    }
    ptx::arrive_threads(kSumsFull + buffer, Layout::kMultiplying + Layout::kTeam);
    // The fence costs least here, while the epilogue warps process the tile.
    if (orders) order_exchange(visit.s - 1);
    if (late < 2) buffer ^= 1;
    if (late > 0) ptx::sync_threads(kSumsEmpty + buffer, Layout::kMultiplying + Layout::kTeam);
    if (!early) {
      // With one tile, the next packets cannot arrive before the tile's epilogue, and a failed poll
      // costs more than a wait.
      if (late == 2) {
        for (const int64_t start = clock64(); clock64() - start < Layout::kFirstPoll;) continue;
      }
      ask(next, at);
    }
    here = at;
    advance();
  }

  __device__ __forceinline__ void advance() {
    const int s = visit.s;
    if (more) more = visit.next();
    orders = visit.s != s;
    at = from + source();
    keep(at);
  }

  __device__ __forceinline__ void run() {
    Words a, b;
    const char* here = at;
    bool any = more;
    advance();
    ask(a, here);
    if (late > 0) ptx::sync_threads(kSumsEmpty, Layout::kMultiplying + Layout::kTeam);
#pragma unroll 1
    while (any) {
      if constexpr (late == 2) {
        any = more;
        multiply<false>(a, a, here);
      } else {
        any = more;
        multiply<true>(a, b, here);
        if (!any) break;
        any = more;
        multiply<late == 0>(b, a, here);
      }
    }
    // The epilogue warps have arrived at kSumsEmpty of each buffer once more than these warps have
    // waited there. A named barrier needs as many waits as arrivals.
    if (late == 0) ptx::sync_threads(kSumsEmpty + buffer, Layout::kMultiplying + Layout::kTeam);
    if (late < 2)
      ptx::sync_threads(kSumsEmpty + (buffer ^ 1), Layout::kMultiplying + Layout::kTeam);
  }
};

}  // namespace treadle
