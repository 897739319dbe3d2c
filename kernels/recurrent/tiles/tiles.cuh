// The forward pass of algorithm "tiles", with one launch per step. Tensor cores multiply tiles of
// rows of the input by W_ih and of h by W_hh; the cell is then computed from the sums in registers.
// It is for batches with so many rows that weights in shared memory are reused often. It needs
// sm_90, H a multiple of 64, and half types or float32 that may be rounded to tf32.
//
// A tile is [128 rows] x [groups of 64 or 32 columns], with one group of columns per gate. A
// producer thread loads stages of both factors by TMA, which rounds floats to tf32; each of two
// warpgroups multiplies 64 rows, and then computes the cell from its own sums. Two blocks with
// adjacent rows form a cluster, and each loads half of the weights for both. Rows of weights are
// loaded in a permuted order that gives every thread eight consecutive columns of each 32. The
// input product is computed first, because it does not depend on the previous step, whose launch
// may still be running.
#pragma once

#include "kernels/common/convert.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/common/tma.cuh"
#include "kernels/common/wgmma_groups.cuh"
#include "kernels/recurrent/cell_launchers.h"
#include "kernels/recurrent/engine/shapes.h"
#include "kernels/recurrent/tiles/sizes.h"

namespace treadle {

inline constexpr int kTileDepthBytes = 128;  // bytes of K (the reduction) in a stage, per row
inline constexpr int kWarpgroup = 128, kTileConsumers = 2;
inline constexpr int kTileThreads = (kTileConsumers + 1) * kWarpgroup;
inline constexpr int kBoxColumns = 32;  // rows of weights per load
inline constexpr int kLoaded = 8;       // consecutive columns of a box that a lane has

// The tiles of a launch. A cluster computes a pair of row tiles for a slice of the columns.
struct TileCounts {
  int row_pairs, slices;
  int of_input, of_h;  // stages of K
};

// The stages of shared memory that TMA fills with elements of type T: 128 rows of the input or of
// h, and the weights of `groups_` groups of `columns_` columns.
template <class T, int groups_, int columns_>
struct TileStages {
  using Element = T;
  static constexpr int kGroups = groups_, kColumns = columns_;
  static constexpr int kDepth = kTileDepthBytes / static_cast<int>(sizeof(T));
  static constexpr int kHalves = kColumns / kBoxColumns;  // per group: one or two
  static constexpr int kBoxes = kGroups * kHalves;
  static_assert(kHalves == 1 || kHalves == kTileBlocks);
  static constexpr int kPieces = 2 * kHalves;  // per thread in a group: two rows of each half
  static constexpr int kSums = kColumns / 2;   // per thread in a group
  static constexpr int kRowsBytes = kTileRows * kTileDepthBytes;
  static constexpr int kBoxBytes = kBoxColumns * kTileDepthBytes;
  static constexpr int kStageBytes = kRowsBytes + kBoxes * kBoxBytes;
  // wgmma's swizzle needs stages that are aligned to 1024 bytes.
  static constexpr int kRoom = (kMostSharedBytes - 1024) / (kStageBytes + 16);
  static constexpr int kCount = kRoom < 8 ? kRoom : 8;
  static constexpr int kSharedBytes = 1024 + kCount * (kStageBytes + 16);
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <class Stages>
struct TileMemory {
  uint32_t first;

  __device__ explicit TileMemory(const void* memory)
      : first((ptx::shared_address(memory) + 1023) & ~1023u) {}

  __device__ uint32_t rows(int stage) const { return first + stage * Stages::kStageBytes; }
  __device__ uint32_t weights(int stage) const { return rows(stage) + Stages::kRowsBytes; }
  __device__ uint32_t full(int stage) const { return rows(Stages::kCount) + stage * 16; }
  __device__ uint32_t empty(int stage) const { return full(stage) + 8; }
};

// What the producer does for one of a tile's two products. Stage by stage, it loads the tile's
// rows, beginning with `row`, and the weights of this cluster's tile. If `any` is false, the tile
// has no rows, and its sums are not stored. Then only weights are loaded, because TMA would take
// longer to fill the rows with zeros. block_of(g) is the index of the block of `columns` rows of
// the weights that belongs to group g.
template <class Stages, class BlockOf>
__device__ __forceinline__ void load_stages(const TileMemory<Stages>& memory,
                                            ptx::Ring<Stages::kCount>& turn,
                                            const CUtensorMap& rows, const CUtensorMap& weights,
                                            int count, int row, bool any, int rank,
                                            const BlockOf& block_of) {
  constexpr uint16_t kAll = (1 << kTileBlocks) - 1;
  constexpr int kHalves = Stages::kHalves;
  for (int i = 0; i < count; ++i) {
    const int stage = turn.stage, k = i * Stages::kDepth;
    ptx::wait_barrier(memory.empty(stage), turn.parity() ^ 1);
    ptx::arrive_expecting(memory.full(stage),
                          any ? Stages::kStageBytes : Stages::kBoxes * Stages::kBoxBytes);
    if (any) {
      ptx::copy_tile(memory.rows(stage), &rows, k, row, memory.full(stage),
                     static_cast<uint16_t>(1 << rank));
    }
#pragma unroll
    for (int first = 0; first < Stages::kBoxes; first += kTileBlocks) {
      if (Stages::kBoxes % kTileBlocks != 0 && first + rank >= Stages::kBoxes) continue;
      const int box = kHalves == kTileBlocks ? block_of(first / kHalves) * kHalves + rank
                                             : block_of(first + rank);
      ptx::copy_tile_of_groups(memory.weights(stage) + (first + rank) * Stages::kBoxBytes, &weights,
                               k, box, memory.full(stage), kAll);
    }
    turn.advance();
  }
}

// A consumer's position in the stages. `last` is the stage that is still being read, or -1.
template <class Stages>
struct TileReader {
  const TileMemory<Stages>& memory;
  int warpgroup;
  ptx::Ring<Stages::kCount> turn;
  int last = -1;

  // Releases the stage to the producers of both blocks, because each producer writes to both
  // blocks.
  __device__ __forceinline__ void release() {
    const uint32_t lane = threadIdx.x % kWarp;
    if (last >= 0 && lane < kTileBlocks) ptx::arrive_at(memory.empty(last), lane);
    last = -1;
  }

  // Multiplies groups `from` to `to` of a stage, whose weights are `b`.
  template <int first, int from, int to, int registers>
  __device__ __forceinline__ void add_groups(float (&sums)[registers], uint64_t a, uint64_t b) {
    constexpr uint64_t kFrom = from * Stages::kHalves * Stages::kBoxBytes >> 4;
    ptx::multiply_columns<typename Stages::Element, (to - from) * Stages::kColumns,
                          (first + from) * Stages::kSums>(sums, a, b + kFrom);
  }

  // Adds a product of this warpgroup's 64 rows to the sums of the groups from `first` on. The sums
  // are valid after finish(). The first `apart` groups of the stage are multiplied separately from
  // the others, so that any two wgmma instructions have either the same accumulator registers or
  // none in common. With partly overlapping registers they would wait for each other.
  template <int first, int apart, int registers>
  __device__ __forceinline__ void multiply(int count, float (&sums)[registers]) {
    for (int i = 0; i < count; ++i) {
      const int stage = turn.stage;
      ptx::wait_barrier(memory.full(stage), turn.parity());
      const uint64_t a =
          ptx::matrix(memory.rows(stage) + warpgroup * (Stages::kRowsBytes / kTileConsumers));
      const uint64_t b = ptx::matrix(memory.weights(stage));
      ptx::begin_products();
#pragma unroll
      for (int k = 0; k < kTileDepthBytes / 32; ++k) {
        if constexpr (apart % Stages::kGroups != 0) {
          add_groups<first, 0, apart>(sums, a + 2 * k, b + 2 * k);
        }
        add_groups<first, apart % Stages::kGroups, Stages::kGroups>(sums, a + 2 * k, b + 2 * k);
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

template <class Stages>
__device__ __forceinline__ void init_tile_barriers(const TileMemory<Stages>& memory) {
  for (int stage = 0; stage < Stages::kCount; ++stage) {
    ptx::init_barrier(memory.full(stage), 1);
    ptx::init_barrier(memory.empty(stage), kTileBlocks * kTileConsumers * kWarpgroup / kWarp);
  }
  ptx::publish_barriers();
}

// A thread's sums are divided into pieces. A piece is eight columns of one half of a group, in one
// of the thread's two rows. piece_row() returns the piece's row, relative to the first of these two
// rows.
template <class Stages>
constexpr __device__ int piece_row(int piece) {
  return piece / Stages::kHalves * 8;
}
template <class Stages>
__device__ __forceinline__ int piece_column(int piece) {
  return piece % Stages::kHalves * kBoxColumns + threadIdx.x % 4 * kLoaded;
}
// The index, among a thread's sums, of the sum of a piece's column e.
template <class Stages>
constexpr __device__ int piece_sum(int group, int piece, int e) {
  return Stages::kSums * group + 16 * (piece % Stages::kHalves) + e / 2 * 4 + e % 2 +
         2 * (piece / Stages::kHalves);
}

// `once` means that the data is not read again soon. It is then stored with a streaming hint, so
// that h and c stay in the cache.
template <bool once>
__device__ __forceinline__ void store_chunk(void* at, const uint4& chunk) {
  if constexpr (once) {
    __stcs(static_cast<uint4*>(at), chunk);
  } else {
    *static_cast<uint4*>(at) = chunk;
  }
}

// Stores eight floats of each of four adjacent lanes, 64 bytes at a time; only `lanes` take part.
// Stores that skipped every other 16 bytes were found to take as long as everything else in a step.
// At first the four lanes have the chunks (of four floats) 0 1, 2 3, 4 5 and 6 7. In each of two
// rounds a lane sends one chunk and receives one from another lane, which the comments below name
// for lanes 0 to 3. Then lane l has chunks l and 4 + l.
template <bool once>
__device__ __forceinline__ void store_by_quads(void* data, int64_t at, unsigned lanes,
                                               const float (&from)[kLoaded]) {
  const unsigned lane = threadIdx.x % 4;
  const bool inner = lane == 1 || lane == 2;
  float4 low, high;
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const float first = inner ? from[4 + e] : from[e], second = inner ? from[e] : from[4 + e];
    const float one = __shfl_sync(lanes, first, 0x78 >> 2 * lane & 3, 4);     // lanes 0, 2, 3, 1
    const float other = __shfl_sync(lanes, second, 0xd2 >> 2 * lane & 3, 4);  // lanes 2, 0, 1, 3
    reinterpret_cast<float (&)[4]>(low)[e] = inner ? other : one;
    reinterpret_cast<float (&)[4]>(high)[e] = inner ? one : other;
  }
  float* const row = static_cast<float*>(data) + at - lane * kLoaded;
  store_chunk<once>(row + lane * 4, reinterpret_cast<const uint4&>(low));
  store_chunk<once>(row + 16 + lane * 4, reinterpret_cast<const uint4&>(high));
}

// Stores eight columns of each of four lanes, as T.
template <class T, bool once>
__device__ __forceinline__ void store_columns(void* data, int64_t at, unsigned lanes,
                                              const float (&from)[kLoaded]) {
  if constexpr (std::is_same_v<T, float>) {
    store_by_quads<once>(data, at, lanes, from);
  } else {
    Vector<T, kLoaded> stored;
    narrow(from, stored);
    store_chunk<once>(static_cast<T*>(data) + at, reinterpret_cast<const uint4&>(stored));
  }
}

#endif

// ---- host

// Encodes a tensor map of rows [n, k], `stride` elements apart, in boxes of one tile.
template <class Stages>
bool encode_rows(CUtensorMap& map, Dtype dtype, const void* data, int64_t n, int64_t k,
                 int64_t stride) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(typename Stages::Element));
  return encode_map<2>(map, dtype, data, {static_cast<cuuint64_t>(k), static_cast<cuuint64_t>(n)},
                       {static_cast<cuuint64_t>(stride * kBytes)}, {Stages::kDepth, kTileRows});
}

// Encodes a tensor map of contiguous weights [32 n, k], in boxes of 32 rows. Row 8 a + 2 b + c of a
// box is loaded as row 8 b + 2 a + c.
template <class Stages>
bool encode_weights(CUtensorMap& map, Dtype dtype, const void* data, int64_t n, int64_t k) {
  const auto row = static_cast<cuuint64_t>(k) * sizeof(typename Stages::Element);
  return encode_map<5>(
      map, dtype, data,
      {static_cast<cuuint64_t>(k), 2, 4, 4, static_cast<cuuint64_t>(n / kBoxColumns)},
      {row, kLoaded * row, 2 * row, kBoxColumns * row}, {Stages::kDepth, 2, 4, 4, 1});
}

template <class Stages>
TileCounts count_tiles(int64_t rows, int64_t hidden, int64_t input_size) {
  constexpr int64_t kDepth = Stages::kDepth;
  return {static_cast<int>(ceil_div(rows, int64_t{kTileRows} * kTileBlocks)),
          static_cast<int>(hidden / Stages::kColumns),
          static_cast<int>(ceil_div(input_size, kDepth)), static_cast<int>(hidden / kDepth)};
}

template <class Stages, class... P, class... A>
cudaError_t launch_tiles(void (*kernel)(P...), const TileCounts& tiles, int processors,
                         cudaStream_t stream, const A&... args) {
  const int count = tiles.row_pairs * tiles.slices;
  const int clusters = count < processors / kTileBlocks ? count : processors / kTileBlocks;
  const LaunchShape shape = {static_cast<unsigned>(clusters * kTileBlocks),
                             1,
                             1,
                             kTileThreads,
                             Stages::kSharedBytes,
                             kLoaded,
                             ceil_div(count, clusters) * kTileRows};
  return launch_with(kernel, shape, stream, {cluster_launch(kTileBlocks), overlapping_launch()},
                     args..., tiles);
}

}  // namespace treadle
