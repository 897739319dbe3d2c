// The CPU loop of every elementwise op: any strides, any mixture of dtypes, no copies of operands.
// Dense rows, and rows that repeat one element, are read in place, and the compiler vectorises the
// functor. An input that is dense along the other dimension is transposed tile by tile. Everything
// else goes through blocks on the stack: load and widen, compute, round, store.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "kernels/common/cpu/convert.h"
#include "kernels/elementwise/cpu/tile.h"

namespace treadle::cpu::TREADLE_ISA {

inline constexpr int64_t kBlock = 512;

template <class F, class T, class... In>
inline constexpr bool kHasOwnLoop = std::is_invocable_v<F, T*, int64_t, const In*...>;

// T, whatever I is. A pack expansion over I thus repeats T once per input.
template <class T, size_t I>
using First = T;

template <class F, class T, size_t... I>
constexpr bool has_own_loop(std::index_sequence<I...>) {
  return kHasOwnLoop<F, T, First<T, I>...>;
}

// out[i] = f(in[i]...) for n dense elements. f computes one element, or has its own loop:
// f(out, n, in...). Each input is the output or shares no memory with it (check_memory).
template <class F, class T, class... In>
TREADLE_INLINE void apply(const F& f, T* out, int64_t n, const In*... in) {
  if constexpr (kHasOwnLoop<F, T, In...>) {
    f(out, n, in...);
  } else {
    const F own = f;  // a copy, which no store to `out` can change
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(own(static_cast<acc_t<In>>(in[i])...));
  }
}

// apply() on operands in memory, with 256-bit vectors, which saturate memory bandwidth. 512-bit
// vectors at unaligned addresses would cross cache lines.
template <class F, class T, class... In>
#if defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)
[[gnu::noinline, gnu::target("prefer-vector-width=256")]]
#endif
void apply_in_memory(const F& f, T* out, int64_t n, const In*... in) {
  apply(f, out, n, in...);
}

// Computes a part of a dense row of half-type numbers, aligned or not: widens them, applies f, and
// rounds the results.
template <class common_t, int64_t kSize, class F, size_t... I>
TREADLE_INLINE void dense_halves(const F& f, char* const* data, int64_t begin, int64_t size,
                                 std::index_sequence<I...>) {
  alignas(64) float in[sizeof...(I)][kSize];
  alignas(64) float out[kSize];
  const int64_t offset = begin * int64_t{sizeof(common_t)};
  (..., load_contiguous<common_t, float>(data[I + 1] + offset, in[I], size));
  apply(f, out, size, in[I]...);
  store_contiguous<common_t, float>(data[0] + offset, out, size);
}

template <class common_t, class F, size_t... I>
void dense_row(const F& f, char* const* data, int64_t n, std::index_sequence<I...> inputs) {
  constexpr bool own_loop = has_own_loop<F, acc_t<common_t>>(std::index_sequence<I...>{});
  if constexpr (is_half_type<common_t>) {
    // 32 elements stay in registers. If f has its own loop, blocks are larger.
    constexpr int64_t size = own_loop ? kBlock : 32;
    int64_t begin = 0;
    if constexpr (!own_loop) {
      for (; begin + size <= n; begin += size) {
        dense_halves<common_t, size>(f, data, begin, size, inputs);
      }
    }
    for (; begin < n; begin += size) {
      dense_halves<common_t, size>(f, data, begin, n - begin < size ? n - begin : size, inputs);
    }
  } else if constexpr (own_loop) {
    apply(f, reinterpret_cast<common_t*>(data[0]), n,
          reinterpret_cast<const common_t*>(data[I + 1])...);
  } else {
    apply_in_memory(f, reinterpret_cast<common_t*>(data[0]), n,
                    reinterpret_cast<const common_t*>(data[I + 1])...);
  }
}

// The layout of an operand along a row. kTurned: dense along the other dimension.
enum class InRow { kDense, kRepeated, kTurned, kElsewhere };

template <class common_t>
InRow in_row(const Tile2d& tile, int operand, int operands) {
  constexpr int64_t size = sizeof(common_t);
  const int64_t stride = tile.strides[operand], next_row = tile.strides[operands + operand];
  if (stride == 0 && operand > 0) return InRow::kRepeated;
  const bool aligned =
      is_half_type<common_t> ||
      (reinterpret_cast<uintptr_t>(tile.data[operand]) % alignof(common_t) == 0 &&
       stride % int64_t{alignof(common_t)} == 0 && next_row % int64_t{alignof(common_t)} == 0);
  if (!aligned || tile.dtypes[operand] != tile.compute) return InRow::kElsewhere;
  if (stride == size) return InRow::kDense;
  return next_row == size && operand > 0 ? InRow::kTurned : InRow::kElsewhere;
}

// A row with one input. If the input repeats one element, `value` is that element.
template <class common_t, class F>
void row_of_one(const F& f, char* const* data, bool repeated, acc_t<common_t> value, int64_t n) {
  using acc = acc_t<common_t>;
  if (!repeated) return dense_row<common_t>(f, data, n, std::make_index_sequence<1>{});
  acc result;
  apply(f, &result, 1, &value);
  std::fill_n(reinterpret_cast<common_t*>(data[0]), n, to_stored<common_t, acc>(result));
}

// A row with dense and repeated inputs.
template <class common_t, int kInputs, class F>
void row(const F& f, char* const* data, const InRow* kinds, const Dtype* dtypes, int64_t n) {
  using acc = acc_t<common_t>;
  acc value[kInputs] = {};
  for (int i = 0; i < kInputs; ++i) {
    if (kinds[i + 1] == InRow::kRepeated) {
      load_as<common_t>(dtypes[i + 1], data[i + 1], 0, &value[i], 1);
    }
  }
  const bool first = kinds[1] == InRow::kRepeated;
  if constexpr (kInputs == 1) {
    row_of_one<common_t>(f, data, first, value[0], n);
  } else if constexpr (has_own_loop<F, acc>(std::make_index_sequence<kInputs>{})) {
    dense_row<common_t>(f, data, n, std::make_index_sequence<kInputs>{});
  } else {
    static_assert(kInputs == 2, "a functor of more inputs must have a loop of its own");
    const bool second = kinds[2] == InRow::kRepeated;
    const acc a = value[0], b = value[1];
    if (!first && !second) {
      dense_row<common_t>(f, data, n, std::make_index_sequence<2>{});
    } else if (second) {
      row_of_one<common_t>([f, b](acc x) { return f(x, b); }, data, first, a, n);
    } else {
      char* const others[] = {data[0], data[2]};
      row_of_one<common_t>([f, a](acc x) { return f(a, x); }, others, false, b, n);
    }
  }
}

// Rows with turned inputs, in tiles of a few rows. A tile of a turned input is first transposed to
// the stack.
template <class common_t, int kInputs, class F>
void tiles(const Tile2d& tile, const F& f, const InRow* kinds) {
  constexpr int operands = kInputs + 1;
  constexpr int64_t kRows = 64 / sizeof(common_t), kColumns = 256;
  alignas(64) common_t turned[kInputs][kRows][kColumns];
  InRow dense[operands];
  for (int i = 0; i < operands; ++i)
    dense[i] = kinds[i] == InRow::kTurned ? InRow::kDense : kinds[i];
  for (int64_t y = 0; y < tile.size1; y += kRows) {
    const int64_t rows = std::min(kRows, tile.size1 - y);
    for (int64_t x = 0; x < tile.size0; x += kColumns) {
      const int64_t columns = std::min(kColumns, tile.size0 - x);
      const auto at = [&](int i, int64_t column, int64_t row) {
        return tile.data[i] + column * tile.strides[i] + row * tile.strides[operands + i];
      };
      for (int i = 0; i < kInputs; ++i) {
        if (kinds[i + 1] != InRow::kTurned) continue;
        for (int64_t column = 0; column < columns; ++column) {
          const auto* from = reinterpret_cast<const common_t*>(at(i + 1, x + column, y));
          for (int64_t r = 0; r < rows; ++r) turned[i][r][column] = from[r];
        }
      }
      for (int64_t r = 0; r < rows; ++r) {
        char* data[operands];
        for (int i = 0; i < operands; ++i) {
          data[i] = kinds[i] == InRow::kTurned
                        ? reinterpret_cast<char*>(turned[std::max(i - 1, 0)][r])
                        : at(i, x, y + r);
        }
        row<common_t, kInputs>(f, data, dense, tile.dtypes, columns);
      }
    }
  }
}

// A row of elements of the compute dtype at any stride, computed one by one.
template <class common_t, class F, size_t... I>
void strided_row(const F& f, char* const* data, const int64_t* strides, int64_t n,
                 std::index_sequence<I...>) {
  using acc = acc_t<common_t>;
  // Local copies: a store through char* may alias everything else.
  const F own = f;
  const char* from[] = {data[I + 1]...};
  const int64_t steps[] = {strides[I + 1]...}, out_step = strides[0];
  char* to = data[0];
  for (int64_t i = 0; i < n; ++i) {
    write(to, to_stored<common_t, acc>(own(static_cast<acc>(read<common_t>(from[I]))...)));
    to += out_step;
    (..., (from[I] += steps[I]));
  }
}

template <class common_t, class F, size_t... I>
void blocked_row(const F& f, char* const* data, const int64_t* strides, const Dtype* dtypes,
                 const InRow* kinds, int64_t n, std::index_sequence<I...>) {
  using acc = acc_t<common_t>;
  alignas(64) acc buffer[sizeof...(I)][kBlock];
  alignas(64) acc results[kBlock];
  // Dense operands of the compute type need no buffer.
  const auto direct = [&](int i, int64_t begin) -> acc* {
    if constexpr (std::is_same_v<acc, common_t>) {
      if (kinds[i] == InRow::kDense) return reinterpret_cast<acc*>(data[i]) + begin;
    }
    return nullptr;
  };
  (..., (strides[I + 1] == 0 ? (load_as<common_t>(dtypes[I + 1], data[I + 1], 0, buffer[I],
                                                  n < kBlock ? n : kBlock))
                             : void()));
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t size = n - begin < kBlock ? n - begin : kBlock;
    const acc* in[sizeof...(I)] = {direct(I + 1, begin)...};
    (..., (in[I] == nullptr && strides[I + 1] != 0
               ? load_as<common_t>(dtypes[I + 1], data[I + 1] + begin * strides[I + 1],
                                   strides[I + 1], buffer[I], size)
               : void()));
    acc* out = direct(0, begin);
    apply(f, out ? out : results, size, (in[I] ? in[I] : buffer[I])...);
    if (!out) {
      store_as<common_t>(dtypes[0], data[0] + begin * strides[0], strides[0], results, size);
    }
  }
}

template <class common_t, int kInputs, class F>
void loop(const Tile2d& tile, const F& f) {
  constexpr int operands = kInputs + 1;
  constexpr auto inputs = std::make_index_sequence<kInputs>{};
  constexpr bool own_loop = has_own_loop<F, acc_t<common_t>>(inputs);
  InRow kinds[operands];
  bool one_by_one = true, rows = true, turned = false;
  for (int i = 0; i < operands; ++i) {
    kinds[i] = in_row<common_t>(tile, i, operands);
    one_by_one =
        one_by_one && tile.dtypes[i] == tile.compute &&
        (i == 0 || sizeof(common_t) == 8 || tile.strides[i] != 2 * int64_t{sizeof(common_t)});
    rows = rows && kinds[i] != InRow::kElsewhere;
    turned = turned || kinds[i] == InRow::kTurned;
    // If f has its own loop and several inputs, that loop cannot repeat an element of one input.
    if (own_loop && kInputs > 1) rows = rows && kinds[i] != InRow::kRepeated;
  }
  if (rows && turned && tile.size0 >= 8 && tile.size1 >= 8) {
    return tiles<common_t, kInputs>(tile, f, kinds);
  }
  rows = rows && !turned;
  char* data[operands];
  for (int64_t y = 0; y < tile.size1; ++y) {
    for (int i = 0; i < operands; ++i) data[i] = tile.data[i] + y * tile.strides[operands + i];
    if (rows) {
      row<common_t, kInputs>(f, data, kinds, tile.dtypes, tile.size0);
      continue;
    }
    if constexpr (!own_loop && !is_half_type<common_t>) {
      if (one_by_one) {
        strided_row<common_t>(f, data, tile.strides, tile.size0, inputs);
        continue;
      }
    }
    blocked_row<common_t>(f, data, tile.strides, tile.dtypes, kinds, tile.size0, inputs);
  }
}

}  // namespace treadle::cpu::TREADLE_ISA
