// Epilogue of fused_forward.cu and mma_forward.cu: bias, sine and phase of accumulator tiles in
// registers.
#pragma once

#include "kernels/sine_linear/common.cuh"

namespace treadle {
namespace {

// For large arguments and NaN. These are rare, so not inlining the function saves registers.
template <class T>
__device__ __noinline__ void store_far_sines(const SineLinearForward& args, int64_t element,
                                             const float* u) {
  constexpr int n = kWide<T>;
  Vector<T, n> y;
  Vector<int16_t, n> phase;
  for (int e = 0; e < n; ++e) {
    const auto result = math::SineLinear<T>::template forward<true>(u[e]);
    y.value[e] = Narrow<T>::from(result.y);
    phase.value[e] = static_cast<int16_t>(result.phase);
  }
  store_at(args.output, element, y);
  if (args.phase != nullptr) store_at(args.phase, element, phase);
}

template <class T>
struct Sines {
  static constexpr int n = kWide<T>;
  Vector<T, n> y;
  Vector<uint32_t, n / 2> phase;

  __device__ __forceinline__ explicit Sines(const float (&u)[n]) {
    using Layer = math::SineLinear<T>;
#pragma unroll
    for (int e = 0; e < n; e += 2) {
      const auto a = Layer::near(u[e]), b = Layer::near(u[e + 1]);
      y.value[e] = Narrow<T>::from(a.y);
      y.value[e + 1] = Narrow<T>::from(b.y);
      phase.value[e / 2] = __byte_perm(a.phase, b.phase, 0x5410);
      // -32768 encodes NaN, so clamp half a turn to -32767.
      if constexpr (sizeof(T) == 2) phase.value[e / 2] = __vmaxs2(phase.value[e / 2], 0x80018001u);
    }
  }
};

// c has kBands bands of rows, kApart rows apart. In each band, a warp has the accumulators of
// kWords / 4 mma instructions with 16 x 8 results. `first_row` is the warp's first row in the first
// band. W's rows are loaded in an order that makes n columns of a thread consecutive.
template <class T, bool kSave, int kApart, int kBands, int kWords>
__device__ __forceinline__ void store_sines_of(const SineLinearForward& args, int64_t first_row,
                                               int first_column, const float (&c)[kBands][kWords]) {
  constexpr int n = kWide<T>, kRows = 2;  // a thread's rows in each band, 8 apart
  const int lane = threadIdx.x % 32;
  const int64_t row = first_row + lane / 4;
  const int column = first_column + lane % 4 * n, columns = static_cast<int>(args.columns);
  const int rows = static_cast<int>(args.rows - row);  // from `row` to the end
  const int64_t first = row * columns + column;
  const float omega = static_cast<float>(args.omega);
  Vector<T, n> next = {};
  const auto load_bias = [&](int group) {
    const int at = column + group * kGroup<T>;
    if (args.bias != nullptr && at < columns) next = load_at<T, n>(args.bias, at);
  };
  load_bias(0);
#pragma unroll
  for (int group = 0; group < kWords / (2 * n); ++group) {
    if (column + group * kGroup<T> >= columns) return;
    float bias[n];
    widen(next, bias);
    load_bias(group + 1);
#pragma unroll
    for (int e = 0; e < n; ++e) bias[e] *= omega;
#pragma unroll
    for (int band = 0; band < kBands; ++band) {
      // Computes both rows together, because independent work hides latency.
      float u[kRows][n];
      bool far = false;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int e = 0; e < n; ++e) {
          const int j = n / 2 * group + e / 2;
          u[r][e] = fmaf(omega, c[band][4 * j + 2 * r + e % 2], bias[e]);
        }
        far |= any_far<T>(u[r]);
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int down = band * kApart + r * 8;
        const int64_t element = first + int64_t{down} * columns + group * kGroup<T>;
        if (far) {
          float copy[n];
#pragma unroll
          for (int e = 0; e < n; ++e) copy[e] = u[r][e];
          if (down < rows) store_far_sines<T>(args, element, copy);
        } else {
          const Sines<T> found(u[r]);
          if (down >= rows) continue;
          store_at(args.output, element, found.y);
          if constexpr (kSave) {
            store_at(args.phase, element, reinterpret_cast<const Vector<int16_t, n>&>(found.phase));
          }
        }
      }
    }
  }
}

// Whether the kernels with this epilogue support the layout of the arguments, in tiles of `tile`
// rows. With fewer rows than one tile has, cuBLAS is faster.
template <class T>
bool fits_tiles(const SineLinearForward& args, int64_t tile) {
  return args.rows >= tile && args.columns % kGroup<T> == 0 && args.inputs % kWide<T> == 0 &&
         args.column_stride == 1 && args.row_stride % kWide<T> == 0 &&
         args.row_stride >= args.inputs && aligned(args.input) && aligned(args.weight) &&
         aligned(args.bias) && aligned(args.output) && aligned(args.phase);
}

}  // namespace
}  // namespace treadle
