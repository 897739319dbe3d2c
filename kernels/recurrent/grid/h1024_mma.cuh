// The MMA warps of grid/half_forward.cuh, for layouts with `kWide`, and of grid/fp16x2_forward.cuh.
// In these kernels, registers cannot hold all weights and the packets of two tiles.
// grid/half_forward_mma.cuh is the version with all weights in registers.
#pragma once

#include "kernels/recurrent/grid/half_forward_mma.cuh"

namespace treadle {

// A warp's part of W_hh in half types (all units of the block, and an eighth of K, the reduction
// dimension), and its products.
template <class Cell, class T, class Layout>
struct GridWideProducts {
  static constexpr int kStateGates = Cell::kStateGates, kChunks = Layout::kChunks;

  uint32_t weights[Layout::kInRegisters * kStateGates * 4] = {};
  uint32_t in_shared;

  __device__ __forceinline__ GridWideProducts(const PersistentForward& args, const Group& group,
                                              int rank, uint32_t base) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    in_shared =
        base + Layout::kWeights + warp * (Layout::kInShared * kStateGates * 512) + lane * 16;
    load_forward_weights<Cell, Layout>(args, group.direction, rank, [&](int c, int m, uint4 of) {
      if (shared(c)) {  // each lane reads only what it has stored
        ptx::store16(in_shared + (shared_before(c) * kStateGates + m) * 512, of);
      } else {
        uint32_t* const to = weights + ((c - shared_before(c)) * kStateGates + m) * 4;
        to[0] = of.x, to[1] = of.y, to[2] = of.z, to[3] = of.w;
      }
    });
    keep(in_shared);
  }

  // Half-chunks (16 elements of K) with weights in shared memory are interleaved with the others,
  // so that each is loaded while others are multiplied.
  static constexpr __device__ __forceinline__ int shared_before(int c) {
    return c * Layout::kInShared / (2 * kChunks);
  }
  static constexpr __device__ __forceinline__ bool shared(int c) {
    return shared_before(c + 1) > shared_before(c);
  }

  // Calls await(i, j) to wait for chunks i and j of the packets, used(i) when chunk i is not needed
  // again, and leave(m, sums) with the sums of each gate m, in order.
  template <class Await, class Leave, class Used>
  __device__ __forceinline__ void multiply(const uint4 (&words)[kChunks], const Await& await,
                                           const Leave& leave, const Used& used) {
    float sum[kStateGates][4] = {};
#pragma unroll
    for (int c = 0; c < 2 * kChunks; ++c) {
      if (c % 4 == 0) await(c / 2, c / 2 + 1);
      const uint4& b = words[c / 2];
#pragma unroll
      for (int m = 0; m < kStateGates; ++m) {
        uint4 a;
        if (shared(c)) {
          a = ptx::load16(in_shared + (shared_before(c) * kStateGates + m) * 512);
        } else {
          const uint32_t* const w = weights + ((c - shared_before(c)) * kStateGates + m) * 4;
          a = {w[0], w[1], w[2], w[3]};
        }
        ptx::multiply_add<T>(sum[m], a.x, a.y, a.z, a.w, c % 2 ? b.z : b.x, c % 2 ? b.w : b.y);
      }
      if (c % 2) used(c / 2);
    }
#pragma unroll
    for (int m = 0; m < kStateGates; ++m) leave(m, sum[m]);
  }
};

// `alone` means that the group has a single tile. Then the next packets belong to the same tile and
// cannot arrive before its epilogue.
template <class Layout, class Products, bool alone>
struct GridWideMultiplier {
  static constexpr int kStateGates = Products::kStateGates, kChunks = Layout::kChunks;
  static constexpr int kMeeting = Layout::kMultiplying + Layout::kTeam;
  static constexpr bool kWhole = alone || kChunks <= 4;  // whether to wait for the whole tile
  using Words = uint4[kChunks];

  Products products;
  GridRing ring;
  GridVisits<false> visit;  // the next visit: a tile in a step
  const char* from;
  const char* at;  // the address of the next visit's packets
  uint32_t sums_to;
  int buffer = 0;
  bool more, orders = false;  // whether there is a next visit; whether it begins a new step

  __device__ __forceinline__ GridWideMultiplier(const PersistentForward& args, const Group& group,
                                                const char* exchange, GridRing ring, int rank,
                                                uint32_t base)
      : products(args, group, rank, base),
        ring(ring),
        visit(group, static_cast<int>(args.sizes.steps)) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
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

  // Multiplies the packets at `here`, whose loads have been issued before. As soon as the packets
  // of a 16-byte load have been used, that load is issued for the next visit; it arrives while
  // other packets are multiplied. The warp waits for two loads at a time. After the last visit, the
  // loaded packets are not used.
  __device__ __forceinline__ void multiply(Words& words, const char*& here) {
    // If the tile has not arrived, this waits for all loads at once. Waiting for two at a time
    // would cost a memory round trip per pair.
    const uint4 first[1] = {words[0]};
    if (kWhole || any_missing(first)) poll(words, here);
    const auto await = [&](int i, int j) {
      if (kWhole) return;
      uint4 both[2] = {words[i], words[j]};
      poll(both, here + i * 512, (j - i) * 512);
      words[i] = both[0], words[j] = both[1];
    };
    const auto leave = [&](int m, const float (&sum)[4]) {
      if (!alone && m == 0) ptx::sync_threads(kSumsEmpty + buffer, kMeeting);
      ptx::store16(sums_to + buffer * Layout::kSumBytes + m * 512,
                   {__float_as_uint(sum[0]), __float_as_uint(sum[2]), __float_as_uint(sum[1]),
                    __float_as_uint(sum[3])});
    };
    products.multiply(words, await, leave, [&](int i) {
      if (alone) return;
      words[i] = load_words16(at + i * 512);
      // Otherwise the compiler would move all loads after the products.
      if (i % 3 == 2) __syncwarp();
    });
    ptx::arrive_threads(kSumsFull + buffer, kMeeting);
    // The fence costs least here, while the epilogue warps process the tile.
    if (orders) order_exchange(visit.s - 1);
    if (!alone) buffer ^= 1;
    if (alone) {
      ptx::sync_threads(kSumsEmpty, kMeeting);
      // A failed poll costs more than a wait.
      for (const int64_t start = clock64(); clock64() - start < Layout::kFirstPoll;) continue;
      ask(words, at);
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
    Words words;
    const char* here = at;
    bool any = more;
    advance();
    ask(words, here);
    if (alone) ptx::sync_threads(kSumsEmpty, kMeeting);
#pragma unroll 1
    while (any) {
      any = more;
      multiply(words, here);
    }
    // The epilogue warps have arrived at kSumsEmpty of each buffer once more than these warps have
    // waited there. A named barrier needs as many waits as arrivals.
    if (!alone) {
      ptx::sync_threads(kSumsEmpty + buffer, kMeeting);
      ptx::sync_threads(kSumsEmpty + (buffer ^ 1), kMeeting);
    }
  }
};

}  // namespace treadle
