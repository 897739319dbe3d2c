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

// Transposes a matrix of as many rows as a vector has elements, which is a power of two.
template <class acc, int kLanes = kVectorBytes / sizeof(acc)>
TREADLE_INLINE void transpose(VectorType<acc> (&rows)[kLanes]) {
#if defined(__clang__)
  VectorType<acc> columns[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    for (int j = 0; j < kLanes; ++j) columns[j][i] = rows[i][j];
  }
  std::copy_n(columns, kLanes, rows);
#else
  using Index = std::conditional_t<sizeof(acc) == 4, int32_t, int64_t>;
  typedef Index Indices __attribute__((vector_size(kVectorBytes)));
  // Each stage exchanges blocks of `size` by `size` elements beside the diagonal.
#pragma GCC unroll 4
  for (int size = kLanes / 2; size > 0; size /= 2) {
    Indices upper{}, lower{};
#pragma GCC unroll 16
    for (int j = 0; j < kLanes; ++j) {
      const bool left = (j & size) == 0;
      upper[j] = left ? j : kLanes + j - size, lower[j] = left ? j + size : kLanes + j;
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if ((i & size) != 0) continue;
      const VectorType<acc> a = rows[i], b = rows[i + size];
      rows[i] = __builtin_shuffle(a, b, upper), rows[i + size] = __builtin_shuffle(a, b, lower);
    }
  }
#endif
}

// Writes to out [kColumns, kColumns] the transpose of the elements at byte `at` of kColumns rows.
template <class T, class acc>
TREADLE_NOINLINE void transpose_block(const char* const* rows, int64_t at, acc* out) {
  constexpr int64_t kN = kColumns<acc>, kLanes = kVectorBytes / sizeof(acc);
  for (int64_t first = 0; first < kN; first += kLanes) {
    for (int64_t k = 0; k < kN; k += kLanes) {
      VectorType<acc> tile[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) {
        acc row[kLanes];
        load_contiguous<T, acc>(rows[first + i] + at + k * int64_t{sizeof(T)}, row, kLanes);
        std::memcpy(&tile[i], row, sizeof(tile[i]));
      }
      transpose<acc>(tile);
      for (int64_t j = 0; j < kLanes; ++j) {
        std::memcpy(out + (k + j) * kN + first, &tile[j], sizeof(tile[j]));
      }
    }
  }
}

// The number of independent partial sums of a product, if each has this many vectors. With fewer
// partial sums, an addition would have to wait for the previous addition to the same register.
constexpr int sums_of(int vectors) { return vectors >= 8 ? 1 : vectors >= 4 ? 2 : 4; }

template <class acc>
inline constexpr int kUnitVectors = kColumns<acc> * sizeof(acc) / kVectorBytes;

// The groups of kColumns units whose products are computed together for a cell with this many
// gates. With one gate, a single group would read as many values of x as it has sums. The order of
// addition is the same for one group.
template <int gates>
inline constexpr int kGroupsAtOnce = gates == 1 && kVectorBytes == 64 ? 3 : 1;
static_assert(sums_of(kUnitVectors<float>* kGroupsAtOnce<1>) == sums_of(kUnitVectors<float>));

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

// How many of `left` rows to multiply in one call: 8, 6, 4, 2 or 1. Every call reads the whole
// panel, so calls with few rows are avoided: 8 rows are divided into 4 and 4, not 6 and 2.
template <int units>
int rows_at_once(int64_t left) {
  constexpr int kMost = kMostRows<units>;
  if (kMost >= 8 && left >= 8) return 8;
  if (kMost == 6 && left >= 6 && left != 8) return 6;
  if (kMost >= 4 && left >= 4) return 4;
  return left >= 2 ? 2 : 1;
}

// Multiplies rows_at_once() rows, which are x_stride apart.
template <int units, class acc>
TREADLE_NOINLINE void multiply_some(const acc* panel, const acc* x, int64_t x_stride, int rows,
                                    int64_t k_size, acc* out) {
  constexpr int kMost = kMostRows<units>;
  const acc* at[8];
  for (int i = 0; i < rows; ++i) at[i] = x + i * x_stride;
  if constexpr (kMost >= 8) {
    if (rows == 8) return multiply_units<8, units>(panel, at, k_size, out);
  }
  if constexpr (kMost >= 6) {
    if (rows == 6) return multiply_units<6, units>(panel, at, k_size, out);
  }
  if constexpr (kMost >= 4) {
    if (rows == 4) return multiply_units<4, units>(panel, at, k_size, out);
  }
  rows == 2 ? multiply_units<2, units>(panel, at, k_size, out)
            : multiply_units<1, units>(panel, at, k_size, out);
}

// Multiplies any number of rows, in calls that suit panels of up to `most_units`. Calls
// before(first row, count) before each product and f(first row, count, results of these rows) after
// it.
template <int units, int most_units = units, class acc, class Before, class F>
inline void multiply_rows(const acc* panel, const acc* x, int64_t x_stride, int64_t rows,
                          int64_t k_size, const Before& before, const F& f) {
  alignas(64) acc out[kMostRows<most_units> * units * kColumns<acc>];
  for (int64_t r = 0; r < rows;) {
    const int count = rows_at_once<most_units>(rows - r);
    before(r, count);
    multiply_some<units>(panel, x + r * x_stride, x_stride, count, k_size, out);
    f(r, count, out);
    r += count;
  }
}

}  // namespace treadle::cpu::TREADLE_ISA
