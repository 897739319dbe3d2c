// The loop under every elementwise op: any strides, any mixture of dtypes, no copies.
// Dense operands of the compute dtype are computed in place, so that the compiler vectorises the
// functor; everything else goes through blocks on the stack: load and widen, compute, round, store.
#pragma once

#include <array>
#include <cstddef>
#include <utility>

#include "cpu/convert.h"
#include "cpu/kernels.h"

namespace treadle::cpu::TREADLE_ISA {

inline constexpr int64_t kBlock = 512;

// Loads n elements stored as `dtype`, rounded to common_t where that is narrower.
template <class common_t>
void load_as(Dtype dtype, const char* src, int64_t stride, acc_t<common_t>* buf, int64_t n) {
  using acc = acc_t<common_t>;
  visit(dtype, [&](auto type) {
    using stored_t = typename decltype(type)::type;
    load<stored_t, acc>(src, stride, buf, n);
    if constexpr (is_half_type<common_t> && !std::is_same_v<stored_t, common_t>) {
      for (int64_t i = 0; i < n; ++i) {
        buf[i] = from_stored<common_t, acc>(to_stored<common_t, acc>(buf[i]));
      }
    }
  });
}

// Stores n results: first rounded to common_t, as a temporary of that dtype would do, then cast.
template <class common_t>
void store_as(Dtype dtype, char* dst, int64_t stride, const acc_t<common_t>* buf, int64_t n) {
  visit(dtype, [&](auto type) {
    using stored_t = typename decltype(type)::type;
    if constexpr (std::is_same_v<stored_t, common_t>) {
      store<stored_t, acc_t<common_t>>(dst, stride, buf, n);
    } else {
      for (int64_t i = 0; i < n; ++i) {
        const common_t rounded = to_stored<common_t, acc_t<common_t>>(buf[i]);
        if constexpr (is_half_type<common_t>) {
          write(dst + i * stride, to_stored<stored_t, float>(to_float(rounded)));
        } else {
          write(dst + i * stride, to_stored<stored_t, common_t>(rounded));
        }
      }
    }
  });
}

template <class F, class T, class... In>
inline constexpr bool kHasOwnLoop = std::is_invocable_v<F, T*, int64_t, const In*...>;

// out[i] = f(in[i]...) for n dense elements. f computes one element, or brings a loop of its own:
// f(out, n, in...). An output is an input or apart from it (TensorIterator refuses partial
// overlap).
template <class F, class T, class... In>
TREADLE_INLINE void apply(const F& f, T* out, int64_t n, const In*... in) {
  if constexpr (kHasOwnLoop<F, T, In...>) {
    f(out, n, in...);
  } else {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(f(static_cast<acc_t<In>>(in[i])...));
  }
}

// The same in memory, whose bandwidth 256-bit vectors exhaust; 512-bit ones wait for both halves of
// a cache line more often than not.
template <class F, class T, class... In>
#if defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)
[[gnu::noinline, gnu::target("prefer-vector-width=256")]]
#endif
void apply_in_memory(const F& f, T* out, int64_t n, const In*... in) {
  apply(f, out, n, in...);
}

// T, whatever I is: to repeat T once an input.
template <class T, size_t I>
using First = T;

// A piece of a dense row of halves, at any byte: widened, computed and rounded.
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
  constexpr bool own_loop = kHasOwnLoop<F, acc_t<common_t>, First<acc_t<common_t>, I>...>;
  if constexpr (is_half_type<common_t>) {
    // So few that they stay in registers; a loop of f's own wants more.
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

template <class common_t, class F, size_t... I>
void blocked_row(const F& f, char* const* data, const int64_t* strides, const Dtype* dtypes,
                 int64_t n, std::index_sequence<I...>) {
  using acc = acc_t<common_t>;
  alignas(64) acc in[sizeof...(I)][kBlock];
  alignas(64) acc out[kBlock];
  (..., (strides[I + 1] == 0
             ? (load_as<common_t>(dtypes[I + 1], data[I + 1], 0, in[I], n < kBlock ? n : kBlock))
             : void()));
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t size = n - begin < kBlock ? n - begin : kBlock;
    (...,
     (strides[I + 1] != 0 ? load_as<common_t>(dtypes[I + 1], data[I + 1] + begin * strides[I + 1],
                                              strides[I + 1], in[I], size)
                          : void()));
    apply(f, out, size, in[I]...);
    store_as<common_t>(dtypes[0], data[0] + begin * strides[0], strides[0], out, size);
  }
}

template <class common_t, int kInputs, class F>
void loop(const Piece& piece, const F& f) {
  constexpr auto inputs = std::make_index_sequence<kInputs>{};
  constexpr int operands = kInputs + 1;
  bool dense = true;
  for (int i = 0; i < operands; ++i) {
    const bool aligned = is_half_type<common_t> ||
                         (reinterpret_cast<uintptr_t>(piece.data[i]) % alignof(common_t) == 0 &&
                          piece.strides[operands + i] % int64_t{alignof(common_t)} == 0);
    dense = dense && aligned && piece.dtypes[i] == piece.compute &&
            piece.strides[i] == int64_t{sizeof(common_t)};
  }
  char* data[operands];
  for (int64_t y = 0; y < piece.size1; ++y) {
    for (int i = 0; i < operands; ++i) data[i] = piece.data[i] + y * piece.strides[operands + i];
    if (dense) {
      dense_row<common_t>(f, data, piece.size0, inputs);
      continue;
    }
    blocked_row<common_t>(f, data, piece.strides, piece.dtypes, piece.size0, inputs);
  }
}

}  // namespace treadle::cpu::TREADLE_ISA
