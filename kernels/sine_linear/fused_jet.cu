// Propagates a jet (jet_args.h) through the sine layer on sm_90, for half types and tf32. GEMM and
// sines are in one persistent kernel, as in fused_forward.cu. But a consumer's tile is [64, 64] of
// every part of the jet, so that one thread has all parts of an element in registers.
//
// A producer thread loads stages of the parts of x and of W by TMA. Two consumers alternate in
// computing tiles: one runs the epilogue while the other multiplies. Two blocks with the same
// points and adjacent columns form a cluster, and each loads half of x for both. All other cases
// use cuBLAS and jet_forward.cu.
#include <algorithm>
#include <limits>

#include "kernels/common/tma.cuh"
#include "kernels/common/wgmma_groups.cuh"
#include "kernels/sine_linear/fused_jet_epilogue.cuh"
#include "kernels/sine_linear/launchers.h"

namespace treadle {
namespace {

constexpr int kRowBytes = 128, kTileBytes = kTile * kRowBytes;
template <class T>
constexpr int kDepth = kRowBytes / sizeof(T);  // inputs of a stage
constexpr int kBlocks = 2;                     // per cluster
constexpr int kConsumers = 2, kWarpgroup = 128;
constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
// Registers per thread. Code for other architectures does not use these constants.
[[maybe_unused]] constexpr int kConsumerRegisters = 240, kProducerRegisters = 24;
constexpr int kMaxShared = 227 * 1024;
// A stage without its two barriers: a tile of each part of x, and one of W.
template <int kParts>
constexpr int kStageBytes = (kParts + 1) * kTileBytes;
// Stages are aligned to 1024 bytes, as wgmma's swizzle requires.
template <int kParts>
constexpr int kStages = (kMaxShared - 1024) / (kStageBytes<kParts> + 16) < 6
                            ? (kMaxShared - 1024) / (kStageBytes<kParts> + 16)
                            : 6;
template <int kParts>
constexpr size_t kSharedBytes = 1024 + kStages<kParts> * (kStageBytes<kParts> + 16);

// Pairs of tiles with the same points. Each block of a cluster computes one tile of a pair.
struct Tiles {
  int across, count;  // pairs side by side in the output's columns, and in total
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int kParts>
struct Shared {
  uint32_t first;

  __device__ explicit Shared(const void* memory)
      : first((ptx::shared_address(memory) + 1023) & ~1023u) {}

  __device__ uint32_t x(int stage, int part = 0) const {
    return first + stage * kStageBytes<kParts> + part * kTileBytes;
  }
  __device__ uint32_t w(int stage) const { return x(stage, kParts); }
  __device__ uint32_t full(int stage) const { return x(kStages<kParts>) + stage * 16; }
  __device__ uint32_t empty(int stage) const { return full(stage) + 8; }
};

// The producer. It loads x and W of this cluster's tiles, stage by stage. Rows of x after the last
// point belong to the next part; their results are not stored.
template <class T, int kParts>
__device__ __forceinline__ void load_stages(const Shared<kParts>& shared, const CUtensorMap& x,
                                            const CUtensorMap& w, const Tiles& tiles, int inputs,
                                            int points, int rank) {
  constexpr uint16_t kAll = (1 << kBlocks) - 1;
  constexpr int kShare = kTile / kBlocks;
  ptx::Ring<kStages<kParts>> turn;
  for (int tile = blockIdx.x / kBlocks; tile < tiles.count; tile += gridDim.x / kBlocks) {
    const int row = tile / tiles.across * kTile + rank * kShare;
    const int column = (tile % tiles.across * kBlocks + rank) * kTile;
    for (int k = 0; k < inputs; k += kDepth<T>) {
      const int stage = turn.stage;
      ptx::wait_barrier(shared.empty(stage), turn.parity() ^ 1);
      ptx::arrive_expecting(shared.full(stage), kStageBytes<kParts>);
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        ptx::copy_tile(shared.x(stage, p) + rank * kShare * kRowBytes, &x, k, p * points + row,
                       shared.full(stage), kAll);
      }
      ptx::copy_tile_of_groups(shared.w(stage), &w, k, column / kGroup<T>, shared.full(stage),
                               static_cast<uint16_t>(1 << rank));
      turn.advance();
    }
  }
}

// Computes one tile of every part. A stage is released to the producers of both blocks, because
// each producer writes to both blocks.
template <class T, int kParts>
__device__ __forceinline__ void multiply(const Shared<kParts>& shared, int inputs, int consumer,
                                         ptx::Ring<kStages<kParts>>& turn, float (&c)[kParts][32]) {
  const auto release = [&](int stage) {
    const uint32_t lane = threadIdx.x % 32;
    if (lane < kBlocks) ptx::arrive_at(shared.empty(stage), lane);
  };
  int last = -1;
  for (int k = 0; k < inputs; k += kDepth<T>) {
    const int stage = turn.stage;
    ptx::wait_barrier(shared.full(stage), turn.parity());
    const uint64_t x = ptx::matrix(shared.x(stage)), w = ptx::matrix(shared.w(stage));
    ptx::begin_products();
#pragma unroll
    for (int i = 0; i < kRowBytes / 32; ++i) {
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        ptx::multiply_columns<T, 64, 0>(c[p], x + p * (kTileBytes >> 4) + 2 * i, w + 2 * i,
                                        k > 0 || i > 0);
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
  ptx::arrive_threads(2 - consumer, kConsumers * kWarpgroup);
  ptx::wait_products<0>();
  release(last);
}

#endif

template <class T, int d, JetSecond kSecond>
__global__ void __launch_bounds__(kThreads, 1)
    sine_jet_fused_forward(const __grid_constant__ SineJetForward args,
                           const __grid_constant__ CUtensorMap x,
                           const __grid_constant__ CUtensorMap w, const Tiles tiles) {
  begin_kernel();
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kParts = 1 + d + (kSecond == JetSecond::kLaplacian ? 1 : 0);
  constexpr int kAll = kConsumers * kWarpgroup;
  extern __shared__ char memory[];
  const Shared<kParts> shared(memory);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages<kParts>; ++stage) {
      ptx::init_barrier(shared.full(stage), 1);
      ptx::init_barrier(shared.empty(stage), kBlocks * kWarpgroup / 32);
    }
    ptx::publish_barriers();
  }
  ptx::sync_cluster();
  const int rank = static_cast<int>(ptx::block_in_cluster());
  const int consumer = threadIdx.x / kWarpgroup, inputs = static_cast<int>(args.inputs);
  if (consumer == kConsumers) {
    ptx::setmaxnreg_dec<kProducerRegisters>();
    if (threadIdx.x == kAll) {
      load_stages<T, kParts>(shared, x, w, tiles, inputs, static_cast<int>(args.rows), rank);
    }
  } else {
    ptx::setmaxnreg_inc<kConsumerRegisters>();
    const int clusters = gridDim.x / kBlocks, stages = ceil_div(inputs, kDepth<T>);
    ptx::Ring<kStages<kParts>> turn;
    turn.advance(consumer * stages);
    // A barrier's parity does not distinguish a use of a stage from the use two rounds earlier. So
    // a waiting thread must have seen the previous use end, and consumers must alternate strictly.
    if (consumer == 1) ptx::arrive_threads(1, kAll);
    for (int tile = blockIdx.x / kBlocks + consumer * clusters; tile < tiles.count;
         tile += kConsumers * clusters) {
      float c[kParts][32];
      ptx::sync_threads(1 + consumer, kAll);
      multiply<T, kParts>(shared, inputs, consumer, turn, c);
      turn.advance(stages);
      store_jets_of<T, d, kSecond>(args, int64_t{tile / tiles.across} * kTile,
                                   (tile % tiles.across * kBlocks + rank) * kTile, c);
    }
  }
  // A block may not exit before its peer's last write to this block's shared memory.
  __syncwarp();
  ptx::sync_cluster();
#endif
}

// ---- host

int64_t pairs_of_tiles(const SineJetForward& args) {
  return ceil_div(args.rows, int64_t{kTile}) * ceil_div(args.columns, int64_t{kTile} * kBlocks);
}

template <class T, int d, JetSecond kSecond>
cudaError_t launch_typed(const SineJetForward& args, int processors, cudaStream_t stream) {
  constexpr int kParts = 1 + d + (kSecond == JetSecond::kLaplacian ? 1 : 0);
  const auto rows = static_cast<cuuint64_t>(args.rows * kParts);
  const auto columns = static_cast<cuuint64_t>(args.columns);
  const auto inputs = static_cast<cuuint64_t>(args.inputs);
  const cuuint64_t row_bytes = inputs * sizeof(T);  // of x, and of W
  // Groups of columns are permuted as in fused_forward.cu.
  constexpr int n = kWide<T>, kEights = n / 2;
  CUtensorMap x, w;
  if (!encode_map<2>(x, args.dtype, args.input, {inputs, rows}, {row_bytes},
                     {kDepth<T>, kTile / kBlocks}) ||
      !encode_map<5>(w, args.dtype, args.weight, {inputs, 2, 4, kEights, columns / kGroup<T>},
                     {row_bytes, n * row_bytes, 2 * row_bytes, 4 * n * row_bytes},
                     {kDepth<T>, 2, 4, kEights, kTile / kGroup<T>})) {
    return cudaErrorNotSupported;
  }
  const Tiles tiles{static_cast<int>(ceil_div(args.columns, int64_t{kTile} * kBlocks)),
                    static_cast<int>(pairs_of_tiles(args))};
  const auto kernel = sine_jet_fused_forward<T, d, kSecond>;
  constexpr size_t kBytes = kSharedBytes<kParts>;
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kBytes));
  if (error != cudaSuccess) return error;
  const int clusters = std::min(std::max(1, processors / kBlocks), tiles.count);
  const LaunchShape shape = {static_cast<unsigned>(clusters * kBlocks), 1, 1, kThreads, kBytes, 8,
                             ceil_div(tiles.count, clusters) * kTile};
  return launch_with(kernel, shape, stream, cluster_launch(kBlocks), args, x, w, tiles);
}

template <class T>
cudaError_t launch_parts(const SineJetForward& args, int processors, cudaStream_t stream) {
  constexpr auto kNone = JetSecond::kNone, kLaplacian = JetSecond::kLaplacian;
  const bool none = args.parts.second == kNone;
  if (args.parts.coordinates == 2) {
    return none ? launch_typed<T, 2, kNone>(args, processors, stream)
                : launch_typed<T, 2, kLaplacian>(args, processors, stream);
  }
  return none ? launch_typed<T, 3, kNone>(args, processors, stream)
              : launch_typed<T, 3, kLaplacian>(args, processors, stream);
}

template <class T>
bool supports_shape(const SineJetForward& args) {
  // With fewer points than two tiles have, cuBLAS is faster.
  return args.rows >= 2 * kTile && args.columns % kGroup<T> == 0 && args.inputs % kWide<T> == 0 &&
         args.column_stride == 1 && args.row_stride == args.inputs &&
         args.input_part_stride == args.rows * args.inputs && args.part_stride % kWide<T> == 0;
}

}  // namespace

bool sine_jet_fused_forward_supports(const SineJetForward& args) {
  const int64_t d = args.parts.coordinates;
  const bool parts = (d == 2 || d == 3) && args.parts.second != JetSecond::kDiagonal;
  const bool shape = is_half(args.dtype)
                         ? supports_shape<Half>(args)
                         : args.dtype == Dtype::kFloat && supports_shape<float>(args);
  return compiled_for(900) && parts && shape && aligned(args.input) && aligned(args.weight) &&
         aligned(args.bias) && aligned(args.output) && aligned(args.phase) &&
         std::max({(args.rows + kTile) * args.parts.total(), args.columns + 2 * kTile, args.inputs,
                   pairs_of_tiles(args)}) < std::numeric_limits<int>::max();
}

cudaError_t launch_sine_jet_fused_forward(const SineJetForward& args, int processors,
                                          cudaStream_t stream) {
  const auto run = args.dtype == Dtype::kFloat  ? launch_parts<float>
                   : args.dtype == Dtype::kHalf ? launch_parts<Half>
                                                : launch_parts<BFloat16>;
  return run(args, processors, stream);
}

}  // namespace treadle
