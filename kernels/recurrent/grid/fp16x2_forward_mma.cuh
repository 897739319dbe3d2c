// An MMA warp's part of W_hh in grid/fp16x2_forward.cuh, and its products. High and low terms of h
// are in different chunks of the exchange; those of W_hh are in different fragments. If TF32 is
// allowed, there are only the high terms.
#pragma once

#include "kernels/recurrent/engine/fp16x2.cuh"
#include "kernels/recurrent/grid/fp16x2_weights.cuh"
#include "kernels/recurrent/grid/h1024_mma.cuh"

namespace treadle {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800

// Used by GridWideMultiplier. GridWideProducts explains the arguments of multiply().
template <class Cell, class Layout>
struct GridSplitProducts : GridSplitWeights<Layout> {
  using Weights = GridSplitWeights<Layout>;
  using Weights::put, Weights::take;
  static constexpr int kChunks = Layout::kChunks, kHighs = Layout::kHighs, kWords = Layout::kWords;
  static constexpr int kStateGates = Cell::kStateGates, kTogether = Layout::kGatesTogether;

  // Must be called after the block has written the scales of its rows.
  __device__ __forceinline__ GridSplitProducts(const PersistentForward& args, const Group& group,
                                               int rank, uint32_t base)
      : Weights(base) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, g = lane / 4, q = lane % 4;
    const int64_t hidden = args.sizes.hidden, u = rank * Layout::kUnits + 2 * g;
    const auto* all =
        static_cast<const float*>(args.weight_hh) + group.direction * kStateGates * hidden * hidden;
    const bool vector = hidden % 4 == 0 && reinterpret_cast<uintptr_t>(all) % 16 == 0;
    struct Pair {
      uint4 highs, lows;
    };
    const auto gate = [](int n) {
      return n / (2 * kHighs * kTogether) * kTogether + n % kTogether;
    };
    const auto half_chunk = [](int n) { return n / kTogether % (2 * kHighs); };
    const auto load = [&](int n) {
      const int m = gate(n), c = half_chunk(n);
      const int64_t k = (warp * kHighs + c / 2) * 32 + 8 * q + c % 2 * 4;
      const auto split = [&](int more) {
        const bool exact = ptx::load4(base + Layout::kExact + m * 4) >> (2 * g + more) & 1;
        const bool any = u + more < hidden && !exact;
        const float scale =
            ptx::load_float(base + Layout::kBias + (m * Layout::kUnits + 2 * g + more) * 8 + 4);
        const float* at = all + (Cell::weight_block(m) * hidden + u + more) * hidden + k;
        return SplitFour(load_four_floats(at, any ? hidden - k : 0, vector),
                         SplitRow::factor_of(scale));
      };
      const SplitFour even = split(0), odd = split(1);
      return Pair{{even.high.x, odd.high.x, even.high.y, odd.high.y},
                  {even.low.x, odd.low.x, even.low.y, odd.low.y}};
    };
    load_in_batches<Layout::kFragments / kWords, 1>(load, [&](int n, const Pair& of) {
      put(place(gate(n), half_chunk(n), 0), of.highs);
      if (kWords == 2) put(place(gate(n), half_chunk(n), 1), of.lows);
    });
    Weights::ask_first();
  }

  // The index of the fragment with the highs or lows of gate m and half-chunk c (16 elements of K,
  // the reduction dimension). Fragments are in the order in which multiply() takes them.
  static constexpr __device__ __forceinline__ int place(int m, int c, int lows) {
    return ((m / kTogether * 2 * kHighs + c) * kWords + lows) * kTogether + m % kTogether;
  }

  template <class Await, class Leave, class Used>
  __device__ __forceinline__ void multiply(const uint4 (&words)[kChunks], const Await& await,
                                           const Leave& leave, const Used& used) {
    if constexpr (kWords == 2) {
      multiply_terms(words, await, leave, used);
    } else {
      multiply_highs(words, await, leave, used);
    }
  }

 private:
  template <class Await, class Leave, class Used>
  __device__ __forceinline__ void multiply_highs(const uint4 (&words)[kChunks], const Await& await,
                                                 const Leave& leave, const Used& used) {
    float sums[kStateGates][4] = {};
#pragma unroll
    for (int c = 0; c < 2 * kHighs; ++c) {
      if (c % 4 == 0) await(c / 2, c / 2 + 1);
      const uint4& h = words[c / 2];
#pragma unroll
      for (int m = 0; m < kStateGates; ++m) {
        const uint4 a = take(place(m, c, 0));
        ptx::multiply_add<Half>(sums[m], a.x, a.y, a.z, a.w, c % 2 ? h.z : h.x, c % 2 ? h.w : h.y);
      }
      if (c % 2) used(c / 2);
    }
#pragma unroll
    for (int m = 0; m < kStateGates; ++m) leave(m, sums[m]);
  }

  // Tensor cores truncate their accumulators instead of rounding them, so sums of highs are added
  // in registers after every two products.
  template <class Await, class Leave, class Used>
  __device__ __forceinline__ void multiply_terms(const uint4 (&words)[kChunks], const Await& await,
                                                 const Leave& leave, const Used& used) {
#pragma unroll
    for (int first = 0; first < kStateGates; first += kTogether) {
      float total[kTogether][4], high[kTogether][4] = {}, low[kTogether][4] = {};
#pragma unroll
      for (int c = 0; c < 2 * kHighs; ++c) {
        if (first == 0 && c % 2 == 0) await(c / 2, kHighs + c / 2);
        const uint4 &highs = words[c / 2], &lows = words[kHighs + c / 2];
        const uint32_t h[2] = {c % 2 ? highs.z : highs.x, c % 2 ? highs.w : highs.y};
        const uint32_t l[2] = {c % 2 ? lows.z : lows.x, c % 2 ? lows.w : lows.y};
        uint4 a[kTogether];
#pragma unroll
        for (int m = 0; m < kTogether; ++m) {
          a[m] = take(place(first + m, c, 0));
          ptx::multiply_add<Half>(high[m], a[m].x, a[m].y, a[m].z, a[m].w, h[0], h[1]);
        }
#pragma unroll
        for (int m = 0; m < kTogether; ++m) {
          ptx::multiply_add<Half>(low[m], a[m].x, a[m].y, a[m].z, a[m].w, l[0], l[1]);
        }
#pragma unroll
        for (int m = 0; m < kTogether; ++m) {
          const uint4 b = take(place(first + m, c, 1));
          ptx::multiply_add<Half>(low[m], b.x, b.y, b.z, b.w, h[0], h[1]);
        }
        if (c % 2 == 0) continue;
#pragma unroll
        for (int m = 0; m < kTogether; ++m) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            total[m][i] = c == 1 ? high[m][i] : total[m][i] + high[m][i];
            high[m][i] = 0;
          }
        }
        if (first + kTogether == kStateGates) {
          used(c / 2);
          used(kHighs + c / 2);
        }
      }
#pragma unroll
      for (int m = 0; m < kTogether; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) total[m][i] = fmaf(low[m][i], 0x1p-11f, total[m][i]);
        leave(first + m, total[m]);
      }
    }
  }
};

#endif

}  // namespace treadle
