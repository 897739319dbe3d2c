// The fma products of grid/fp16x2_forward.cuh, for rows of W_hh and of h that are outside the range
// of fp16x2 (engine/fp16x2.cuh). A pair of units is sent as a packet of highs and, unless TF32 is
// allowed, one of lows. If the h of either unit is too large for fp16x2, the first packet is
// kLargePair, which makes the sums of that row NaN in all blocks. Then each block multiplies the
// row by fma, and reads the pair from its origin: h0, the state of a reset, or the previous step's
// output.
#pragma once

#include "kernels/recurrent/engine/fp16x2.cuh"
#include "kernels/recurrent/grid/grid.cuh"

namespace treadle {

// A packet of two NaNs that rounding never produces.
inline constexpr uint32_t kLargePair = 0x7e007e00;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800

__device__ __forceinline__ bool is_large(const float (&h)[2]) {
  return fabsf(h[0]) > kSplitLargest || fabsf(h[1]) > kSplitLargest;
}

// Sends the h of a pair of units. A NaN is sent as a NaN that is not all ones.
template <class Layout>
__device__ __forceinline__ void send_split(char* at, const float (&h)[2]) {
  const SplitFloat a(h[0] * power_of_two(kSplitState)), b(h[1] * power_of_two(kSplitState));
  uint32_t highs = a.high | uint32_t{b.high} << 16, lows = a.low | uint32_t{b.low} << 16;
  if (is_large(h)) {
    __threadfence();  // other blocks will read the output after the packet
    highs = kLargePair, lows = 0;
  }
  store_word4(at, highs);
  if (Layout::kWords == 2) store_word4(at + Layout::kLowAt, lows);
}

template <class Layout>
__device__ __forceinline__ void put_back_split(char* at) {
  store_word4(at, ~0u);
  if (Layout::kWords == 2) store_word4(at + Layout::kLowAt, ~0u);
}

// The products of a row of h with the rows of W_hh of a pair of units. They are rarely needed, so
// this code is slow and uses few registers.
template <class Cell, class Layout, bool any_resets>
struct GridSplitExact {
  const PersistentForward& args;
  const Group& group;
  const GroupResets<any_resets>& resets;
  const GridRing& ring;
  uint32_t sums;      // the address of the thread's sums
  int unit, s, row;   // the first unit; the step; the row in the group
  bool begun, again;  // whether the row had step s - 1; whether its tile was sent in step s - 1

  __device__ __forceinline__ int time(int step) const {
    return group.forward_time(step, static_cast<int>(args.sizes.steps));
  }

  // The address of unit 0 of the row's h before step s, in the array from which h was sent.
  __device__ __forceinline__ const float* origin() const {
    const GroupRows& rows = group.rows;
    const int64_t hidden = args.sizes.hidden, d = group.direction, own = rows.first + row;
    if (any_resets && resets.mark(time(s), row) != 0) {
      return static_cast<const float*>(args.resets.h) +
             resets.place(time(s), row) * args.sizes.hidden;
    }
    if (!begun) return static_cast<const float*>(args.h0) + (d * args.sizes.batch + own) * hidden;
    return static_cast<const float*>(args.output) +
           (rows.start(time(s - 1)) + own) * args.output_row + d * hidden;
  }

  // The address of an MMA warp's sums for a gate.
  __device__ __forceinline__ uint32_t sums_of(int m, int warp) const {
    return sums + (warp * Cell::kStateGates + m) * 512;
  }

  // Loads 16 bytes that MMA warps have already received.
  static __device__ __forceinline__ uint4 arrived(const char* at) {
    uint4 v = load_words16(at);
    while (missing(v)) v = load_words16(at);
    return v;
  }

  // Computes the products, which replace the sums of the MMA warps.
  __device__ __forceinline__ void multiply() const {
    const int64_t hidden = args.sizes.hidden;
    const char* const words =
        static_cast<const char*>(args.exchange) +
        int64_t{blockIdx.x / Layout::kBlocks} * (kGridRing + 1) * ring.step_bytes +
        (again ? ring.place(s - 1) : ring.before_first()) + row / 8 * Layout::kTileBytes +
        row % 8 * 64;
#pragma unroll 1
    for (int m = 0; m < Cell::kStateGates; ++m) {
      float sum[2] = {};
#pragma unroll 1
      for (int chunk = 0; chunk * 32 < hidden; ++chunk) {
        float part[2] = {};
#pragma unroll 1
        for (int k = chunk * 32; k < chunk * 32 + 32 && k < hidden; k += 8) {
          const char* const here = words + Layout::word_of(k / 2);
          const uint4 highs = arrived(here);
          const uint4 lows = Layout::kWords == 2 ? arrived(here + Layout::kLowAt) : uint4{};
          const uint32_t h_words[4] = {highs.x, highs.y, highs.z, highs.w};
          const uint32_t l_words[4] = {lows.x, lows.y, lows.z, lows.w};
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            if (k + i >= hidden) continue;
            const float h = h_words[i / 2] == kLargePair ? large_h(k + i)
                                                         : joined(h_words[i / 2] >> i % 2 * 16,
                                                                  l_words[i / 2] >> i % 2 * 16);
            if (h != h) return leave_nan();
            part[0] = fmaf(weight(m, 0, k + i), h, part[0]);
            part[1] = fmaf(weight(m, 1, k + i), h, part[1]);
          }
        }
        sum[0] += part[0], sum[1] += part[1];
      }
      for (int w = 0; w < Layout::kMultiplyingWarps; ++w) {
        ptx::store_floats(sums_of(m, w), w == 0 ? sum[0] : 0.0f, w == 0 ? sum[1] : 0.0f);
      }
    }
  }

  __device__ __forceinline__ void leave_nan() const {
    const float nan = __int_as_float(0x7fffffff);
    for (int m = 0; m < Cell::kStateGates; ++m) ptx::store_floats(sums_of(m, 0), nan, nan);
  }

  static __device__ __forceinline__ float joined(uint32_t high, uint32_t low) {
    return fmaf(widen_bits<Half>(static_cast<uint16_t>(low)), 0x1p-11f,
                widen_bits<Half>(static_cast<uint16_t>(high))) *
           power_of_two(-kSplitState);
  }

  __device__ __forceinline__ float weight(int m, int i, int k) const {
    const int64_t hidden = args.sizes.hidden;
    if (unit + i >= hidden) return 0.0f;
    return __ldg(weight_hh_of<Cell>(args, group.direction) +
                 (Cell::weight_block(m) * hidden + unit + i) * hidden + k);
  }

  // The h of unit k, which was sent as kLargePair. Called after that packet has been read.
  __device__ __forceinline__ float large_h(int k) const {
    __threadfence();  // the sender stored the value before the packet
    return __ldcg(origin() + k);
  }
};

#endif

}  // namespace treadle
