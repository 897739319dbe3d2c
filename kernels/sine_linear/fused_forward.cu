// The sine layer forward on sm_90, half types and tf32: product and sines in one kernel.
//
// A block computes tiles [128, 128]. One thread lets the tensor memory accelerator bring x and W,
// 128 bytes of a row at a time; two teams of warpgroups take the tiles in turn, so that one
// takes sines while the other multiplies. Two blocks with neighbouring rows of x are a cluster:
// each brings half of W for both. W comes in an order of rows that gives every thread 16 bytes of
// consecutive columns. Formula: kernels/math/sine_linear.h. For everything else: sine_linear.cu
// behind cuBLAS.
#include <algorithm>
#include <limits>

#include "kernels/sine_linear.h"
#include "kernels/sine_linear_product_sines.cuh"
#include "kernels/tensor_map.cuh"
#include "kernels/warpgroup.cuh"

namespace treadle {
namespace {

constexpr int kRowBytes = 128, kTileBytes = kTile * kRowBytes;
constexpr int kStages = 6;
constexpr int kBlocks = 2;  // of a cluster
template <class T>
constexpr int kDepth = kRowBytes / sizeof(T);  // inputs of a stage
constexpr int kWarpgroup = 128;
// Stages begin at multiples of 1024.
constexpr size_t kSharedBytes = 1024 + kStages * (2 * kTileBytes + 16);

// Pairs of tiles, one a block of a cluster.
struct Tiles {
  int across, count;  // in a row, and all
};

// Two teams of as many warpgroups take the tiles, and one warpgroup brings them.
template <int kGroups>
struct Teams {
  static constexpr int kTeam = kGroups * kWarpgroup, kThreads = 2 * kTeam + kWarpgroup;
  static constexpr int kHalves = 2 / kGroups;  // of a tile's rows, 64 each, that a warpgroup has
  static constexpr int kRegisters = kGroups == 1 ? 240 : 112;  // of a team's thread
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

using Turn = ptx::Ring<kStages>;

struct Shared {
  uint32_t first;

  __device__ explicit Shared(const void* memory)
      : first((ptx::shared_address(memory) + 1023) & ~1023u) {}

  __device__ uint32_t x(int stage) const { return first + stage * 2 * kTileBytes; }
  __device__ uint32_t w(int stage) const { return x(stage) + kTileBytes; }
  __device__ uint32_t full(int stage) const { return x(kStages) + stage * 16; }
  __device__ uint32_t empty(int stage) const { return full(stage) + 8; }
};

// x and W of this cluster's tiles, stage by stage.
template <class T>
__device__ __forceinline__ void bring(const Shared& shared, const CUtensorMap& x,
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

// A warpgroup's halves [64, 128] of one tile, the first of which is `half`. Both blocks get every
// stage back once it is read: each writes to both.
template <class T, int kGroups>
__device__ __forceinline__ void multiply(const Shared& shared, int inputs, int team, int half,
                                         Turn& turn, float (&c)[Teams<kGroups>::kHalves][64]) {
  const auto give_back = [&](int stage) {
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
      for (int h = 0; h < Teams<kGroups>::kHalves; ++h) {
        ptx::multiply_tile<T>(c[h], x + h * (kHalfBytes >> 4) + 2 * i, w + 2 * i, k > 0 || i > 0);
      }
    }
    ptx::commit_products();
    if (last >= 0) {
      ptx::wait_products<1>();
      give_back(last);
    }
    last = stage;
    turn.advance();
  }
  ptx::arrive_threads(2 - team, 2 * Teams<kGroups>::kTeam);
  ptx::wait_products<0>();
  give_back(last);
}

#endif

template <class T, bool kSave, int kGroups>
__global__ void __launch_bounds__(Teams<kGroups>::kThreads, 1)
    sine_linear_product(const __grid_constant__ SineLinearForward args,
                        const __grid_constant__ CUtensorMap x,
                        const __grid_constant__ CUtensorMap w, const Tiles tiles) {
  begin_kernel();
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kTeam = Teams<kGroups>::kTeam;
  extern __shared__ char memory[];
  const Shared shared(memory);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::init_barrier(shared.full(stage), 1);
      ptx::init_barrier(shared.empty(stage), kBlocks * kTeam / 32);
    }
    ptx::publish_barriers();
  }
  ptx::sync_cluster();
  const int rank = static_cast<int>(ptx::block_in_cluster());
  const int team = threadIdx.x / kTeam, inputs = static_cast<int>(args.inputs);
  if (team == 2) {
    ptx::give_registers<24>();
    if (threadIdx.x == 2 * kTeam) bring<T>(shared, x, w, tiles, inputs, rank);
  } else {
    ptx::take_registers<Teams<kGroups>::kRegisters>();
    const int clusters = gridDim.x / kBlocks, half = threadIdx.x / kWarpgroup % kGroups;
    const int stages = ceil_div(inputs, kDepth<T>);
    Turn turn;
    turn.advance(team * stages);
    // A barrier says whether the last use of a stage is over, not how many are. So whoever waits
    // for one must have seen the use before: teams multiply one after the other.
    if (team == 1) ptx::arrive_threads(1, 2 * kTeam);
    for (int tile = blockIdx.x / kBlocks + team * clusters; tile < tiles.count;
         tile += 2 * clusters) {
      float c[Teams<kGroups>::kHalves][64];
      ptx::sync_threads(1 + team, 2 * kTeam);
      multiply<T, kGroups>(shared, inputs, team, half, turn, c);
      turn.advance(stages);
      const int64_t row = (int64_t{tile / tiles.across} * kBlocks + rank) * kTile;
      store_sines_of<T, kSave>(args, row + half * kHalfRows, tile % tiles.across * kTile, c);
    }
  }
  // Nobody leaves while the other block still writes to it.
  __syncwarp();
  ptx::sync_cluster();
#endif
}

// ---- host

int64_t pairs_of_tiles(const SineLinearForward& args) {
  return ceil_div(args.rows, int64_t{kTile} * kBlocks) * ceil_div(args.columns, int64_t{kTile});
}

template <class T, int kGroups>
cudaError_t launch_teams(const SineLinearForward& args, int processors, cudaStream_t stream) {
  const auto rows = static_cast<cuuint64_t>(args.rows);
  const auto columns = static_cast<cuuint64_t>(args.columns);
  const auto inputs = static_cast<cuuint64_t>(args.inputs);
  const auto row_bytes = static_cast<cuuint64_t>(args.row_stride) * sizeof(T);
  const cuuint64_t weight_bytes = inputs * sizeof(T);  // of a row, too
  constexpr int n = kWide<T>, kEights = n / 2;  // of columns, which a product gives two of each
  CUtensorMap x, w;
  // With 4 n columns a group and n columns a thread: column 4 n a + n b + 2 c + d of W comes as row
  // 4 n a + 8 c + 2 b + d.
  if (!encode_map<2>(x, args.dtype, args.input, {inputs, rows}, {row_bytes}, {kDepth<T>, kTile}) ||
      !encode_map<5>(w, args.dtype, args.weight, {inputs, 2, 4, kEights, columns / kGroup<T>},
                     {weight_bytes, n * weight_bytes, 2 * weight_bytes, 4 * n * weight_bytes},
                     {kDepth<T>, 2, 4, kEights, kTile / kGroup<T> / kBlocks})) {
    return cudaErrorNotSupported;
  }
  const Tiles tiles{static_cast<int>(ceil_div(args.columns, int64_t{kTile})),
                    static_cast<int>(pairs_of_tiles(args))};
  const auto kernel = args.phase != nullptr ? sine_linear_product<T, true, kGroups>
                                            : sine_linear_product<T, false, kGroups>;
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kSharedBytes));
  if (error != cudaSuccess) return error;
  const int clusters = std::min(std::max(1, processors / kBlocks), tiles.count);
  const LaunchShape shape = {
      static_cast<unsigned>(clusters * kBlocks), 1, 1, Teams<kGroups>::kThreads, kSharedBytes, 8,
      ceil_div(tiles.count, clusters) * kTile};
  return launch_with(kernel, shape, stream, cluster_launch(kBlocks), args, x, w, tiles);
}

template <class T>
cudaError_t launch_product(const SineLinearForward& args, int processors, cudaStream_t stream) {
  // Sines of float take more time than so narrow products: there more warps hide more of theirs.
  constexpr int kNarrow = 256;
  const bool narrow = sizeof(T) == 4 && args.inputs <= kNarrow;
  return narrow ? launch_teams<T, sizeof(T) / 2>(args, processors, stream)
                : launch_teams<T, 1>(args, processors, stream);
}

template <class T>
bool takes_shape(const SineLinearForward& args) {
  // Fewer rows than a tile are cuBLAS's.
  return args.rows >= kTile && args.columns % kGroup<T> == 0 && args.inputs % kWide<T> == 0 &&
         args.column_stride == 1 && args.row_stride % kWide<T> == 0 &&
         args.row_stride >= args.inputs;
}

}  // namespace

bool sine_linear_product_takes(const SineLinearForward& args) {
  const bool half = args.dtype == Dtype::kHalf || args.dtype == Dtype::kBFloat16;
  const bool shape =
      half ? takes_shape<Half>(args) : args.dtype == Dtype::kFloat && takes_shape<float>(args);
  return compiled_for(900) && shape && aligned(args.input) && aligned(args.weight) &&
         aligned(args.bias) && aligned(args.output) && aligned(args.phase) &&
         std::max({args.rows + 2 * kTile, args.columns, args.inputs, pairs_of_tiles(args)}) <
             std::numeric_limits<int>::max();
}

cudaError_t launch_sine_linear_product(const SineLinearForward& args, int processors,
                                       cudaStream_t stream) {
  const auto run = args.dtype == Dtype::kFloat  ? launch_product<float>
                   : args.dtype == Dtype::kHalf ? launch_product<Half>
                                                : launch_product<BFloat16>;
  return run(args, processors, stream);
}

}  // namespace treadle
