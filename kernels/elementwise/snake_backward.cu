// snake's backward pass on CUDA. One kernel computes the gradient of x and, for each chunk of work,
// two sums per channel (snake_channel.h). A second kernel adds the chunks. The order of all
// additions depends only on the shape. Twin: kernels/elementwise/cpu/snake.cpp.
#include "kernels/elementwise/launchers.h"
#include "kernels/elementwise/rows_map.cuh"
#include "kernels/elementwise/snake.cuh"

namespace treadle {
namespace {

constexpr int kWarp = 32;
constexpr int64_t kVectorBytes = 16;
// If a row fills a block, a thread computes kPerThread vectors of it. The batch is divided until
// there are about kEnoughBlocks blocks.
constexpr uint32_t kPerThread = 4;
constexpr int64_t kEnoughBlocks = 4096;
// Vectors in flight per thread, and resident blocks per multiprocessor. Of all pairs of 1 or 2
// vectors and 3 to 8 blocks, this one was the fastest for half types on an H200, and none was
// faster for float32.
constexpr int kAhead = 2, kBackwardBlocks = 4;
// The maximum number of chunks for snake_sum_few. With more, snake_sum_many uses a whole block per
// channel.
constexpr int64_t kFewChunks = 64;

// A block has `lanes` threads for each of kBlockSize / lanes adjacent channels. It computes `rows`
// rows of these channels, or a part of one row.
struct SnakeSplit {
  uint32_t vectors;  // per row
  int tail;          // elements in the last vector of a row
  int lanes;         // a power of 2 up to a warp, or a whole block
  uint32_t vectors_per_part, parts;
  int64_t channel_blocks, rows, chunks;

  explicit SnakeSplit(const SnakeBackwardArgs& args) {
    const int64_t n = kVectorBytes / size_of(args.dtype);
    vectors = static_cast<uint32_t>(ceil_div(args.l, n));
    tail = static_cast<int>(args.l - (vectors - 1) * n);
    lanes = 1;
    while (lanes < kWarp && lanes < static_cast<int>(vectors)) lanes *= 2;
    if (vectors >= kBlockSize) lanes = kBlockSize;
    const bool whole = lanes < kBlockSize;
    vectors_per_part = whole ? vectors : kBlockSize * kPerThread;
    parts = ceil_div(vectors, vectors_per_part);
    channel_blocks = ceil_div(args.c, int64_t{kBlockSize / lanes});
    const int64_t fewest = ceil_div(kEnoughBlocks, channel_blocks);
    rows = whole ? ceil_div(args.n, std::min(args.n, fewest)) : 1;
    chunks = ceil_div(args.n, rows) * parts;
  }
};

struct SnakeBackwardWork {
  SnakeBackwardArgs args;
  SnakeSplit split;
};

template <class scalar_t>
__device__ __forceinline__ SnakeChannel<acc_t<scalar_t>> channel_of(const SnakeBackwardArgs& args,
                                                                    int64_t c) {
  return {widen(static_cast<const scalar_t*>(args.alpha)[c]),
          widen(static_cast<const scalar_t*>(args.beta)[c]), args.form};
}

// A channel and its sums in one thread.
template <class acc>
struct SnakeSums {
  SnakeChannel<acc> channel;
  acc slope = channel.x_slope();
  acc product = 0, square = 0;
};

// A vector of a row. kAligned means that every vector is full and is loaded with one access.
template <class scalar_t, bool kAligned>
struct SnakeVector {
  static constexpr int n = kVectorBytes / sizeof(scalar_t);
  static constexpr InRow kInRow = kAligned ? InRow::kAligned : InRow::kAnywhere;
  using acc = acc_t<scalar_t>;

  int count;  // 0 past the end, where x and grad are zeros
  Vector<scalar_t, n> x, grad;

  __device__ __forceinline__ void load(const SnakeBackwardWork& work, int64_t row, uint32_t vector,
                                       uint32_t end) {
    count = kAligned || vector + 1 != work.split.vectors ? n : work.split.tail;
    x = grad = {};
    if (vector >= end) {
      count = 0;
      return;
    }
    const int64_t at = row + int64_t{vector} * kVectorBytes;
    load_row<scalar_t>(static_cast<const char*>(work.args.x) + at, kInRow, count, x);
    load_row<scalar_t>(static_cast<const char*>(work.args.grad) + at, kInRow, count, grad);
  }

  template <bool kFar, bool kLimit>
  __device__ __forceinline__ void compute(SnakeSums<acc>& sums, Vector<scalar_t, n>& out) const {
    acc xs[n], g[n], result[n];
    widen(x, xs);
    widen(grad, g);
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const acc t = math::mul_rn(sums.channel.alpha, xs[i]);
      math::SnakeWaves<acc> waves;
      if constexpr (kFar) {
        waves = math::any_snake<scalar_t, true>(t);
      } else {
        waves = math::near_snake<scalar_t, true>(t);
      }
      if constexpr (kLimit) {
        sums.product += sums.channel.limit_slope(g[i], xs[i], t, waves);
      } else {
        sums.product += g[i] * xs[i] * waves.product();
        sums.square += g[i] * waves.square();
      }
      result[i] = g[i] * math::fma_rn(sums.slope, waves.product(), acc(1));
    }
    narrow(result, out);
  }

  template <bool kLimit>
  __device__ __forceinline__ void backward(const SnakeBackwardWork& work, int64_t row,
                                           uint32_t vector, SnakeSums<acc>& sums) const {
    Vector<scalar_t, n> out;
    if (any_far(x, sums.channel.alpha)) {
      compute<true, kLimit>(sums, out);
    } else {
      compute<false, kLimit>(sums, out);
    }
    if (work.args.grad_x == nullptr || count == 0) return;
    const int64_t at = row + int64_t{vector} * kVectorBytes;
    store_row<scalar_t>(static_cast<char*>(work.args.grad_x) + at, kInRow, count, out);
  }
};

// Returns the sum over the lanes of a channel to the first of them.
template <class acc>
__device__ __forceinline__ acc sum_of_lanes(acc value, int lanes,
                                            acc (&of_warps)[kBlockSize / kWarp]) {
  for (int step = min(lanes, kWarp) / 2; step > 0; step /= 2) {
    value += __shfl_down_sync(0xffffffff, value, step, kWarp);
  }
  if (lanes < kBlockSize) return value;
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  acc total = 0;
#pragma unroll
  for (const acc warp : of_warps) total += warp;
  return total;
}

template <class scalar_t, bool kAligned, bool kLimit>
__global__ void __launch_bounds__(kBlockSize, kBackwardBlocks)
    snake_backward(const __grid_constant__ SnakeBackwardWork work) {
  begin_kernel();
  using acc = acc_t<scalar_t>;
  const SnakeBackwardArgs& args = work.args;
  const SnakeSplit& split = work.split;
  const auto channel_blocks = static_cast<uint32_t>(split.channel_blocks);
  const uint32_t chunk = blockIdx.x / channel_blocks;
  const auto lanes = static_cast<uint32_t>(split.lanes);
  const int64_t c =
      int64_t{blockIdx.x - chunk * channel_blocks} * (kBlockSize / lanes) + threadIdx.x / lanes;
  acc product = 0, square = 0;
  if (c < args.c) {
    const uint32_t part = chunk % split.parts;
    const int64_t n_begin = int64_t{chunk / split.parts} * split.rows;
    const int64_t n_end = min(n_begin + split.rows, args.n);
    const uint32_t begin = part * split.vectors_per_part + threadIdx.x % lanes;
    const uint32_t end = min((part + 1) * split.vectors_per_part, split.vectors);
    SnakeSums<acc> sums = {channel_of<scalar_t>(args, c)};
    for (int64_t n = n_begin; n < n_end; ++n) {
      const int64_t row = (n * args.c + c) * args.l * int64_t{sizeof(scalar_t)};
      for (uint32_t v = begin; v < end; v += kAhead * lanes) {
        // Issue all loads before using any.
        SnakeVector<scalar_t, kAligned> vectors[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) vectors[i].load(work, row, v + i * lanes, end);
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          vectors[i].template backward<kLimit>(work, row, v + i * lanes, sums);
        }
      }
    }
    product = sums.product;
    square = sums.square;
  }
  if (args.partial == nullptr) return;
  __shared__ acc of_warps[2][kBlockSize / kWarp];
  product = sum_of_lanes(product, split.lanes, of_warps[0]);
  square = sum_of_lanes(square, split.lanes, of_warps[1]);
  if (c >= args.c || threadIdx.x % lanes != 0) return;
  acc* partial = static_cast<acc*>(args.partial) + int64_t{chunk} * 2 * args.c + c;
  partial[0] = product;
  partial[args.c] = square;
}

template <class acc>
__device__ __forceinline__ void add_chunks(const SnakeBackwardArgs& args, int64_t c, int64_t first,
                                           int64_t step, int64_t chunks, acc (&sums)[2]) {
  const acc* partial = static_cast<const acc*>(args.partial) + c;
#pragma unroll 4
  for (int64_t chunk = first; chunk < chunks; chunk += step) {
    sums[0] += partial[2 * chunk * args.c];
    sums[1] += partial[(2 * chunk + 1) * args.c];
  }
}

template <class scalar_t, class acc = acc_t<scalar_t>>
__device__ __forceinline__ void write_gradients(const SnakeBackwardArgs& args, int64_t c,
                                                acc product, acc square) {
  const SnakeChannel<acc> channel = channel_of<scalar_t>(args, c);
  const auto write = [c](void* grads, acc value) {
    if (grads != nullptr) static_cast<scalar_t*>(grads)[c] = Narrow<scalar_t>::from(value);
  };
  write(args.grad_alpha, channel.grad_alpha(product, square, args.beta_is_alpha));
  write(args.grad_beta, channel.grad_beta(square));
}

// A block adds the chunks of kWarp channels. A channel has one thread per warp, which adds every
// kWarps-th chunk.
template <class scalar_t>
__global__ void __launch_bounds__(kBlockSize)
    snake_sum_few(SnakeBackwardArgs args, int64_t chunks) {
  begin_kernel();
  using acc = acc_t<scalar_t>;
  constexpr int kWarps = kBlockSize / kWarp;
  const uint32_t lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t c = int64_t{blockIdx.x} * kWarp + lane;
  acc sums[2] = {0, 0};
  if (c < args.c) add_chunks(args, c, warp, kWarps, chunks, sums);
  __shared__ acc of_warps[kWarps][2][kWarp];
  of_warps[warp][0][lane] = sums[0];
  of_warps[warp][1][lane] = sums[1];
  __syncthreads();
  if (warp != 0 || c >= args.c) return;
#pragma unroll
  for (int w = 1; w < kWarps; ++w) {
    sums[0] += of_warps[w][0][lane];
    sums[1] += of_warps[w][1][lane];
  }
  write_gradients<scalar_t>(args, c, sums[0], sums[1]);
}

// A block adds the chunks of one channel.
template <class scalar_t>
__global__ void __launch_bounds__(kBlockSize)
    snake_sum_many(SnakeBackwardArgs args, int64_t chunks) {
  begin_kernel();
  using acc = acc_t<scalar_t>;
  acc sums[2] = {0, 0};
  add_chunks(args, blockIdx.x, threadIdx.x, kBlockSize, chunks, sums);
  __shared__ acc of_warps[2][kBlockSize / kWarp];
  const acc product = sum_of_lanes(sums[0], kBlockSize, of_warps[0]);
  const acc square = sum_of_lanes(sums[1], kBlockSize, of_warps[1]);
  if (threadIdx.x == 0) write_gradients<scalar_t>(args, blockIdx.x, product, square);
}

template <class scalar_t>
cudaError_t launch_sums(const SnakeBackwardArgs& args, int64_t chunks, cudaStream_t stream) {
  const bool few = chunks <= kFewChunks;
  const auto blocks = static_cast<unsigned>(few ? ceil_div(args.c, int64_t{kWarp}) : args.c);
  const LaunchShape shape = {blocks, 1, 1, kBlockSize, 0, 1, 1};
  return launch(few ? snake_sum_few<scalar_t> : snake_sum_many<scalar_t>, shape, stream, args,
                chunks);
}

template <class scalar_t, bool kAligned>
cudaError_t launch_pass(const SnakeBackwardWork& work, const LaunchShape& shape,
                        cudaStream_t stream) {
  return work.args.form.limit
             ? launch(snake_backward<scalar_t, kAligned, true>, shape, stream, work)
             : launch(snake_backward<scalar_t, kAligned, false>, shape, stream, work);
}

bool aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % kVectorBytes == 0; }

}  // namespace

int64_t snake_backward_chunks(const SnakeBackwardArgs& args) { return SnakeSplit(args).chunks; }

cudaError_t launch_snake_backward(const SnakeBackwardArgs& args, cudaStream_t stream) {
  const SnakeSplit split(args);
  const bool all_aligned = aligned(args.x) && aligned(args.grad) && aligned(args.grad_x) &&
                           args.l * size_of(args.dtype) % kVectorBytes == 0;
  const SnakeBackwardWork work{args, split};
  return visit_floating(args.dtype, [&](auto type) {
    using scalar_t = typename decltype(type)::type;
    constexpr int n = kVectorBytes / sizeof(scalar_t);
    const auto blocks = static_cast<unsigned>(split.channel_blocks * split.chunks);
    const LaunchShape shape = {blocks, 1, 1, kBlockSize, 0, n, 2 * n};
    const cudaError_t error = all_aligned ? launch_pass<scalar_t, true>(work, shape, stream)
                                          : launch_pass<scalar_t, false>(work, shape, stream);
    if (error != cudaSuccess || args.partial == nullptr) return error;
    return launch_sums<scalar_t>(args, split.chunks, stream);
  });
}

}  // namespace treadle
