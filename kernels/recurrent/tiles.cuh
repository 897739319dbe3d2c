// Algorithm "tiles", forward: one launch a step, in which tensor cores multiply tiles of rows of
// the input by W_ih and of h by W_hh, and the cell follows in registers. For so many rows that the
// weights are read often enough from shared memory, in half types, H a multiple of 64, sm_90.
//
// A tile is [128 rows] x [groups of 64 columns], each group of one gate. A producer thread loads
// stages of both factors by TMA; each of two warpgroups takes 64 rows, and then computes the cell
// of what it holds. Two blocks with neighbouring rows form a cluster, and each loads half of the
// weights for both. Rows of weights are loaded in a permuted order that gives every thread eight
// consecutive columns of each half of a group. The input's product comes first: it needs nothing of
// the step before, whose launch may still end.
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
  int of_input, of_h;  // stages of K
};

// groups: of a stage.
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

// The producer, one of a tile's products: `rows` from `row` on and weights of this cluster's tile,
// stage by stage. block_of(g): which 64 rows of the weights group g is.
template <int groups, class BlockOf>
__device__ __forceinline__ void load_stages(const TileMemory<groups>& memory,
                                            ptx::Ring<TileStages<groups>::kCount>& turn,
                                            const CUtensorMap& rows, const CUtensorMap& weights,
                                            int count, int row, int rank, const BlockOf& block_of) {
  using Stages = TileStages<groups>;
  constexpr uint16_t kAll = (1 << kTileBlocks) - 1;
  constexpr int kPartBytes = Stages::kGroupBytes / kTileBlocks;
  for (int i = 0; i < count; ++i) {
    const int stage = turn.stage;
    ptx::wait_barrier(memory.empty(stage), turn.parity() ^ 1);
    ptx::arrive_expecting(memory.full(stage), Stages::kStageBytes);
    ptx::copy_tile(memory.rows(stage), &rows, i * kTileDepth, row, memory.full(stage),
                   static_cast<uint16_t>(1 << rank));
#pragma unroll
    for (int g = 0; g < groups; ++g) {
      ptx::copy_tile_of_groups(memory.weights(stage) + g * Stages::kGroupBytes + rank * kPartBytes,
                               &weights, i * kTileDepth, block_of(g) * kTileBlocks + rank,
                               memory.full(stage), kAll);
    }
    turn.advance();
  }
}

// A consumer's place among the stages. `last` is still being read, or none.
template <int groups>
struct TileReader {
  using Stages = TileStages<groups>;
  const TileMemory<groups>& memory;
  int warpgroup;
  ptx::Ring<Stages::kCount> turn;
  int last = -1;

  // To both blocks' producers, since each writes to both.
  __device__ __forceinline__ void release() {
    const uint32_t lane = threadIdx.x % kWarp;
    if (last >= 0 && lane < kTileBlocks) ptx::arrive_at(memory.empty(last), lane);
    last = -1;
  }

  // sums += a product, 64 rows of it in this warpgroup, into the groups from `first` on. What it
  // adds to the sums is there after finish().
  template <class T, int first, int registers>
  __device__ __forceinline__ void multiply(int count, float (&sums)[registers]) {
    for (int i = 0; i < count; ++i) {
      const int stage = turn.stage;
      ptx::wait_barrier(memory.full(stage), turn.parity());
      const uint64_t a =
          ptx::matrix(memory.rows(stage) + warpgroup * (Stages::kRowsBytes / kTileConsumers));
      const uint64_t b = ptx::matrix(memory.weights(stage));
      ptx::begin_products();
#pragma unroll
      for (int k = 0; k < Stages::kRowBytes / 32; ++k) {
        ptx::multiply_groups<T, groups, first>(sums, a + 2 * k, b + 2 * k);
      }
      ptx::commit_products();
      if (last >= 0) {
        ptx::wait_products<1>();
        release();
      }
      last = stage;
      turn.advance();
    }
  }

  __device__ __forceinline__ void finish() {
    ptx::wait_products<0>();
    release();
  }
};

template <int groups>
__device__ __forceinline__ void init_tile_barriers(const TileMemory<groups>& memory) {
  for (int stage = 0; stage < TileStages<groups>::kCount; ++stage) {
    ptx::init_barrier(memory.full(stage), 1);
    ptx::init_barrier(memory.empty(stage), kTileBlocks * kTileConsumers * kWarpgroup / kWarp);
  }
  ptx::publish_barriers();
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

// Written and not read soon, so that the cache keeps h and c.
template <class T, class acc = acc_t<T>>
__device__ __forceinline__ void store_once(void* data, int64_t at, const acc (&from)[kLoaded]) {
  Vector<T, kLoaded> stored;
  narrow(from, stored);
  __stcs(reinterpret_cast<uint4*>(static_cast<T*>(data) + at),
         reinterpret_cast<const uint4&>(stored));
}

// Eight floats of each of four lanes, which are next to each other, by `lanes` alone: 64 bytes at a
// time. Stores that leave out every other 16 bytes have taken as long as all else of a step. The
// lanes have chunks of four floats 0 1, 2 3, 4 5, 6 7; each sends one in either round, so that lane
// l ends with l and 4 + l.
__device__ __forceinline__ void store_by_quads(void* data, int64_t at, unsigned lanes,
                                               const float (&from)[kLoaded]) {
  const unsigned lane = threadIdx.x % 4;
  const bool inner = lane == 1 || lane == 2;
  float low[4], high[4];
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const float first = inner ? from[4 + e] : from[e], second = inner ? from[e] : from[4 + e];
    const float one = __shfl_sync(lanes, first, 0x78 >> 2 * lane & 3, 4);     // of 0, 2, 3, 1
    const float other = __shfl_sync(lanes, second, 0xd2 >> 2 * lane & 3, 4);  // of 2, 0, 1, 3
    low[e] = inner ? other : one;
    high[e] = inner ? one : other;
  }
  const int64_t row = at - lane * kLoaded;
  store_vector<float>(data, row + lane * 4, low);
  store_vector<float>(data, row + 16 + lane * 4, high);
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

inline TileCounts count_tiles(int64_t rows, int64_t hidden, int64_t input_size) {
  return {static_cast<int>(ceil_div(rows, int64_t{kTileRows} * kTileBlocks)),
          static_cast<int>(hidden / kTileColumns),
          static_cast<int>(ceil_div(input_size, int64_t{kTileDepth})),
          static_cast<int>(hidden / kTileDepth)};
}

template <int groups, class... P, class... A>
cudaError_t launch_tiles(void (*kernel)(P...), const TileCounts& tiles, int processors,
                         cudaStream_t stream, const A&... args) {
  constexpr int kBytes = TileStages<groups>::kSharedBytes;
  const int count = tiles.row_pairs * tiles.slices;
  const int clusters = count < processors / kTileBlocks ? count : processors / kTileBlocks;
  const LaunchShape shape = {
      static_cast<unsigned>(clusters * kTileBlocks), 1, 1, kTileThreads, kBytes, kLoaded,
      ceil_div(count, clusters) * kTileRows};
  return launch_with(kernel, shape, stream, {cluster_launch(kTileBlocks), overlapping_launch()},
                     args..., tiles);
}

}  // namespace treadle
