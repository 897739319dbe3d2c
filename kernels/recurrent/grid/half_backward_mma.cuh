// The MMA warps of grid/half_backward.cuh. They poll the exchange for a tile, multiply, and write
// partial sums for the epilogue warps. grid/grid.cuh explains these terms.
#pragma once

#include "kernels/recurrent/grid/grid.cuh"

namespace treadle {

// An MMA warp computes the products of all units of the block over an eighth of K, the reduction
// dimension. `late` is 2 if the group has one tile. Then the next packets belong to the same tile
// and cannot arrive before its epilogue. `late` is 1 with two tiles, which are half a step apart.
// Then the packets of the other tile are loaded after the sums of this one are stored. `late` is 0
// with more tiles. Then the next tile's packets arrive early enough to be loaded during the
// multiplication.
template <class Cell, class T, class Layout, int late>
struct GridBackwardMultiplier {
  static constexpr int kStateGates = Cell::kStateGates;
  static constexpr int kChunks = Layout::kChunks, kTiles = Layout::kTiles;
  static constexpr int kMeeting = Layout::kMultiplying + Layout::kTeam;
  static constexpr bool kAlone = late == 2;
  using Words = uint4[kChunks];

  uint32_t weights[Layout::kInRegisters * kTiles * 4] = {};
  GridRing ring;
  GridVisits<true> visit;  // the next visit: a tile in a step
  const char* from;
  const char* at;  // the address of the next visit's packets
  uint32_t sums_to, in_shared;
  int buffer = 0;
  bool more, orders = false;  // whether there is a next visit; whether it begins a new step

  __device__ __forceinline__ GridBackwardMultiplier(const PersistentBackward& args,
                                                    const Group& group, const char* exchange,
                                                    GridRing ring, int rank, uint32_t base)
      : ring(ring), visit(group, static_cast<int>(args.sizes.steps)) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    in_shared = base + Layout::kWeights + warp * (Layout::kInShared * kTiles * 512) + lane * 16;
    load_weights(args, group.direction, rank, warp, lane / 4, lane % 4);
    __syncwarp();
    from = exchange + (warp * kChunks * kWarp + lane) * 16;
    sums_to = base + warp * kTiles * 512 + sums_place(lane / 4, lane % 4);
    keep(sums_to);
    keep(in_shared);
    more = visit.next();
    at = from + source();
  }

  // Half-chunks (16 elements of K) with weights in shared memory are interleaved with the others,
  // so that each is loaded while others are multiplied.
  static constexpr __device__ __forceinline__ int shared_before(int c) {
    return c * Layout::kInShared / (2 * kChunks);
  }
  static constexpr __device__ __forceinline__ bool shared(int c) {
    return shared_before(c + 1) > shared_before(c);
  }

  // Loads columns of W_hh, which are rows of the transposed matrix. Chunks of 32 elements of K are
  // ordered [32 units][gate]. Rows g and g + 8 of an instruction's A operand are a pair of units.
  __device__ __forceinline__ void load_weights(const PersistentBackward& args, int64_t d, int rank,
                                               int warp, int g, int q) {
    const int64_t hidden = args.sizes.hidden;
    const auto* all =
        static_cast<const uint16_t*>(args.weight_hh) + d * kStateGates * hidden * hidden;
    const auto load = [&](int c, int64_t u) {
      const int chunk = warp * kChunks + c / 2;
      const int64_t first = chunk / kStateGates * 32 + 8 * q + c % 2 * 4;
      const int64_t m = Cell::weight_block(chunk % kStateGates);
      uint32_t x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t v = first + i;
        x[i] = u < hidden && v < hidden ? __ldg(all + (m * hidden + v) * hidden + u) : 0;
      }
      return uint2{x[0] | x[1] << 16, x[2] | x[3] << 16};
    };
    const auto fragment = [&](int f) {
      const int c = f / kTiles;
      const int64_t u = rank * Layout::kUnits + f % kTiles * 16 + 2 * g;
      const uint2 even = load(c, u), odd = load(c, u + 1);
      return uint4{even.x, odd.x, even.y, odd.y};
    };
    load_in_batches<2 * kChunks * kTiles, 4>(fragment, [&](int f, const uint4& of) {
      const int c = f / kTiles, m = f % kTiles;
      if (shared(c)) {
        ptx::store16(in_shared + (shared_before(c) * kTiles + m) * 512, of);
      } else {
        uint32_t* const to = weights + ((c - shared_before(c)) * kTiles + m) * 4;
        to[0] = of.x, to[1] = of.y, to[2] = of.z, to[3] = of.w;
      }
    });
  }

  // The offset of the tile that the visit's step has sent.
  __device__ __forceinline__ int source() const {
    return ring.place(visit.s) + visit.j * Layout::kTileBytes;
  }

  // Multiplies the packets at `here`, whose loads have been issued before, and replaces them by the
  // packets of the next visit. After the last visit, the loaded packets are not used.
  __device__ __forceinline__ void multiply(Words& words, const char*& here) {
    poll(words, here);
    float sum[kTiles][4] = {};
#pragma unroll
    for (int c = 0; c < 2 * kChunks; ++c) {
      const uint4& b = words[c / 2];
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        uint4 a;
        if (shared(c)) {
          a = ptx::load16(in_shared + (shared_before(c) * kTiles + m) * 512);
        } else {
          const uint32_t* const w = weights + ((c - shared_before(c)) * kTiles + m) * 4;
          a = {w[0], w[1], w[2], w[3]};
        }
        ptx::multiply_add<T>(sum[m], a.x, a.y, a.z, a.w, c % 2 ? b.z : b.x, c % 2 ? b.w : b.y);
      }
      if (late == 0 && c % 2) {
        words[c / 2] = load_words16(at + c / 2 * 512);
        // Otherwise the compiler would move all loads after the products.
        if (c / 2 % 3 == 2) __syncwarp();
      }
    }
    if (!kAlone) ptx::sync_threads(kSumsEmpty + buffer, kMeeting);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      ptx::store16(sums_to + buffer * Layout::kSumBytes + m * 512,
                   {__float_as_uint(sum[m][0]), __float_as_uint(sum[m][2]),
                    __float_as_uint(sum[m][1]), __float_as_uint(sum[m][3])});
    }
    ptx::arrive_threads(kSumsFull + buffer, kMeeting);
    // The fence costs least here, while the epilogue warps process the tile.
    if (orders) order_exchange(visit.s - 1);
    if (!kAlone) buffer ^= 1;
    if (kAlone) {
      ptx::sync_threads(kSumsEmpty, kMeeting);
      for (const int64_t start = clock64(); clock64() - start < Layout::kFirstPoll;) continue;
    }
    if (late > 0) ask(words, at);
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
    Words words;
    const char* here = at;
    bool any = more;
    advance();
    ask(words, here);
    if (kAlone) ptx::sync_threads(kSumsEmpty, kMeeting);
#pragma unroll 1
    while (any) {
      any = more;
      multiply(words, here);
    }
    // The epilogue warps have arrived at kSumsEmpty of each buffer once more than these warps have
    // waited there. A named barrier needs as many waits as arrivals.
    if (!kAlone) {
      ptx::sync_threads(kSumsEmpty + buffer, kMeeting);
      ptx::sync_threads(kSumsEmpty + (buffer ^ 1), kMeeting);
    }
  }
};

}  // namespace treadle
