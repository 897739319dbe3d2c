// snake on the CPU; kernels/math/snake.h has the formulas. Twins: kernels/elementwise/snake.cu,
// snake_backward.cu.
#include "kernels/math/snake.h"

#include "kernels/elementwise/cpu/sine.h"

namespace treadle::cpu::TREADLE_ISA {
namespace {

template <class T>
struct Waves {
  T square[kBlock], product[kBlock];
};

// Of t, n <= kBlock of them.
template <class scalar_t, bool kProduct, class T = acc_t<scalar_t>>
void compute_waves(const T* t, int64_t n, Waves<T>& waves) {
  const auto all = [&](const auto& wave) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      const auto [square, product] = wave(t[i]);
      waves.square[i] = square;
      if constexpr (kProduct) waves.product[i] = product;
    }
  };
  if (any_beyond(t, n, math::kSnakeNear<scalar_t>)) {
    all([](T x) { return math::any_snake<scalar_t, kProduct>(x); });
  } else {
    all([](T x) { return math::near_snake<scalar_t, kProduct>(x); });
  }
}

template <class scalar_t>
struct SnakeLoop {
  using T = acc_t<scalar_t>;
  T eps;

  void operator()(T* out, int64_t n, const T* x, const T* alpha, const T* beta) const {
    T t[kBlock];
    Waves<T> waves;
    for (int64_t begin = 0; begin < n; begin += kBlock) {
      const int64_t size = std::min(kBlock, n - begin);
      const T *own_x = x + begin, *own_beta = beta + begin;
      for (int64_t i = 0; i < size; ++i) t[i] = math::mul_rn(alpha[begin + i], own_x[i]);
      compute_waves<scalar_t, false>(t, size, waves);
#pragma GCC ivdep
      for (int64_t i = 0; i < size; ++i) {
        const T inverse = 1 / (own_beta[i] + eps);
        out[begin + i] = math::fma_rn(waves.square[i], inverse, own_x[i]);
      }
    }
  }
};

// The sums of a row are those of as many lanes, whatever the vectors of the processor.
inline constexpr int kLanes = 16;

template <class T>
struct Sums {
  T product[kLanes] = {}, square[kLanes] = {};

  // n <= kBlock; what is left of the last lanes is zeros.
  void add(T (&products)[kBlock], T (&squares)[kBlock], int64_t n) {
    const int64_t end = (n + kLanes - 1) / kLanes * kLanes;
    for (int64_t i = n; i < end; ++i) products[i] = squares[i] = 0;
    for (int64_t i = 0; i < end; i += kLanes) {
      for (int j = 0; j < kLanes; ++j) {
        product[j] += products[i + j];
        square[j] += squares[i + j];
      }
    }
  }

  static T total(const T (&lanes)[kLanes]) {
    double sum = 0;
    for (const T lane : lanes) sum += lane;
    return static_cast<T>(sum);
  }
};

// `size` elements of a row from `at` on; the channel's factors are alpha and 1 / b.
template <class scalar_t, class T = acc_t<scalar_t>>
void backward_row(const SnakeBackwardArgs& args, int64_t at, int64_t size, T alpha, T inverse,
                  Sums<T>& sums) {
  constexpr int64_t bytes = sizeof(scalar_t);
  const auto* grads = static_cast<const char*>(args.grad) + at * bytes;
  const auto* xs = static_cast<const char*>(args.x) + at * bytes;
  auto* grad_x = static_cast<char*>(args.grad_x);
  const T slope = 2 * (alpha * inverse);
  alignas(64) T x[kBlock], g[kBlock], t[kBlock];
  Waves<T> waves;
  for (int64_t begin = 0; begin < size; begin += kBlock) {
    const int64_t n = std::min(kBlock, size - begin);
    load_contiguous<scalar_t, T>(xs + begin * bytes, x, n);
    load_contiguous<scalar_t, T>(grads + begin * bytes, g, n);
    for (int64_t i = 0; i < n; ++i) t[i] = math::mul_rn(alpha, x[i]);
    compute_waves<scalar_t, true>(t, n, waves);
    if (grad_x != nullptr) {
      for (int64_t i = 0; i < n; ++i) t[i] = g[i] * math::fma_rn(slope, waves.product[i], T(1));
      store_contiguous<scalar_t, T>(grad_x + (at + begin) * bytes, t, n);
    }
    if (args.partial == nullptr) continue;
    for (int64_t i = 0; i < n; ++i) {
      waves.product[i] = g[i] * x[i] * waves.product[i];
      waves.square[i] = g[i] * waves.square[i];
    }
    sums.add(waves.product, waves.square, n);
  }
}

template <class scalar_t>
SnakeChannel<acc_t<scalar_t>> channel_of(const SnakeBackwardArgs& args, int64_t c) {
  using T = acc_t<scalar_t>;
  T alpha, beta;
  load_contiguous<scalar_t, T>(static_cast<const char*>(args.alpha) + c * sizeof(scalar_t), &alpha,
                               1);
  load_contiguous<scalar_t, T>(static_cast<const char*>(args.beta) + c * sizeof(scalar_t), &beta,
                               1);
  return {alpha, 1 / (beta + static_cast<T>(args.eps)), args.beta_is_alpha};
}

}  // namespace

void snake(const Tile2d& tile, double eps) {
  visit_floating(tile.compute, [&](auto type) {
    using scalar_t = typename decltype(type)::type;
    loop<scalar_t, 3>(tile, SnakeLoop<scalar_t>{static_cast<acc_t<scalar_t>>(eps)});
  });
}

// One chunk of a channel each, counted channel by channel within a chunk.
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
                             std::min(chunks.kLength, args.l - first), channel.alpha,
                             channel.inverse, sums);
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
      write_to(args.grad_alpha, c,
               channel.grad_alpha(static_cast<T>(product), static_cast<T>(square)));
      write_to(args.grad_beta, c, channel.grad_beta(static_cast<T>(square)));
    }
  });
}

}  // namespace treadle::cpu::TREADLE_ISA
