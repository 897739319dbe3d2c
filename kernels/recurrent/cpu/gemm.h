// Small matrix products for recurrent steps: rows of x [R, K] times a panel of W^T [K, n], with the
// sums in registers. n is 1 to 4 times kColumns, the number of acc_t in 64 bytes. These products
// are used where the overhead of a BLAS call would be too large. This file is compiled without
// torch, once per instruction set.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/common/cpu/convert.h"

namespace treadle::cpu::TREADLE_ISA {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif

// The columns of a panel that are computed together.
template <class acc>
inline constexpr int kColumns = 64 / sizeof(acc);

template <class acc>
struct VectorOf {
  typedef acc type __attribute__((vector_size(kVectorBytes)));
};

template <class acc>
using VectorType = typename VectorOf<acc>::type;

// a * b + c
template <class V>
TREADLE_INLINE V fused(V a, V b, V c) {
#if defined(__AVX512F__)
  if constexpr (sizeof(a[0]) == 4) {
    return (V)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
  } else {
    return (V)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
  }
#elif defined(__AVX2__)
  if constexpr (sizeof(a[0]) == 4) {
    return (V)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
  } else {
    return (V)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
  }
#else
  return a * b + c;
#endif
}

// The number of independent partial sums of a product, if each has this many vectors. With fewer
// partial sums, an addition would have to wait for the previous addition to the same register.
constexpr int sums_of(int vectors) { return vectors >= 8 ? 1 : vectors >= 4 ? 2 : 4; }

template <class acc>
inline constexpr int kUnitVectors = kColumns<acc> * sizeof(acc) / kVectorBytes;

// Multiplies `rows` rows of x, each with K elements, by `units` blocks of kColumns columns of a
// panel with `all_units` of them. The result is out [rows, all_units, kColumns]. `panel` and `out`
// point to the first of the blocks. A row's bits do not depend on other rows: K is divided into as
// many parts as a single row has independent sums, and calls with several rows compute these parts
// one after another.
template <int rows, int units, int all_units, class acc>
TREADLE_NOINLINE void multiply(const acc* panel, const acc* const* x, int64_t k_size, acc* out) {
  using V = VectorType<acc>;
  constexpr int kLanes = kVectorBytes / sizeof(acc);
  constexpr int kVectors = units * kUnitVectors<acc>;
  constexpr int kAll = sums_of(all_units * kUnitVectors<acc>);
  constexpr int kAtOnce = std::min(kAll, sums_of(rows * kVectors));
  const int64_t each = k_size / kAll;
#pragma GCC unroll 4
  for (int first = 0; first < kAll; first += kAtOnce) {
    V sum[kAtOnce][rows][kVectors];
#pragma GCC unroll 64
    for (int i = 0; i < kAtOnce * rows * kVectors; ++i) (&sum[0][0][0])[i] = V{};
    const auto step = [&](int64_t k, V(&into)[rows][kVectors]) __attribute__((always_inline)) {
      V w[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        const int64_t at =
            (v / kUnitVectors<acc> * k_size + k) * kColumns<acc> + v % kUnitVectors<acc> * kLanes;
        std::memcpy(&w[v], panel + at, sizeof(V));
      }
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r) {
        const V value = x[r][k] - V{};
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) into[r][v] = fused(w[v], value, into[r][v]);
      }
    };
    for (int64_t k = first * each; k < (first + 1) * each; ++k) {
#pragma GCC unroll 4
      for (int s = 0; s < kAtOnce; ++s) step(k + s * each, sum[s]);
    }
    // The rest of K belongs to the last sum.
    if (first + kAtOnce == kAll) {
      for (int64_t k = kAll * each; k < k_size; ++k) step(k, sum[kAtOnce - 1]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        acc* const to = out + r * all_units * kColumns<acc> + v * kLanes;
        V total = sum[0][r][v];
        if (first > 0) {
          V before;
          std::memcpy(&before, to, sizeof(V));
          total = before + total;
        }
#pragma GCC unroll 4
        for (int s = 1; s < kAtOnce; ++s) total = total + sum[s][r][v];
        std::memcpy(to, &total, sizeof(V));
      }
    }
  }
}

// The sums of a product must fit into the registers, beside weights and a value of x.
inline constexpr int kMostSums = kVectorBytes == 64 ? 24 : 12;

// Multiplies by all blocks of a panel: by as many at once as have registers.
template <int rows, int all_units, class acc, int first = 0>
TREADLE_INLINE void multiply_units(const acc* panel, const acc* const* x, int64_t k_size,
                                   acc* out) {
  if constexpr (first < all_units) {
    constexpr int kFit = std::max(1, kMostSums / (rows * kUnitVectors<acc>));
    constexpr int kUnits = std::min(kFit, all_units - first);
    multiply<rows, kUnits, all_units>(panel + first * k_size * kColumns<acc>, x, k_size,
                                      out + first * kColumns<acc>);
    multiply_units<rows, all_units, acc, first + kUnits>(panel, x, k_size, out);
  }
}

// The most rows per call.
template <int units>
inline constexpr int kMostRows = kVectorBytes == 64   ? (units > 3 ? 6 : 8)
                                 : kVectorBytes == 32 ? 6
                                                      : 2;

// Multiplies any number of rows, in calls of 8, 6, 4, 2 or 1 rows. Calls before(first row, count)
// before each product and f(first row, count, results of these rows) after it. Every call reads the
// whole panel, so calls with few rows are avoided: 8 rows are divided into 4 and 4, not 6 and 2.
template <int units, class acc, class Before, class F>
inline void multiply_rows(const acc* panel, const acc* x, int64_t x_stride, int64_t rows,
                          int64_t k_size, const Before& before, const F& f) {
  constexpr int kMost = kMostRows<units>;
  alignas(64) acc out[kMost * units * kColumns<acc>];
  for (int64_t r = 0; r < rows;) {
    const acc* at[kMost];
    for (int i = 0; i < kMost; ++i) at[i] = x + (r + i) * x_stride;
    int count = 1;
    const auto go = [&](auto n) {
      count = decltype(n)::value;
      before(r, count);
      multiply_units<decltype(n)::value, units>(panel, at, k_size, out);
    };
    const int64_t left = rows - r;
    if (kMost >= 8 && left >= 8) {
      go(std::integral_constant < int, kMost >= 8 ? 8 : 1 > {});
    } else if (kMost == 6 && left >= 6 && left != 8) {
      go(std::integral_constant < int, kMost == 6 ? 6 : 1 > {});
    } else if (kMost >= 4 && left >= 4) {
      go(std::integral_constant < int, kMost >= 4 ? 4 : 1 > {});
    } else if (kMost >= 2 && left >= 2) {
      go(std::integral_constant < int, kMost >= 2 ? 2 : 1 > {});
    } else {
      go(std::integral_constant<int, 1>{});
    }
    f(r, count, out);
    r += count;
  }
}

}  // namespace treadle::cpu::TREADLE_ISA
