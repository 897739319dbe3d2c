// snake on CUDA. Where x is dense and each of its rows has one channel, a thread computes a vector
// of a row. Any other layout or mixture of dtypes goes through map.cuh. Twin:
// kernels/elementwise/cpu/snake.cpp.
#include "kernels/elementwise/launchers.h"
#include "kernels/elementwise/map.cuh"
#include "kernels/elementwise/snake.cuh"

namespace treadle {
namespace {

template <class scalar_t, bool kFar, class acc = acc_t<scalar_t>>
__device__ __forceinline__ acc snake_of(acc x, acc alpha, acc inverse) {
  const acc t = math::mul_rn(alpha, x);
  if constexpr (kFar) {
    return SnakeChannel<acc>::value(x, math::any_snake<scalar_t, false>(t).sine, inverse);
  } else {
    return SnakeChannel<acc>::value(x, math::near_snake<scalar_t, false>(t).sine, inverse);
  }
}

// Like snake_of, but the limit form for any phase and any alpha, including 0 and subnormal alphas.
template <class scalar_t, class acc = acc_t<scalar_t>>
__device__ __forceinline__ acc small_snake_of(acc x, acc alpha, SnakeInverse<acc> inverse) {
  const acc t = math::mul_rn(alpha, x);
  return SnakeChannel<acc>::small_value(x, t, math::any_snake<scalar_t, false>(t).sine, inverse);
}

// The functor that map.cuh applies.
template <class scalar_t>
struct SnakeOf {
  using acc = acc_t<scalar_t>;
  SnakeForm form;

  template <int n>
  __device__ __forceinline__ void operator()(Vector<scalar_t, n>& out,
                                             const Vector<scalar_t, n>& in,
                                             const Vector<scalar_t, n>& alphas,
                                             const Vector<scalar_t, n>& betas) const {
    acc x[n], alpha[n], beta[n], largest = 0;
    SnakeInverse<acc> inverse[n];
    bool small = false;
    widen(in, x);
    widen(alphas, alpha);
    widen(betas, beta);
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const SnakeChannel<acc> channel(alpha[i], beta[i], form);
      alpha[i] = channel.alpha;
      inverse[i] = channel.inverse;
      small |= channel.small();
      largest = fmax(largest, fabs(alpha[i] * x[i]));
    }
    if (small) {
#pragma unroll
      for (int i = 0; i < n; ++i) x[i] = small_snake_of<scalar_t>(x[i], alpha[i], inverse[i]);
    } else if (largest > math::kSnakeNear<scalar_t>) {
#pragma unroll
      for (int i = 0; i < n; ++i) x[i] = snake_of<scalar_t, true>(x[i], alpha[i], inverse[i].value);
    } else {
#pragma unroll
      for (int i = 0; i < n; ++i) {
        x[i] = snake_of<scalar_t, false>(x[i], alpha[i], inverse[i].value);
      }
    }
    narrow(x, out);
  }
};

// x and out are dense [rows, row_size]; row r has channel r % channels.
template <class scalar_t, int kBytes>
struct SnakeRows {
  static constexpr int kVector = kBytes / sizeof(scalar_t);

  char* out;
  const char *x, *alpha, *beta;
  uint32_t alpha_step, beta_step;  // bytes
  uint32_t row_size, vectors;
  FastDivide vectors_per_row, channels;
  bool aligned;  // every vector is full and aligned to 16 bytes
  SnakeForm form;

  SnakeRows(const ElementwiseArgs& args, const SnakeForm& form)
      : out(args.data[0]),
        x(args.data[1]),
        alpha(args.data[2]),
        beta(args.data[3]),
        alpha_step(args.ndim > 1 ? static_cast<uint32_t>(args.strides[2][1]) : 0),
        beta_step(args.ndim > 1 ? static_cast<uint32_t>(args.strides[3][1]) : 0),
        row_size(static_cast<uint32_t>(args.sizes[0])),
        channels(args.ndim > 1 ? static_cast<uint32_t>(args.sizes[1]) : 1),
        form(form) {
    vectors_per_row = FastDivide(ceil_div(row_size, uint32_t{kVector}));
    vectors = static_cast<uint32_t>(args.numel / args.sizes[0]) * vectors_per_row.divisor;
    aligned = reinterpret_cast<uintptr_t>(out) % 16 == 0 &&
              reinterpret_cast<uintptr_t>(x) % 16 == 0 && row_size % kVector == 0;
  }

  static bool fits(const ElementwiseArgs& args) {
    if (args.ndim < 1 || args.ndim > 3 || args.sizes[0] < kVector) return false;
    for (const Dtype dtype : {args.dtypes[0], args.dtypes[1], args.dtypes[2], args.dtypes[3]}) {
      if (dtype != args.compute) return false;
    }
    int64_t dense = sizeof(scalar_t);
    for (int d = 0; d < args.ndim; ++d) {
      if (args.strides[0][d] != dense || args.strides[1][d] != dense) return false;
      if (d != 1 && (args.strides[2][d] != 0 || args.strides[3][d] != 0)) return false;
      dense *= args.sizes[d];
    }
    return true;
  }
};

// The number of blocks whose threads fit on a multiprocessor.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
inline constexpr int kMostBlocks = 1024 / kBlockSize;
#elif defined(__CUDA_ARCH__) && \
    ((__CUDA_ARCH__ > 800 && __CUDA_ARCH__ < 900) || __CUDA_ARCH__ >= 1100)
inline constexpr int kMostBlocks = 1536 / kBlockSize;
#else
inline constexpr int kMostBlocks = 2048 / kBlockSize;
#endif

// The number of resident blocks per multiprocessor. If phases are small, more blocks are faster.
// Large phases with two accesses per array, or with an alpha that may be 0, need more registers, so
// fewer blocks fit.
template <class scalar_t, int kBytes, bool kAligned>
constexpr int row_blocks() {
  if (sizeof(scalar_t) == 8) return 0;
  const int blocks = kBytes == 32 ? 5 : kAligned || !is_half_type<scalar_t> ? 8 : 6;
  return blocks < kMostBlocks ? blocks : kMostBlocks;
}

// One thread per vector of a row.
template <class scalar_t, int kBytes, bool kAligned>
__global__ void __launch_bounds__(kBlockSize, (row_blocks<scalar_t, kBytes, kAligned>()))
    snake_rows(const __grid_constant__ SnakeRows<scalar_t, kBytes> args) {
  begin_kernel();
  using acc = acc_t<scalar_t>;
  constexpr int n = SnakeRows<scalar_t, kBytes>::kVector;
  const uint32_t index = blockIdx.x * kBlockSize + threadIdx.x;
  if (index >= args.vectors) return;
  const uint32_t row = args.vectors_per_row(index);
  const uint32_t first = (index - row * args.vectors_per_row.divisor) * n;
  const uint32_t c = row - args.channels(row) * args.channels.divisor;
  const int count = kAligned ? n : min(static_cast<uint32_t>(n), args.row_size - first);
  const size_t at = (size_t{row} * args.row_size + first) * sizeof(scalar_t);
  Vector<scalar_t, n> in, out;
  constexpr InRow kInRow = kAligned ? InRow::kAligned : InRow::kAnywhere;
  load_row<scalar_t>(args.x + at, kInRow, count, in);
  const auto of_channel = [&](const char* data, uint32_t step) {
    return widen(*reinterpret_cast<const scalar_t*>(data + int64_t{c} * step));
  };
  const SnakeChannel<acc> channel(of_channel(args.alpha, args.alpha_step),
                                  of_channel(args.beta, args.beta_step), args.form);
  acc x[n];
  widen(in, x);
  if (channel.small()) {
#pragma unroll
    for (int i = 0; i < n; ++i) {
      x[i] = small_snake_of<scalar_t>(x[i], channel.alpha, channel.inverse);
    }
  } else if (any_far(in, channel.alpha)) {
#pragma unroll
    for (int i = 0; i < n; ++i) {
      x[i] = snake_of<scalar_t, true>(x[i], channel.alpha, channel.inverse.value);
    }
  } else {
#pragma unroll
    for (int i = 0; i < n; ++i) {
      x[i] = snake_of<scalar_t, false>(x[i], channel.alpha, channel.inverse.value);
    }
  }
  narrow(x, out);
  store_row<scalar_t>(args.out + at, kInRow, count, out);
}

template <class scalar_t, int kBytes, bool kAligned>
cudaError_t launch_rows_of(const SnakeRows<scalar_t, kBytes>& rows, cudaStream_t stream) {
  constexpr int n = SnakeRows<scalar_t, kBytes>::kVector;
  constexpr int kAccess = kAligned ? 16 / sizeof(scalar_t) : 1;
  const LaunchShape shape = {
      ceil_div(rows.vectors, uint32_t{kBlockSize}), 1, 1, kBlockSize, 0, kAccess, n};
  return launch(snake_rows<scalar_t, kBytes, kAligned>, shape, stream, rows);
}

// In half types a thread makes two 16-byte accesses per array, if rows are aligned and consist of
// whole pairs of accesses. More elements then share the work that a thread does once per channel.
template <class scalar_t>
cudaError_t launch_rows_of(const ElementwiseArgs& args, const SnakeForm& form,
                           cudaStream_t stream) {
  if constexpr (is_half_type<scalar_t>) {
    const SnakeRows<scalar_t, 32> rows(args, form);
    if (rows.aligned) return launch_rows_of<scalar_t, 32, true>(rows, stream);
  }
  const SnakeRows<scalar_t, 16> rows(args, form);
  return rows.aligned ? launch_rows_of<scalar_t, 16, true>(rows, stream)
                      : launch_rows_of<scalar_t, 16, false>(rows, stream);
}

}  // namespace

cudaError_t launch_snake(const ElementwiseArgs& args, const SnakeForm& form, cudaStream_t stream) {
  return visit_floating(args.compute, [&](auto type) {
    using scalar_t = typename decltype(type)::type;
    if (SnakeRows<scalar_t, 16>::fits(args)) return launch_rows_of<scalar_t>(args, form, stream);
    bool cast = false;
    for (int i = 0; i < 4; ++i) cast = cast || args.dtypes[i] != args.compute;
    const SnakeOf<scalar_t> f{form};
    return cast ? launch_anywhere<scalar_t, true, 3>(args, f, stream)
                : launch_anywhere<scalar_t, false, 3>(args, f, stream);
  });
}

}  // namespace treadle
