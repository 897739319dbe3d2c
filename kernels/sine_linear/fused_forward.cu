// The sine layer's forward pass on sm_90, for half types and tf32: GEMM and sines in one persistent
// kernel.
//
// A producer thread loads stages of x and W by TMA. Two consumers, of one or two warpgroups each,
// alternate in computing [128, 128] tiles: one runs the epilogue while the other multiplies. Two
// blocks with adjacent rows of x form a cluster, and each loads half of W for both. W's rows are
// loaded in a permuted order that gives every thread 16 bytes of consecutive columns. Formula:
// kernels/math/sine_linear.h. All other cases use cuBLAS and forward.cu.
#include <algorithm>
#include <limits>

#include "kernels/common/tma.cuh"
#include "kernels/common/wgmma.cuh"
#include "kernels/sine_linear/fused_forward_epilogue.cuh"
#include "kernels/sine_linear/launchers.h"

namespace treadle {
namespace {

constexpr int kTile = 128;  // rows of x and of W in a tile
// Code for other architectures does not use this constant.
[[maybe_unused]] constexpr int kHalfRows = kTile / 2;
constexpr int kRowBytes = 128, kTileBytes = kTile * kRowBytes;
constexpr int kStages = 6;
constexpr int kBlocks = 2;  // per cluster
constexpr int kConsumers = 2;
template <class T>
constexpr int kDepth = kRowBytes / sizeof(T);  // inputs of a stage
constexpr int kWarpgroup = 128;
// Stages are aligned to 1024 bytes, as wgmma's swizzle requires.
constexpr size_t kSharedBytes = 1024 + kStages * (2 * kTileBytes + 16);

// Pairs of tiles. Each block of a cluster computes one tile of a pair.
struct Tiles {
  int across, count;  // pairs side by side in the output's columns, and in total
};

// For consumers of kGroups warpgroups each, and one producer warpgroup:
template <int kGroups>
constexpr int kConsumerThreads = kGroups * kWarpgroup;
template <int kGroups>
constexpr int kThreads = kConsumers * kConsumerThreads<kGroups> + kWarpgroup;
template <int kGroups>
constexpr int kHalves = 2 / kGroups;  // a warpgroup's part of a tile, in halves of 64 rows
template <int kGroups>
constexpr int kConsumerRegisters = kGroups == 1 ? 240 : 112;  // per thread

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

using Turn = ptx::Ring<kStages>;

constexpr int kProducerRegisters = 24;  // per thread

struct Shared {
  uint32_t first;

  __device__ explicit Shared(const void* memory)
      : first((ptx::shared_address(memory) + 1023) & ~1023u) {}

  __device__ uint32_t x(int stage) const { return first + stage * 2 * kTileBytes; }
  __device__ uint32_t w(int stage) const { return x(stage) + kTileBytes; }
  __device__ uint32_t full(int stage) const { return x(kStages) + stage * 16; }
  __device__ uint32_t empty(int stage) const { return full(stage) + 8; }
};

// The producer. It loads x and W of this cluster's tiles, stage by stage.
template <class T>
__device__ __forceinline__ void load_stages(const Shared& shared, const CUtensorMap& x,
                                            const CUtensorMap& w, const Tiles& tiles, int inputs,
                                            int rank) {
  constexpr uint16_t kAll = (1 << kBlocks) - 1;
  constexpr int kPart = kTile / kBlocks;
  Turn turn;
  for (int tile = blockIdx.x / kBlocks; tile < tiles.count; tile += gridDim.x / kBlocks) {
    const int row = (tile / tiles.across * kBlocks + rank) * kTile;
    const int column = tile % tiles.across * kTile + rank * kPart;
    for (int k = 0; k < inputs; k += kDepth<T>) {
      const int stage = turn.stage;
      ptx::wait_barrier(shared.empty(stage), turn.parity() ^ 1);
      ptx::arrive_expecting(shared.full(stage), 2 * kTileBytes);
      ptx::copy_tile(shared.x(stage), &x, k, row, shared.full(stage),
                     static_cast<uint16_t>(1 << rank));
      ptx::copy_tile_of_groups(shared.w(stage) + rank * kPart * kRowBytes, &w, k,
                               column / kGroup<T>, shared.full(stage), kAll);
      turn.advance();
    }
  }
}

// Computes a warpgroup's kHalves<kGroups> halves [64, 128] of one tile, from half `half` on. A
// stage is released to the producers of both blocks, because each producer writes to both blocks.
template <class T, int kGroups>
__device__ __forceinline__ void multiply(const Shared& shared, int inputs, int consumer, int half,
                                         Turn& turn, float (&c)[kHalves<kGroups>][64]) {
  const auto release = [&](int stage) {
    const uint32_t lane = threadIdx.x % 32;
    if (lane < kBlocks) ptx::arrive_at(shared.empty(stage), lane);
  };
  int last = -1;
  for (int k = 0; k < inputs; k += kDepth<T>) {
    const int stage = turn.stage;
    ptx::wait_barrier(shared.full(stage), turn.parity());
    constexpr int kHalfBytes = kTileBytes / 2;
    const uint64_t x = ptx::matrix(shared.x(stage) + half * kHalfBytes);
    const uint64_t w = ptx::matrix(shared.w(stage));
    ptx::begin_products();
#pragma unroll
    for (int i = 0; i < kRowBytes / 32; ++i) {
#pragma unroll
      for (int h = 0; h < kHalves<kGroups>; ++h) {
        ptx::multiply_tile<T>(c[h], x + h * (kHalfBytes >> 4) + 2 * i, w + 2 * i, k > 0 || i > 0);
      }
    }
    ptx::commit_products();
    if (last >= 0) {
      ptx::wait_products<1>();
      release(last);
    }
    last = stage;
    turn.advance();
  }
  // All GEMMs of this tile are issued, so the other consumer may multiply.
  ptx::arrive_threads(2 - consumer, kConsumers * kConsumerThreads<kGroups>);
  ptx::wait_products<0>();
  release(last);
}

#endif

template <class T, bool kSave, int kGroups>
__global__ void __launch_bounds__(kThreads<kGroups>, 1)
    sine_linear_fused_forward(const __grid_constant__ SineLinearForward args,
                              const __grid_constant__ CUtensorMap x,
                              const __grid_constant__ CUtensorMap w, const Tiles tiles) {
  begin_kernel();
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kOne = kConsumerThreads<kGroups>, kAll = kConsumers * kOne;
  extern __shared__ char memory[];
  const Shared shared(memory);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::init_barrier(shared.full(stage), 1);
      ptx::init_barrier(shared.empty(stage), kBlocks * kOne / 32);
    }
    ptx::publish_barriers();
  }
  ptx::sync_cluster();
  const int rank = static_cast<int>(ptx::block_in_cluster());
  const int consumer = threadIdx.x / kOne, inputs = static_cast<int>(args.inputs);
  if (consumer == kConsumers) {
    ptx::setmaxnreg_dec<kProducerRegisters>();
    if (threadIdx.x == kAll) load_stages<T>(shared, x, w, tiles, inputs, rank);
  } else {
    ptx::setmaxnreg_inc<kConsumerRegisters<kGroups>>();
    const int clusters = gridDim.x / kBlocks, half = threadIdx.x / kWarpgroup % kGroups;
    const int stages = ceil_div(inputs, kDepth<T>);
    Turn turn;
    turn.advance(consumer * stages);
    // A barrier's parity does not distinguish a use of a stage from the use two rounds earlier. So
    // a waiting thread must have seen the previous use end, and consumers must alternate strictly.
    if (consumer == 1) ptx::arrive_threads(1, kAll);
    for (int tile = blockIdx.x / kBlocks + consumer * clusters; tile < tiles.count;
         tile += kConsumers * clusters) {
      float c[kHalves<kGroups>][64];
      ptx::sync_threads(1 + consumer, kAll);
      multiply<T, kGroups>(shared, inputs, consumer, half, turn, c);
      turn.advance(stages);
      const int64_t row = (int64_t{tile / tiles.across} * kBlocks + rank) * kTile;
      const int warp = threadIdx.x / 32 % 4;
      store_sines_of<T, kSave, kHalfRows>(args, row + half * kHalfRows + warp * 16,
                                          tile % tiles.across * kTile, c);
    }
  }
  // A block may not exit before its peer's last write to this block's shared memory.
  __syncwarp();
  ptx::sync_cluster();
#endif
}

// ---- host

int64_t pairs_of_tiles(const SineLinearForward& args) {
  return ceil_div(args.rows, int64_t{kTile} * kBlocks) * ceil_div(args.columns, int64_t{kTile});
}

template <class T, int kGroups>
cudaError_t launch_grouped(const SineLinearForward& args, int processors, cudaStream_t stream) {
  const auto rows = static_cast<cuuint64_t>(args.rows);
  const auto columns = static_cast<cuuint64_t>(args.columns);
  const auto inputs = static_cast<cuuint64_t>(args.inputs);
  const auto row_bytes = static_cast<cuuint64_t>(args.row_stride) * sizeof(T);
  const cuuint64_t weight_bytes = inputs * sizeof(T);  // per row
  // wgmma gives a thread two of every eight columns, so its n columns come from kEights groups
  // of 8.
  constexpr int n = kWide<T>, kEights = n / 2;
  CUtensorMap x, w;
  // Permutes W's rows in groups of 4 n, n of them for each thread: row 4 n a + n b + 2 c + d is
  // loaded as row 4 n a + 8 c + 2 b + d.
  if (!encode_map<2>(x, args.dtype, args.input, {inputs, rows}, {row_bytes}, {kDepth<T>, kTile}) ||
      !encode_map<5>(w, args.dtype, args.weight, {inputs, 2, 4, kEights, columns / kGroup<T>},
                     {weight_bytes, n * weight_bytes, 2 * weight_bytes, 4 * n * weight_bytes},
                     {kDepth<T>, 2, 4, kEights, kTile / kGroup<T> / kBlocks})) {
    return cudaErrorNotSupported;
  }
  const Tiles tiles{static_cast<int>(ceil_div(args.columns, int64_t{kTile})),
                    static_cast<int>(pairs_of_tiles(args))};
  const auto kernel = args.phase != nullptr ? sine_linear_fused_forward<T, true, kGroups>
                                            : sine_linear_fused_forward<T, false, kGroups>;
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kSharedBytes));
  if (error != cudaSuccess) return error;
  const int clusters = std::min(std::max(1, processors / kBlocks), tiles.count);
  const LaunchShape shape = {
      static_cast<unsigned>(clusters * kBlocks), 1, 1, kThreads<kGroups>, kSharedBytes, 8,
      ceil_div(tiles.count, clusters) * kTile};
  return launch_with(kernel, shape, stream, cluster_launch(kBlocks), args, x, w, tiles);
}

template <class T>
cudaError_t launch_typed(const SineLinearForward& args, int processors, cudaStream_t stream) {
  // In float, sines take longer than a GEMM with few inputs, and two warpgroups per consumer hide
  // more latency.
  constexpr int kNarrow = 256;
  const bool narrow = sizeof(T) == 4 && args.inputs <= kNarrow;
  return narrow ? launch_grouped<T, sizeof(T) / 2>(args, processors, stream)
                : launch_grouped<T, 1>(args, processors, stream);
}

}  // namespace

bool sine_linear_fused_forward_supports(const SineLinearForward& args) {
  const bool fits = is_half(args.dtype)
                        ? fits_tiles<Half>(args, kTile)
                        : args.dtype == Dtype::kFloat && fits_tiles<float>(args, kTile);
  return compiled_for(900) && fits &&
         std::max({args.rows + 2 * kTile, args.columns, args.inputs, pairs_of_tiles(args)}) <
             std::numeric_limits<int>::max();
}

cudaError_t launch_sine_linear_fused_forward(const SineLinearForward& args, int processors,
                                             cudaStream_t stream) {
  const auto run = args.dtype == Dtype::kFloat  ? launch_typed<float>
                   : args.dtype == Dtype::kHalf ? launch_typed<Half>
                                                : launch_typed<BFloat16>;
  return run(args, processors, stream);
}

}  // namespace treadle
