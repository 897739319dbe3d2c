// The MMA warps of grid/fp16x2_backward.cuh. They wait for a tile's packets, multiply, and write
// partial sums for the epilogue warps (grid/grid.cuh explains these terms). Registers cannot hold
// the weights and all packets of a tile, so only kWindow chunks of packets are in flight at a time.
// GridSplitBackward (grid/shapes.h) explains chunks and spans. The half-type version is
// grid/half_backward_mma.cuh.
#pragma once

#include "kernels/recurrent/grid/fp16x2_columns.cuh"
#include "kernels/recurrent/grid/fp16x2_weights.cuh"

namespace treadle {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800

// `alone` means that the group has a single tile. Then the next packets belong to the same tile and
// cannot arrive before its epilogue.
template <class Cell, class Layout, bool alone>
struct GridSplitBackwardMultiplier : GridSplitWeights<Layout> {
  using Weights = GridSplitWeights<Layout>;
  using Weights::put, Weights::take;
  static constexpr int kStateGates = Cell::kStateGates, kTiles = Layout::kTiles;
  static constexpr int kChunks = Layout::kChunks, kSpans = Layout::kSpans;
  static constexpr int kWindow = Layout::kWindow;
  static constexpr int kMeeting = Layout::kMultiplying + Layout::kTeam;
  static_assert(kChunks % 2 == 0 && kWindow % 2 == 0);

  uint4 words[kWindow], scales[kSpans / 4];
  GridRing ring;
  GridVisits<true> visit;  // the next visit: a tile in a step
  const char* from;
  const char* at;  // the address of the next visit's packets
  uint32_t sums_to;
  int scales_at;  // the offset of scales from this lane's packets
  int buffer = 0;
  bool more, orders = false;  // whether there is a next visit; whether it begins a new step

  // Must be called after the block has written the scales of its columns.
  __device__ __forceinline__ GridSplitBackwardMultiplier(const PersistentBackward& args,
                                                         const Group& group, const char* exchange,
                                                         GridRing ring, int rank, uint32_t base)
      : Weights(base), ring(ring), visit(group, static_cast<int>(args.sizes.steps)) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    load_weights(args, group.direction, rank, base, warp, lane / 4, lane % 4);
    Weights::ask_first();
    const int words_at = (warp * kChunks * kWarp + lane) * 16;
    from = exchange + words_at;
    scales_at = Layout::scale_of(warp * kSpans, lane % 4 / 2) - words_at;
    sums_to = base + warp * kTiles * 512 + sums_place(lane / 4, lane % 4);
    keep(sums_to);
    more = visit.next();
    at = from + source();
  }

  // Loads columns of W_hh, which are rows of the transposed matrix. Rows g and g + 8 of an
  // instruction's A operand are a pair of units.
  __device__ __forceinline__ void load_weights(const PersistentBackward& args, int64_t d, int rank,
                                               uint32_t base, int warp, int g, int q) {
    const int64_t hidden = args.sizes.hidden;
    const float* const all =
        static_cast<const float*>(args.weight_hh) + d * kStateGates * hidden * hidden;
    const uint32_t exact = ptx::load4(base + Layout::kExact);
    const auto split = [&](int in_block, int m, int span) {
      const int64_t u = rank * Layout::kUnits + in_block;
      const bool any = u < hidden && (exact >> in_block & 1) == 0;
      const int64_t first = (warp * kSpans + span) * 16 + 4 * q;
      float x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t row = Cell::weight_block(m) * hidden + first + i;
        x[i] = any && first + i < hidden ? __ldg(all + row * hidden + u) : 0.0f;
      }
      const float scale = ptx::load_float(base + Layout::kColumns + in_block * 4);
      return SplitFour({x[0], x[1], x[2], x[3]}, SplitRow::factor_of(scale));
    };
    struct Pair {
      uint4 fragments[2];
    };
    // Chunk n has tile t's fragments (n * kTiles + t) * 2 and the next one: the highs and lows of
    // one span or, with one float16 number for each float, the highs of two spans.
    const auto load = [&](int f) {
      const int n = f / kTiles, m = n % kStateGates, in_block = f % kTiles * 16 + 2 * g;
      const int span = n / kStateGates * (2 / Layout::kWords);
      const SplitFour even = split(in_block, m, span), odd = split(in_block + 1, m, span);
      const uint4 highs{even.high.x, odd.high.x, even.high.y, odd.high.y};
      if constexpr (Layout::kWords == 2) {
        return Pair{{highs, {even.low.x, odd.low.x, even.low.y, odd.low.y}}};
      } else {
        const SplitFour x = split(in_block, m, span + 1), y = split(in_block + 1, m, span + 1);
        return Pair{{highs, {x.high.x, y.high.x, x.high.y, y.high.y}}};
      }
    };
    load_in_batches<kChunks * kTiles, 2>(load, [&](int f, const Pair& of) {
      put(2 * f, of.fragments[0]);
      put(2 * f + 1, of.fragments[1]);
    });
  }

  // The offset of the tile that the visit's step has sent.
  __device__ __forceinline__ int source() const {
    return ring.place(visit.s) + visit.j * Layout::kTileBytes;
  }

  __device__ __forceinline__ void ask(const char* there) {
#pragma unroll
    for (int i = 0; i < kSpans / 4; ++i) scales[i] = load_words16(there + scales_at + i * 16);
#pragma unroll
    for (int n = 0; n < kWindow; ++n) words[n] = load_words16(there + n * 512);
  }

  // Waits until chunk n and the next one have arrived.
  __device__ __forceinline__ void await(const char* here, int n) {
    uint4 both[2] = {words[n % kWindow], words[(n + 1) % kWindow]};
    poll(both, here + n * 512);
    words[n % kWindow] = both[0], words[(n + 1) % kWindow] = both[1];
  }

  // Called when chunk n is not needed again. The first chunk after the window, of this tile or the
  // next one, replaces it. After the last tile, the loaded packets are not used.
  __device__ __forceinline__ void used(const char* here, int n) {
    if (n + kWindow < kChunks) {
      words[n % kWindow] = load_words16(here + (n + kWindow) * 512);
    } else if (!alone) {
      words[n % kWindow] = load_words16(at + (n + kWindow - kChunks) * 512);
    }
    // Otherwise the compiler would move all loads after the products.
    if (n % 3 == 2) __syncwarp();
  }

  // Waits for the scales, which are sent after a tile's packets. If scales are missing, this waits
  // for all packets of the window at once, because waiting for them in pairs would cost a memory
  // round trip per pair.
  __device__ __forceinline__ void await_scales(const char* here) {
    bool late = alone || any_missing(scales);
    while (late) {
      ask_missing(scales, here + scales_at, 16);
      ask_missing(words, here);
      const bool missing = any_missing(scales);
      late = any_missing(words) || missing;
    }
  }

  // Takes the scales of rows 2q and 2q + 1. Each register gets the bytes of two spans.
  __device__ __forceinline__ void take_scales(const char* here, uint32_t (&own)[kSpans / 2]) {
    await_scales(here);
    const uint32_t which = threadIdx.x % 2 == 0 ? 0x5410 : 0x7632;
#pragma unroll
    for (int i = 0; i < kSpans / 4; ++i) {
      own[2 * i] = __byte_perm(scales[i].x, scales[i].y, which);
      own[2 * i + 1] = __byte_perm(scales[i].z, scales[i].w, which);
    }
#pragma unroll
    for (int i = 0; i < kSpans / 4; ++i) {
      if (!alone) scales[i] = load_words16(at + scales_at + i * 16);
    }
  }

  static __device__ __forceinline__ float scale(const uint32_t (&own)[kSpans / 2], int span,
                                                int row) {
    const int byte = span % 2 * 2 + row;
    return __uint_as_float(__byte_perm(own[span / 2], 0, byte << 12 | 0x444) >> 1);
  }

  // Multiplies the packets at `here`, whose loads have been issued before. Tensor cores truncate
  // their accumulators, so the sums of spans are added in registers.
  __device__ __forceinline__ void multiply(const char*& here) {
    constexpr int kTogether = 2 / Layout::kWords;  // spans
    uint32_t own[kSpans / 2];
    take_scales(here, own);
    float total[kTiles][4] = {};
#pragma unroll
    for (int span = 0; span < kSpans; span += kTogether) {
      float part[2][kTiles][4] = {};
#pragma unroll
      for (int m = 0; m < kStateGates; ++m) {
        const int n = span / kTogether * kStateGates + m;
        if (n % 2 == 0) await(here, n);
        const uint4 b = words[n % kWindow];
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          const uint4 first = take((n * kTiles + t) * 2);
          ptx::multiply_add<Half>(part[0][t], first.x, first.y, first.z, first.w, b.x, b.y);
          if (Layout::kWords == 2) {
            ptx::multiply_add<Half>(part[1][t], first.x, first.y, first.z, first.w, b.z, b.w);
          }
          const uint4 second = take((n * kTiles + t) * 2 + 1);
          ptx::multiply_add<Half>(part[1][t], second.x, second.y, second.z, second.w,
                                  Layout::kWords == 2 ? b.x : b.z, Layout::kWords == 2 ? b.y : b.w);
        }
        used(here, n);
      }
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (Layout::kWords == 2) {
            const float sum = fmaf(part[1][t][i], 0x1p-11f, part[0][t][i]);
            total[t][i] = fmaf(sum, scale(own, span, i % 2), total[t][i]);
          } else {
            total[t][i] = fmaf(part[0][t][i], scale(own, span, i % 2), total[t][i]);
            total[t][i] = fmaf(part[1][t][i], scale(own, span + 1, i % 2), total[t][i]);
          }
        }
      }
    }
    if (!alone) ptx::sync_threads(kSumsEmpty + buffer, kMeeting);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      ptx::store16(sums_to + buffer * Layout::kSumBytes + t * 512,
                   {__float_as_uint(total[t][0]), __float_as_uint(total[t][2]),
                    __float_as_uint(total[t][1]), __float_as_uint(total[t][3])});
    }
    ptx::arrive_threads(kSumsFull + buffer, kMeeting);
    // The fence costs least here, while the epilogue warps process the tile.
    if (orders) order_exchange(visit.s - 1);
    if (!alone) buffer ^= 1;
    if (alone) {
      ptx::sync_threads(kSumsEmpty, kMeeting);
      ask(at);
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
    const char* here = at;
    bool any = more;
    advance();
    ask(here);
    if (alone) ptx::sync_threads(kSumsEmpty, kMeeting);
#pragma unroll 1
    while (any) {
      any = more;
      multiply(here);
    }
    // The epilogue warps have arrived at kSumsEmpty of each buffer once more than these warps have
    // waited there. A named barrier needs as many waits as arrivals.
    if (!alone) {
      ptx::sync_threads(kSumsEmpty + buffer, kMeeting);
      ptx::sync_threads(kSumsEmpty + (buffer ^ 1), kMeeting);
    }
  }
};

#endif

}  // namespace treadle
