// Small matrix products for recurrent steps: rows of x [R, K] times a panel of W^T [K, n], with the
// sums in registers. n is 1 to 4 times kColumns, the number of acc_t in 64 bytes. These products
// are used where the overhead of a BLAS call would be too large. This file is compiled without
// torch, once per instruction set.
#pragma once

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

// Multiplies `rows` rows of x, each with K elements, by panel [K, units * kColumns]. The result is
// out [rows, units * kColumns]. A row's bits do not depend on other rows: K is divided into as many
// parts as a single row has independent sums, and calls with several rows compute these parts one
// after another.
template <int rows, int units, class acc>
TREADLE_NOINLINE void multiply(const acc* panel, const acc* const* x, int64_t k_size, acc* out) {
  using V = VectorType<acc>;
  constexpr int kLanes = kVectorBytes / sizeof(acc);
  constexpr int kVectors = units * kColumns<acc> / kLanes;
  constexpr int kAll = sums_of(kVectors), kAtOnce = sums_of(rows * kVectors);
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
        std::memcpy(&w[v], panel + (k * kVectors + v) * kLanes, sizeof(V));
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
        acc* const to = out + (r * kVectors + v) * kLanes;
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

// The most rows per call, whose sums fill the registers.
template <int units>
inline constexpr int kMostRows = kVectorBytes == 64   ? (units > 3 ? 6 : 8)
                                 : kVectorBytes == 32 ? (units > 3 ? 1 : 2)
                                                      : 1;

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
      multiply<decltype(n)::value, units>(panel, at, k_size, out);
    };
    const int64_t left = rows - r;
    if (kMost >= 8 && left >= 8) {
      go(std::integral_constant<int, kMost >= 8 ? 8 : 1>{});
    } else if (kMost == 6 && left >= 6 && left != 8) {
      go(std::integral_constant<int, kMost == 6 ? 6 : 1>{});
    } else if (kMost >= 4 && left >= 4) {
      go(std::integral_constant<int, kMost >= 4 ? 4 : 1>{});
    } else if (kMost >= 2 && left >= 2) {
      go(std::integral_constant<int, kMost >= 2 ? 2 : 1>{});
    } else {
      go(std::integral_constant<int, 1>{});
    }
    f(r, count, out);
    r += count;
  }
}

}  // namespace treadle::cpu::TREADLE_ISA
