// Algorithm "tiles", what both passes share: one launch a step, in which tensor cores multiply
// tiles of rows by W_hh and the cell follows in registers. For so many rows that the weights are
// read often enough from shared memory, in half types, H a multiple of 64, sm_90.
//
// A tile is [128 rows] x [groups of 64 columns], each group of one gate (forward) or of 64 units
// (backward). A producer thread loads stages of both factors by TMA; each of two warpgroups takes
// 64 rows, and then computes the cell of what it holds. Two blocks with neighbouring rows form a
// cluster, and each loads half of the weights for both. Rows of weights are loaded in a permuted
// order that gives every thread eight consecutive columns of each half of a group. What the cell
// reads beside is asked for before the product, whose time covers that of memory.
#pragma once

#include "kernels/common/convert.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/common/tma.cuh"
#include "kernels/common/wgmma_groups.cuh"
#include "kernels/recurrent/cell_launchers.h"
#include "kernels/recurrent/shapes.h"

namespace treadle {

inline constexpr int kTileRows = 128, kTileColumns = 64;  // of a block; of a group
inline constexpr int kTileDepth = 64;                     // of K, a stage: 128 bytes of each row
inline constexpr int kTileBlocks = 2;                     // of a cluster
inline constexpr int kWarpgroup = 128, kTileConsumers = 2;
inline constexpr int kTileThreads = (kTileConsumers + 1) * kWarpgroup;
inline constexpr int kLoaded = 8;      // consecutive columns of a lane, in each half of a group
inline constexpr int kTilePieces = 4;  // of a thread in a group: two rows, two halves

// Tiles of a launch: pairs of rows' tiles, which a cluster takes, times slices of the columns.
struct TileCounts {
  int row_pairs, slices;
  int chunks;  // of K; none: nothing is multiplied
};

template <int groups>
struct TileStages {
  static constexpr int kRowBytes = kTileDepth * 2;
  static constexpr int kRowsBytes = kTileRows * kRowBytes;
  static constexpr int kGroupBytes = kTileColumns * kRowBytes;
  static constexpr int kStageBytes = kRowsBytes + groups * kGroupBytes;
  // wgmma's swizzle asks for stages that are aligned to 1024 bytes.
  static constexpr int kRoom = (kMostSharedBytes - 1024) / (kStageBytes + 16);
  static constexpr int kCount = kRoom < 8 ? kRoom : 8;
  static constexpr int kSharedBytes = 1024 + kCount * (kStageBytes + 16);
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int groups>
struct TileMemory {
  using Stages = TileStages<groups>;
  uint32_t first;

  __device__ explicit TileMemory(const void* memory)
      : first((ptx::shared_address(memory) + 1023) & ~1023u) {}

  __device__ uint32_t rows(int stage) const { return first + stage * Stages::kStageBytes; }
  __device__ uint32_t weights(int stage) const { return rows(stage) + Stages::kRowsBytes; }
  __device__ uint32_t full(int stage) const { return rows(Stages::kCount) + stage * 16; }
  __device__ uint32_t empty(int stage) const { return full(stage) + 8; }
};

// The producer: rows from `first_row` on and weights of this cluster's tiles, stage by stage.
// group_at(g, slice): which 64 rows of the weights group g of a slice is.
template <int groups, class GroupAt>
__device__ __forceinline__ void load_tiles(const TileMemory<groups>& memory,
                                           const CUtensorMap& rows, const CUtensorMap& weights,
                                           const TileCounts& tiles, int first_row, int rank,
                                           const GroupAt& group_at) {
  using Stages = TileStages<groups>;
  constexpr uint16_t kAll = (1 << kTileBlocks) - 1;
  constexpr int kPartBytes = Stages::kGroupBytes / kTileBlocks;
  ptx::Ring<Stages::kCount> turn;
  const int count = tiles.row_pairs * tiles.slices;
  for (int tile = blockIdx.x / kTileBlocks; tile < count; tile += gridDim.x / kTileBlocks) {
    const int slice = tile % tiles.slices;
    const int row = first_row + (tile / tiles.slices * kTileBlocks + rank) * kTileRows;
    for (int chunk = 0; chunk < tiles.chunks; ++chunk) {
      const int stage = turn.stage;
      ptx::wait_barrier(memory.empty(stage), turn.parity() ^ 1);
      ptx::arrive_expecting(memory.full(stage), Stages::kStageBytes);
      ptx::copy_tile(memory.rows(stage), &rows, chunk * kTileDepth, row, memory.full(stage),
                     static_cast<uint16_t>(1 << rank));
#pragma unroll
      for (int g = 0; g < groups; ++g) {
        ptx::copy_tile_of_groups(
            memory.weights(stage) + g * Stages::kGroupBytes + rank * kPartBytes, &weights,
            chunk * kTileDepth, group_at(g, slice) * kTileBlocks + rank, memory.full(stage), kAll);
      }
      turn.advance();
    }
  }
}

// c += the product of a tile, 64 rows of it in this warpgroup. A stage is released to both blocks'
// producers, since each writes to both.
template <class T, int groups>
__device__ __forceinline__ void multiply_tiles(const TileMemory<groups>& memory, int chunks,
                                               int warpgroup,
                                               ptx::Ring<TileStages<groups>::kCount>& turn,
                                               float (&c)[32 * groups]) {
  using Stages = TileStages<groups>;
  const auto release = [&](int stage) {
    const uint32_t lane = threadIdx.x % 32;
    if (lane < kTileBlocks) ptx::arrive_at(memory.empty(stage), lane);
  };
  int last = -1;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int stage = turn.stage;
    ptx::wait_barrier(memory.full(stage), turn.parity());
    const uint64_t a =
        ptx::matrix(memory.rows(stage) + warpgroup * (Stages::kRowsBytes / kTileConsumers));
    const uint64_t b = ptx::matrix(memory.weights(stage));
    ptx::begin_products();
#pragma unroll
    for (int i = 0; i < Stages::kRowBytes / 32; ++i) {
      ptx::multiply_groups<T, groups>(c, a + 2 * i, b + 2 * i);
    }
    ptx::commit_products();
    if (last >= 0) {
      ptx::wait_products<1>();
      release(last);
    }
    last = stage;
    turn.advance();
  }
  ptx::wait_products<0>();
  if (last >= 0) release(last);
}

// All tiles of a block. begin(c, pieces, row, slice) sets the sums and asks for the first pieces of
// what the cell reads beside, finish(c, pieces, row, slice) takes them: `row` is the first of a
// thread's two, counted from first_row.
template <class T, int groups, class Piece, int piece_count, class GroupAt, class Begin,
          class Finish>
__device__ __forceinline__ void run_tiles(const CUtensorMap& rows, const CUtensorMap& weights,
                                          const TileCounts& tiles, int first_row,
                                          const GroupAt& group_at, const Begin& begin,
                                          const Finish& finish) {
  using Stages = TileStages<groups>;
  extern __shared__ char shared[];
  const TileMemory<groups> memory(shared);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Stages::kCount; ++stage) {
      ptx::init_barrier(memory.full(stage), 1);
      ptx::init_barrier(memory.empty(stage), kTileBlocks * kTileConsumers * kWarpgroup / kWarp);
    }
    ptx::publish_barriers();
  }
  ptx::sync_cluster();
  const int rank = static_cast<int>(ptx::block_in_cluster());
  const int warpgroup = threadIdx.x / kWarpgroup;
  if (warpgroup == kTileConsumers) {
    ptx::setmaxnreg_dec<24>();
    if (threadIdx.x % kWarpgroup == 0) {
      load_tiles<groups>(memory, rows, weights, tiles, first_row, rank, group_at);
    }
  } else {
    ptx::setmaxnreg_inc<240>();
    const int of_thread = warpgroup * 64 + threadIdx.x / kWarp % 4 * 16 + threadIdx.x % kWarp / 4;
    const int count = tiles.row_pairs * tiles.slices;
    ptx::Ring<Stages::kCount> turn;
    for (int tile = blockIdx.x / kTileBlocks; tile < count; tile += gridDim.x / kTileBlocks) {
      const int slice = tile % tiles.slices;
      const int row = (tile / tiles.slices * kTileBlocks + rank) * kTileRows + of_thread;
      float c[32 * groups];
      Piece pieces[piece_count];  // of this tile alone, or all would stay in registers
      begin(c, pieces, row, slice);
      multiply_tiles<T, groups>(memory, tiles.chunks, warpgroup, turn, c);
      finish(c, pieces, row, slice);
    }
  }
  // No block may exit while its peer still writes to its shared memory.
  __syncwarp();
  ptx::sync_cluster();
}

// What a piece of a thread is: of its two rows and, in each group, two halves of the columns.
constexpr __device__ int piece_row(int piece) { return piece / 2 * 8; }
__device__ __forceinline__ int piece_column(int piece) {
  return piece % 2 * (kTileColumns / 2) + threadIdx.x % 4 * kLoaded;
}
// Where the sum of a piece's column e is.
constexpr __device__ int piece_sum(int group, int piece, int e) {
  return 32 * group + 16 * (piece % 2) + e / 2 * 4 + e % 2 + 2 * (piece / 2);
}

// Eight consecutive elements.
template <class T>
__device__ __forceinline__ Vector<T, kLoaded> eight_at(const void* data, int64_t at) {
  return *reinterpret_cast<const Vector<T, kLoaded>*>(static_cast<const T*>(data) + at);
}
// The same of what is read once, or written and not read soon, so that it leaves the cache to h and
// c.
template <class T>
__device__ __forceinline__ Vector<T, kLoaded> eight_once(const void* data, int64_t at) {
  Vector<T, kLoaded> found;
  const auto* from = reinterpret_cast<const uint4*>(static_cast<const T*>(data) + at);
  auto* to = reinterpret_cast<uint4*>(&found);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(found) / sizeof(uint4)); ++i)
    to[i] = __ldcs(from + i);
  return found;
}
template <class T, class acc = acc_t<T>>
__device__ __forceinline__ void store_eight_once(void* data, int64_t at,
                                                 const acc (&from)[kLoaded]) {
  Vector<T, kLoaded> stored;
  narrow(from, stored);
  __stcs(reinterpret_cast<uint4*>(static_cast<T*>(data) + at),
         reinterpret_cast<const uint4&>(stored));
}
template <class T, class acc = acc_t<T>>
__device__ __forceinline__ void load_eight(const void* data, int64_t at, acc (&to)[kLoaded]) {
  widen(eight_at<T>(data, at), to);
}
template <class T, class acc = acc_t<T>>
__device__ __forceinline__ void store_eight_of(void* data, int64_t at, const acc (&from)[kLoaded]) {
  Vector<T, kLoaded> stored;
  narrow(from, stored);
  *reinterpret_cast<Vector<T, kLoaded>*>(static_cast<T*>(data) + at) = stored;
}

#endif

// ---- host

// Rows [n, k] of a half type, `stride` elements apart, in boxes of a tile.
inline bool encode_rows(CUtensorMap& map, Dtype dtype, const void* data, int64_t n, int64_t k,
                        int64_t stride) {
  return encode_map<2>(map, dtype, data, {static_cast<cuuint64_t>(k), static_cast<cuuint64_t>(n)},
                       {static_cast<cuuint64_t>(stride) * 2}, {kTileDepth, kTileRows});
}

// Weights [64 n, k] contiguous, in boxes of a cluster's block: half of a group. Row 8 a + 2 b + c
// of the half is loaded as row 8 b + 2 a + c.
inline bool encode_weights(CUtensorMap& map, Dtype dtype, const void* data, int64_t n, int64_t k) {
  const auto row = static_cast<cuuint64_t>(k) * 2;
  return encode_map<5>(map, dtype, data,
                       {static_cast<cuuint64_t>(k), 2, 4, 4,
                        static_cast<cuuint64_t>(n / kTileColumns * kTileBlocks)},
                       {row, kLoaded * row, 2 * row, kTileColumns / kTileBlocks * row},
                       {kTileDepth, 2, 4, 4, 1});
}

// groups: of the columns; slices of so many.
template <int groups>
TileCounts count_tiles(int64_t rows, int64_t columns, int64_t depth) {
  return {static_cast<int>(ceil_div(rows, int64_t{kTileRows} * kTileBlocks)),
          static_cast<int>(columns / (kTileColumns * groups)),
          static_cast<int>(depth / kTileDepth)};
}

template <int groups, class... P, class... A>
cudaError_t launch_tiles(void (*kernel)(P...), const TileCounts& tiles, int processors,
                         cudaStream_t stream, const A&... args) {
  constexpr int kBytes = TileStages<groups>::kSharedBytes;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  const int count = tiles.row_pairs * tiles.slices;
  const int clusters = count < processors / kTileBlocks ? count : processors / kTileBlocks;
  const LaunchShape shape = {
      static_cast<unsigned>(clusters * kTileBlocks), 1, 1, kTileThreads, kBytes, kLoaded,
      ceil_div(count, clusters) * kTileRows};
  return launch_with(kernel, shape, stream, {cluster_launch(kTileBlocks), overlapping_launch()},
                     args..., tiles);
}

}  // namespace treadle
