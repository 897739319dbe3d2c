// snake on the CPU; snake_channel.h has the formulas. Twins: kernels/elementwise/snake.cu,
// snake_backward.cu.
#include "kernels/elementwise/cpu/sine.h"
#include "kernels/elementwise/snake_channel.h"

namespace treadle::cpu::TREADLE_ISA {
namespace {

// Calls use(i, waves) for i < n, where waves are the sine and cosine of t[i]; n <= kBlock.
template <class scalar_t, bool kCosine, class T = acc_t<scalar_t>, class F>
TREADLE_INLINE void for_waves(const T* t, int64_t n, const F& use) {
  if (any_beyond(t, n, math::kSnakeNear<scalar_t>)) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) use(i, math::any_snake<scalar_t, kCosine>(t[i]));
  } else {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) use(i, math::near_snake<scalar_t, kCosine>(t[i]));
  }
}

// Computes elements of one channel.
template <class scalar_t>
struct SnakeOfChannel {
  using T = acc_t<scalar_t>;
  using Channel = SnakeChannel<T>;
  Channel channel;

  void operator()(T* out, int64_t n, const T* x) const {
    const T alpha = channel.alpha;
    const SnakeInverse<T> inverse = channel.inverse;
    const bool small = channel.small();
    T t[kBlock];
    for (; n > 0; n -= kBlock, x += kBlock, out += kBlock) {
      const int64_t size = std::min(kBlock, n);
      for (int64_t i = 0; i < size; ++i) t[i] = math::mul_rn(alpha, x[i]);
      if (small) {
        for_waves<scalar_t, false>(t, size, [=, &t](int64_t i, const auto& waves) {
          out[i] = Channel::small_value(x[i], t[i], waves.sine, inverse);
        });
      } else {
        for_waves<scalar_t, false>(t, size, [=](int64_t i, const auto& waves) {
          out[i] = Channel::value(x[i], waves.sine, inverse.value);
        });
      }
    }
  }
};

// Computes n <= kBlock elements. Each has its own alpha, and its own SnakeInverse, given by `scale`
// and `inverse`; `out` may be x.
template <class scalar_t, class T = acc_t<scalar_t>>
void block_of_elements(T* out, int64_t n, const T* x, const T* alpha, const T* scale,
                       const T* inverse) {
  using Channel = SnakeChannel<T>;
  T t[kBlock], sine[kBlock];
  for (int64_t i = 0; i < n; ++i) t[i] = math::mul_rn(alpha[i], x[i]);
  for_waves<scalar_t, false>(t, n, [&](int64_t i, const auto& waves) { sine[i] = waves.sine; });
  if (any_beyond(scale, n, T(1))) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      out[i] = Channel::small_value(x[i], t[i], sine[i], {scale[i], inverse[i]});
    }
  } else {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) out[i] = Channel::value(x[i], sine[i], inverse[i]);
  }
}

// Computes elements that each have their own alpha and beta.
template <class scalar_t>
struct SnakeOfElements {
  using T = acc_t<scalar_t>;
  SnakeForm form;

  void operator()(T* out, int64_t n, const T* x, const T* alphas, const T* betas) const {
    for (int64_t begin = 0; begin < n; begin += kBlock) {
      block(out + begin, std::min(kBlock, n - begin), x + begin, alphas + begin, betas + begin);
    }
  }

  void block(T* out, int64_t n, const T* x, const T* alphas, const T* betas) const {
    T alpha[kBlock], beta[kBlock], scale[kBlock], inverse[kBlock];
    if (form.logscale) {
      exponentials(n, alphas, alpha);
      if (!form.limit) exponentials(n, betas, beta);
      alphas = alpha, betas = beta;
    }
    const auto invert = [&](const SnakeForm& form) {
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) {
        const auto found = SnakeInverse<T>::of(alphas[i], betas[i], form);
        scale[i] = found.scale;
        inverse[i] = found.value;
      }
    };
    // Each call passes a constant `limit`, so that the loop has no branch.
    form.limit ? invert({0, true, false}) : invert({form.eps, false, false});
    block_of_elements<scalar_t>(out, n, x, alphas, scale, inverse);
  }

  static void exponentials(int64_t n, const T* from, T* to) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) to[i] = math::exp_any(from[i]);
  }
};

// Loads the parameters of a channel.
template <class scalar_t, class T = acc_t<scalar_t>>
SnakeChannel<T> channel_of(const char* alpha, Dtype alpha_dtype, const char* beta, Dtype beta_dtype,
                           const SnakeForm& form) {
  T stored[2];
  load_as<scalar_t>(alpha_dtype, alpha, 0, &stored[0], 1);
  load_as<scalar_t>(beta_dtype, beta, 0, &stored[1], 1);
  return {stored[0], stored[1], form};
}

// Computes rows in which the parameters do not change.
template <class scalar_t>
void long_rows(const Tile2d& tile, const SnakeForm& form) {
  const int64_t* next = tile.strides + 4;
  const bool one = next[2] == 0 && next[3] == 0;
  const int64_t strides[] = {tile.strides[0], tile.strides[1], next[0], next[1]};
  for (int64_t y = 0; y < (one ? 1 : tile.size1); ++y) {
    char* data[] = {tile.data[0] + y * next[0], tile.data[1] + y * next[1]};
    const SnakeOfChannel<scalar_t> f{
        channel_of<scalar_t>(tile.data[2] + y * next[2], tile.dtypes[2], tile.data[3] + y * next[3],
                             tile.dtypes[3], form)};
    loop<scalar_t, 1>({data, strides, tile.size0, one ? tile.size1 : 1, tile.dtypes, tile.compute},
                      f);
  }
}

// Computes blocks of several rows, or of a part of one row. Each element has its own copy of the
// factors of its channel. If the channel depends on the row, factors are computed once per row,
// otherwise once per column for all rows.
template <class scalar_t>
class SnakeBlocks {
 public:
  SnakeBlocks(const Tile2d& tile, const SnakeForm& form) : tile(tile), form(form) {}

  void short_rows() {
    const int64_t at_once = kBlock / tile.size0;
    for (int64_t y = 0; y < tile.size1; y += at_once) {
      const int64_t rows = std::min(at_once, tile.size1 - y);
      set(0, y, tile.strides + 4, rows);
      for (T* factors : {alpha, scale, inverse}) {
        // Starts at the last row, so that no row's factor is overwritten before it is read.
        for (int64_t row = rows - 1; row >= 0; --row) {
          std::fill_n(factors + row * tile.size0, tile.size0, T(factors[row]));
        }
      }
      compute(0, tile.size0, y, rows);
    }
  }

  void columns() {
    for (int64_t begin = 0; begin < tile.size0; begin += kBlock) {
      const int64_t n = std::min(kBlock, tile.size0 - begin), at_once = kBlock / n;
      set(begin, 0, tile.strides, n);
      for (T* factors : {alpha, scale, inverse}) {
        for (int64_t row = 1; row < at_once; ++row) std::copy_n(factors, n, factors + row * n);
      }
      for (int64_t y = 0; y < tile.size1; y += at_once) {
        compute(begin, n, y, std::min(at_once, tile.size1 - y));
      }
    }
  }

 private:
  using T = acc_t<scalar_t>;

  const Tile2d& tile;
  SnakeForm form;
  T alpha[kBlock], scale[kBlock], inverse[kBlock], x[kBlock];

  char* at(int operand, int64_t column, int64_t row) const {
    return tile.data[operand] + column * tile.strides[operand] + row * tile.strides[4 + operand];
  }

  // Sets the factors of n channels, starting with the channel of element (column, row).
  void set(int64_t column, int64_t row, const int64_t* strides, int64_t n) {
    T beta[kBlock];
    load_as<scalar_t>(tile.dtypes[2], at(2, column, row), strides[2], alpha, n);
    load_as<scalar_t>(tile.dtypes[3], at(3, column, row), strides[3], beta, n);
    for (int64_t i = 0; i < n; ++i) {
      const SnakeChannel<T> channel(alpha[i], beta[i], form);
      alpha[i] = channel.alpha;
      scale[i] = channel.inverse.scale;
      inverse[i] = channel.inverse.value;
    }
  }

  // Computes `rows` rows of n elements.
  void compute(int64_t column, int64_t n, int64_t row, int64_t rows) {
    const int64_t *step = tile.strides, *next = tile.strides + 4, size = rows * n;
    // Rows that are adjacent in memory are loaded as one.
    const bool dense = next[0] == n * step[0] && next[1] == n * step[1];
    const int64_t length = dense ? size : n;
    const int64_t pieces = size / length;
    for (int64_t i = 0; i < pieces; ++i) {
      load_as<scalar_t>(tile.dtypes[1], at(1, column, row + i), step[1], x + i * length, length);
    }
    block_of_elements<scalar_t>(x, size, x, alpha, scale, inverse);
    for (int64_t i = 0; i < pieces; ++i) {
      store_as<scalar_t>(tile.dtypes[0], at(0, column, row + i), step[0], x + i * length, length);
    }
  }
};

// Rows of at most this length share a block.
inline constexpr int64_t kShortRow = kBlock / 4;

// A row is summed in this many lanes, so that the bits do not depend on the CPU's vector width.
inline constexpr int kLanes = 16;

template <class T>
struct Sums {
  T product[kLanes] = {}, square[kLanes] = {};

  static T total(const T (&lanes)[kLanes]) {
    double sum = 0;
    for (const T lane : lanes) sum += lane;
    return static_cast<T>(sum);
  }
};

// Adds n <= kBlock values, padded with zeros to a multiple of kLanes.
template <class T>
void add_to(T (&lanes)[kLanes], T (&values)[kBlock], int64_t n) {
  const int64_t end = (n + kLanes - 1) / kLanes * kLanes;
  for (int64_t i = n; i < end; ++i) values[i] = 0;
  for (int64_t i = 0; i < end; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] += values[i + j];
  }
}

// The backward pass of `size` elements of a row, beginning at element `at`.
template <class scalar_t, class T = acc_t<scalar_t>>
void backward_row(const SnakeBackwardArgs& args, int64_t at, int64_t size,
                  const SnakeChannel<T>& channel, Sums<T>& sums) {
  constexpr int64_t bytes = sizeof(scalar_t);
  const auto* grads = static_cast<const char*>(args.grad) + at * bytes;
  const auto* xs = static_cast<const char*>(args.x) + at * bytes;
  auto* grad_x = static_cast<char*>(args.grad_x);
  const bool limit = channel.form.limit && args.partial != nullptr;
  const T slope = channel.x_slope();
  alignas(64) T x[kBlock], g[kBlock], t[kBlock], product[kBlock], square[kBlock], by_alpha[kBlock];
  for (int64_t begin = 0; begin < size; begin += kBlock) {
    const int64_t n = std::min(kBlock, size - begin);
    load_contiguous<scalar_t, T>(xs + begin * bytes, x, n);
    load_contiguous<scalar_t, T>(grads + begin * bytes, g, n);
    for (int64_t i = 0; i < n; ++i) t[i] = math::mul_rn(channel.alpha, x[i]);
    if (limit) {
      for_waves<scalar_t, true>(t, n, [&](int64_t i, const auto& waves) {
        product[i] = waves.product();
        by_alpha[i] = channel.limit_slope(g[i], x[i], t[i], waves);
      });
    } else {
      for_waves<scalar_t, true>(t, n, [&](int64_t i, const auto& waves) {
        product[i] = waves.product();
        square[i] = waves.square();
      });
    }
    if (grad_x != nullptr) {
      for (int64_t i = 0; i < n; ++i) t[i] = g[i] * math::fma_rn(slope, product[i], T(1));
      store_contiguous<scalar_t, T>(grad_x + (at + begin) * bytes, t, n);
    }
    if (args.partial == nullptr) continue;
    if (!limit) {
      for (int64_t i = 0; i < n; ++i) {
        by_alpha[i] = g[i] * x[i] * product[i];
        square[i] = g[i] * square[i];
      }
      add_to(sums.square, square, n);
    }
    add_to(sums.product, by_alpha, n);
  }
}

template <class scalar_t>
SnakeChannel<acc_t<scalar_t>> channel_of(const SnakeBackwardArgs& args, int64_t c) {
  const int64_t at = c * int64_t{sizeof(scalar_t)};
  return channel_of<scalar_t>(static_cast<const char*>(args.alpha) + at, args.dtype,
                              static_cast<const char*>(args.beta) + at, args.dtype, args.form);
}

}  // namespace

void snake(const Tile2d& tile, const SnakeForm& form) {
  visit_floating(tile.compute, [&](auto type) {
    using scalar_t = typename decltype(type)::type;
    const int64_t *step = tile.strides, *next = tile.strides + 4;
    const bool of_rows = next[2] != 0 || next[3] != 0, of_columns = step[2] != 0 || step[3] != 0;
    const bool dense = step[0] == size_of(tile.dtypes[0]) && step[1] == size_of(tile.dtypes[1]);
    if (!of_columns && of_rows && tile.size0 <= kShortRow) {
      SnakeBlocks<scalar_t>(tile, form).short_rows();
    } else if (!of_columns) {
      long_rows<scalar_t>(tile, form);
    } else if (!of_rows && dense) {
      SnakeBlocks<scalar_t>(tile, form).columns();
    } else {
      loop<scalar_t, 3>(tile, SnakeOfElements<scalar_t>{form});
    }
  });
}

// Runs the tasks begin to end. A task is one channel of one chunk; consecutive tasks belong to
// consecutive channels.
void snake_backward(const SnakeBackwardArgs& args, int64_t begin, int64_t end) {
  const SnakeCpuChunks chunks(args);
  visit_floating(args.dtype, [&](auto type) {
    using scalar_t = typename decltype(type)::type;
    using T = acc_t<scalar_t>;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t chunk = i / args.c, c = i % args.c;
      const int64_t n = chunk / chunks.parts, first = chunk % chunks.parts * chunks.kLength;
      const SnakeChannel<T> channel = channel_of<scalar_t>(args, c);
      Sums<T> sums;
      backward_row<scalar_t>(args, (n * args.c + c) * args.l + first,
                             std::min(chunks.kLength, args.l - first), channel, sums);
      if (args.partial == nullptr) continue;
      T* partial = static_cast<T*>(args.partial) + chunk * 2 * args.c + c;
      partial[0] = Sums<T>::total(sums.product);
      partial[args.c] = Sums<T>::total(sums.square);
    }
  });
}

void snake_sums(const SnakeBackwardArgs& args) {
  const SnakeCpuChunks chunks(args);
  visit_floating(args.dtype, [&](auto type) {
    using scalar_t = typename decltype(type)::type;
    using T = acc_t<scalar_t>;
    const T* partial = static_cast<const T*>(args.partial);
    const auto write_to = [](void* grads, int64_t c, T value) {
      if (grads == nullptr) return;
      write(static_cast<char*>(grads) + c * sizeof(scalar_t), to_stored<scalar_t, T>(value));
    };
    for (int64_t c = 0; c < args.c; ++c) {
      double product = 0, square = 0;
      for (int64_t chunk = 0; chunk < chunks.count; ++chunk) {
        product += partial[chunk * 2 * args.c + c];
        square += partial[(chunk * 2 + 1) * args.c + c];
      }
      const SnakeChannel<T> channel = channel_of<scalar_t>(args, c);
      write_to(
          args.grad_alpha, c,
          channel.grad_alpha(static_cast<T>(product), static_cast<T>(square), args.beta_is_alpha));
      write_to(args.grad_beta, c, channel.grad_beta(static_cast<T>(square)));
    }
  });
}

}  // namespace treadle::cpu::TREADLE_ISA
