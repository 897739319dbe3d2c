// The sine layer forward on sm_90, half types: the product and everything behind it in one kernel.
//
// A block computes tiles [128, 128]. One thread lets the tensor memory accelerator bring x and W,
// 64 inputs at a time; two warpgroups take the tiles in turn, so that one takes sines while the
// other multiplies. Two blocks with neighbouring rows of x are a cluster: each brings half of W for
// both. W comes in an order of rows that gives every thread 8 consecutive columns. Formula:
// kernels/math/sine_linear.h. For everything else: sine_linear.cu behind cuBLAS.
#include <algorithm>
#include <limits>

#include "kernels/sine_linear.cuh"
#include "kernels/sine_linear.h"
#include "kernels/tensor_map.cuh"
#include "kernels/warpgroup.cuh"

namespace treadle {
namespace {

constexpr int kTile = 128;  // rows of x, and of W
constexpr int kDepth = 64;  // inputs of a stage: rows of 128 bytes
constexpr int kStages = 6;
constexpr int kBlocks = 2;  // of a cluster
constexpr int kGroup = 32;  // columns that change their order among themselves
constexpr int kTileBytes = kTile * kDepth * 2;
constexpr int kWarpgroup = 128;
constexpr int kThreads = 3 * kWarpgroup;
// Stages begin at multiples of 1024.
constexpr size_t kSharedBytes = 1024 + kStages * (2 * kTileBytes + 16);

struct Tiles {
  int64_t rows;
  int columns, inputs;
  int across, count;  // pairs of tiles, one a block of a cluster: in a row, and all
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
__device__ __forceinline__ void bring(const Shared& shared, const CUtensorMap& x,
                                      const CUtensorMap& w, const Tiles& tiles, int rank) {
  constexpr uint16_t kAll = (1 << kBlocks) - 1;
  constexpr int kPart = kTile / kBlocks;
  Turn turn;
  for (int tile = blockIdx.x / kBlocks; tile < tiles.count; tile += gridDim.x / kBlocks) {
    const int row = (tile / tiles.across * kBlocks + rank) * kTile;
    const int column = tile % tiles.across * kTile + rank * kPart;
    for (int k = 0; k < tiles.inputs; k += kDepth) {
      const int stage = turn.stage;
      ptx::wait_barrier(shared.empty(stage), turn.parity() ^ 1);
      ptx::arrive_expecting(shared.full(stage), 2 * kTileBytes);
      ptx::copy_tile(shared.x(stage), &x, k, row, shared.full(stage),
                     static_cast<uint16_t>(1 << rank));
      ptx::copy_tile_of_groups(shared.w(stage) + rank * kPart * kDepth * 2, &w, k, column / kGroup,
                               shared.full(stage), kAll);
      turn.advance();
    }
  }
}

// c [128, 128] of one tile, two halves of rows. Both blocks get every stage back once it is read:
// each writes to both.
template <class T>
__device__ __forceinline__ void multiply(const Shared& shared, int inputs, Turn& turn,
                                         float (&c)[2][64]) {
  const auto give_back = [&](int stage) {
    const uint32_t lane = threadIdx.x % 32;
    if (lane < kBlocks) ptx::arrive_at(shared.empty(stage), lane);
  };
  int last = -1;
  for (int k = 0; k < inputs; k += kDepth) {
    const int stage = turn.stage;
    ptx::wait_barrier(shared.full(stage), turn.parity());
    const uint64_t x = ptx::matrix(shared.x(stage)), w = ptx::matrix(shared.w(stage));
    ptx::begin_products();
#pragma unroll
    for (int i = 0; i < kDepth / 16; ++i) {
      const bool add = k > 0 || i > 0;
      ptx::multiply_tile<T>(c[0], x + 2 * i, w + 2 * i, add);
      ptx::multiply_tile<T>(c[1], x + (kTileBytes / 2 >> 4) + 2 * i, w + 2 * i, add);
    }
    ptx::commit_products();
    if (last >= 0) {
      ptx::wait_products<1>();
      give_back(last);
    }
    last = stage;
    turn.advance();
  }
  ptx::arrive_threads(2 - static_cast<int>(threadIdx.x) / kWarpgroup, 2 * kWarpgroup);
  ptx::wait_products<0>();
  give_back(last);
}

// Large numbers and NaN. Rare, and so out of the way of the registers.
template <class T>
__device__ __noinline__ void store_far_sines(const SineLinearForward& args, int64_t element,
                                             const float* u) {
  Vector<T, 8> y;
  Vector<int16_t, 8> phase;
  for (int e = 0; e < 8; ++e) {
    const auto result = math::SineLinear<T>::template forward<true>(u[e]);
    y.value[e] = Narrow<T>::from(result.y);
    phase.value[e] = static_cast<int16_t>(result.phase);
  }
  store_at(args.output, element, y);
  if (args.phase != nullptr) store_at(args.phase, element, phase);
}

template <class T, bool kSave>
__device__ __forceinline__ void store_sines(const SineLinearForward& args, int64_t element,
                                            const float (&u)[8]) {
  using Layer = math::SineLinear<T>;
  if (any_far<T>(u)) {
    float far[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) far[e] = u[e];
    return store_far_sines<T>(args, element, far);
  }
  Vector<T, 8> y;
  Vector<uint32_t, 4> phase;
#pragma unroll
  for (int e = 0; e < 8; e += 2) {
    const auto a = Layer::near(u[e]), b = Layer::near(u[e + 1]);
    y.value[e] = Narrow<T>::from(a.y);
    y.value[e + 1] = Narrow<T>::from(b.y);
    // Half a turn is not to be kNaN.
    phase.value[e / 2] = __vmaxs2(__byte_perm(a.phase, b.phase, 0x5410), 0x80018001u);
  }
  store_at(args.output, element, y);
  if constexpr (kSave) {
    store_at(args.phase, element, reinterpret_cast<const Vector<int16_t, 8>&>(phase));
  }
}

template <class T, bool kSave>
__device__ __forceinline__ void finish(const SineLinearForward& args, const Tiles& tiles,
                                       int64_t first_row, int first_column,
                                       const float (&c)[2][64]) {
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int64_t row = first_row + warp * 16 + lane / 4;
  const int column = first_column + lane % 4 * 8;
  const float omega = static_cast<float>(args.omega);
#pragma unroll
  for (int group = 0; group < kTile / kGroup; ++group) {
    const int at = column + group * kGroup;
    if (at >= tiles.columns) return;
    float bias[8] = {};
    if (args.bias != nullptr) widen(load_at<T, 8>(args.bias, at), bias);
#pragma unroll
    for (int e = 0; e < 8; ++e) bias[e] *= omega;
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int64_t r = row + part / 2 * (kTile / 2) + part % 2 * 8;
      float u[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int j = 4 * group + e / 2;
        u[e] = fmaf(omega, c[part / 2][4 * j + part % 2 * 2 + e % 2], bias[e]);
      }
      if (r < tiles.rows) store_sines<T, kSave>(args, r * tiles.columns + at, u);
    }
  }
}

#endif

template <class T, bool kSave>
__global__ void __launch_bounds__(kThreads, 1)
    sine_linear_product(const __grid_constant__ SineLinearForward args,
                        const __grid_constant__ CUtensorMap x,
                        const __grid_constant__ CUtensorMap w, const Tiles tiles) {
  begin_kernel();
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ char memory[];
  const Shared shared(memory);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::init_barrier(shared.full(stage), 1);
      ptx::init_barrier(shared.empty(stage), kBlocks * kWarpgroup / 32);
    }
    ptx::publish_barriers();
  }
  ptx::sync_cluster();
  const int rank = static_cast<int>(ptx::block_in_cluster());
  const int group = threadIdx.x / kWarpgroup;
  if (group == 2) {
    ptx::give_registers<24>();
    if (threadIdx.x == 2 * kWarpgroup) bring(shared, x, w, tiles, rank);
  } else {
    ptx::take_registers<240>();
    const int clusters = gridDim.x / kBlocks;
    const int stages = ceil_div(tiles.inputs, kDepth);
    Turn turn;
    turn.advance(group * stages);
    // A barrier says whether the last use of a stage is over, not how many are. So whoever waits
    // for one must have seen the use before: they multiply one after the other.
    if (group == 1) ptx::arrive_threads(1, 2 * kWarpgroup);
    for (int tile = blockIdx.x / kBlocks + group * clusters; tile < tiles.count;
         tile += 2 * clusters) {
      float c[2][64];
      ptx::sync_threads(1 + group, 2 * kWarpgroup);
      multiply<T>(shared, tiles.inputs, turn, c);
      turn.advance(stages);
      const int64_t row = (int64_t{tile / tiles.across} * kBlocks + rank) * kTile;
      finish<T, kSave>(args, tiles, row, tile % tiles.across * kTile, c);
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

template <class T>
cudaError_t launch_product(const SineLinearForward& args, int processors, cudaStream_t stream) {
  const auto rows = static_cast<cuuint64_t>(args.rows);
  const auto columns = static_cast<cuuint64_t>(args.columns);
  const auto inputs = static_cast<cuuint64_t>(args.inputs);
  const auto row_bytes = static_cast<cuuint64_t>(args.row_stride) * 2;
  CUtensorMap x, w;
  // A column of W is 32 a + 8 b + 2 c + d, and comes as row 32 a + 8 c + 2 b + d.
  if (!encode_map<2>(x, args.dtype, args.input, {inputs, rows}, {row_bytes}, {kDepth, kTile}) ||
      !encode_map<5>(w, args.dtype, args.weight, {inputs, 2, 4, 4, columns / kGroup},
                     {2 * inputs, 16 * inputs, 4 * inputs, 64 * inputs},
                     {kDepth, 2, 4, 4, kTile / kGroup / kBlocks})) {
    return cudaErrorNotSupported;
  }
  const Tiles tiles{args.rows, static_cast<int>(columns), static_cast<int>(inputs),
                    ceil_div(static_cast<int>(columns), kTile),
                    static_cast<int>(pairs_of_tiles(args))};
  const auto kernel =
      args.phase != nullptr ? sine_linear_product<T, true> : sine_linear_product<T, false>;
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kSharedBytes));
  if (error != cudaSuccess) return error;
  const int clusters = std::min(std::max(1, processors / kBlocks), tiles.count);
  const LaunchShape shape = {
      static_cast<unsigned>(clusters * kBlocks), 1, 1, kThreads, kSharedBytes, 8,
      ceil_div(tiles.count, clusters) * kTile};
  return launch_with(kernel, shape, stream, cluster_launch(kBlocks), args, x, w, tiles);
}

}  // namespace

bool sine_linear_product_takes(const SineLinearForward& args) {
  const bool half = args.dtype == Dtype::kHalf || args.dtype == Dtype::kBFloat16;
  // Fewer rows than a tile are cuBLAS's.
  return compiled_for(900) && half && args.rows >= kTile && args.columns % kGroup == 0 &&
         args.inputs % 8 == 0 && args.column_stride == 1 && args.row_stride % 8 == 0 &&
         args.row_stride >= args.inputs && aligned(args.input) && aligned(args.weight) &&
         aligned(args.bias) && aligned(args.output) && aligned(args.phase) &&
         std::max({args.rows + 2 * kTile, args.columns, args.inputs, pairs_of_tiles(args)}) <
             std::numeric_limits<int>::max();
}

cudaError_t launch_sine_linear_product(const SineLinearForward& args, int processors,
                                       cudaStream_t stream) {
  return args.dtype == Dtype::kHalf ? launch_product<Half>(args, processors, stream)
                                    : launch_product<BFloat16>(args, processors, stream);
}

}  // namespace treadle
