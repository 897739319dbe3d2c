// What the forward and backward pass of the regime "grid" share. 32 blocks, each on a
// multiprocessor of its own, keep the weights of one direction, and take some rows of the batch
// through all steps: 8 rows (a tile) after the other, so that what one tile sends travels while the
// others are computed.
//
// What is sent goes through memory, to a new place every step, which held words of only ones
// before: whoever needs it reads until it is something else. A number never is: a NaN that is
// rounded to a half type has another pattern. All blocks are resident (a cooperative launch), so
// that nobody waits for a block that cannot run.
#pragma once

#include "kernels/cluster.cuh"

namespace treadle {

inline constexpr int kGridBlocks = 32, kGridUnits = 32;  // of a group; of a block
inline constexpr int kGridHidden = kGridBlocks * kGridUnits, kGridRows = 64;  // at most
inline constexpr int kGridWarps = 8, kGridThreads = kGridWarps * kWarp;

// 16 bytes that another block may be writing: two words, each whole, of four elements.
struct Words {
  uint64_t low, high;

  // Two elements tell: none is ever all ones.
  __device__ __forceinline__ bool arrived() const {
    return static_cast<uint32_t>(low) != ~0u && static_cast<uint32_t>(high) != ~0u;
  }

  __device__ __forceinline__ uint2 half(int i) const {
    const uint64_t word = i == 0 ? low : high;
    return {static_cast<uint32_t>(word), static_cast<uint32_t>(word >> 32)};
  }
};

// Eight elements that have not been sent, zero from element `count` on.
__device__ __forceinline__ Words words_of(const uint16_t* at, int64_t count) {
  const uint2 low = load_four(at, count, false), high = load_four(at + 4, count - 4, false);
  return {low.x | uint64_t{low.y} << 32, high.x | uint64_t{high.y} << 32};
}

__device__ __forceinline__ Words load_words(const void* at) {
  Words w;
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
               : "=l"(w.low), "=l"(w.high)
               : "l"(at)
               : "memory");
  return w;
}

template <int n>
__device__ __forceinline__ void load_all(Words (&words)[n], const char* at) {
#pragma unroll
  for (int i = 0; i < n; ++i) words[i] = load_words(at + i * 512);
}

// Reads again what has not arrived, until all has.
template <int n>
__device__ __forceinline__ void wait_for_all(Words (&words)[n], const char* at) {
  while (true) {
    bool all = true;
#pragma unroll
    for (int i = 0; i < n; ++i) all = all && words[i].arrived();
    if (all) break;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      asm volatile(
          "{\n"
          ".reg .pred missing;\n"
          "setp.ne.u32 missing, %3, 0;\n"
          "@missing ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];\n"
          "}"
          : "+l"(words[i].low), "+l"(words[i].high)
          : "l"(at + i * 512), "r"(static_cast<uint32_t>(!words[i].arrived()))
          : "memory");
    }
  }
  __syncwarp();
}

__device__ __forceinline__ void store_word(void* at, uint64_t x) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(at), "l"(x) : "memory");
}

// Four units of a row, of the lanes that differ in lane / 8; whole in lanes below 8.
__device__ __forceinline__ uint2 gather_four(uint32_t bits) {
  const uint32_t next = __shfl_down_sync(~0u, bits, 8);
  const uint32_t pair = bits | next << 16;
  return {pair, __shfl_down_sync(~0u, pair, 16)};
}

// ---- sizes of the kernels, and where what lies in a block's shared memory; rows in tiles of 8

template <int gates>
struct GridForward {
  static constexpr int kChunks = kGridHidden / 32 / kGridWarps;  // of 32 k, a warp: of one block
  static constexpr int kTiles = gates * 2;                       // of 16 rows of W
  static constexpr int kKept = 144 / (4 * kTiles);               // of 2 * kChunks, in registers
  static constexpr int kDepth = 6, kAhead = kDepth - 2;          // steps of the input
  static constexpr int kSliceRow = kGridUnits * 2 + 16;          // bytes

  static constexpr int kSumBytes = kGridWarps * gates * kGridUnits * 8 * 4;  // two of them
  static constexpr int kBias = 2 * kSumBytes;
  static constexpr int kWeights = kBias + gates * kGridUnits * 4;
  static constexpr int kCells = kWeights + kGridWarps * (2 * kChunks - kKept) * kTiles * 512;
  // Of every row: c and h of 32 units, and a slice of each step of the input.
  static constexpr int kRowBytes = kGridUnits * (4 + 2) + kDepth * gates * kSliceRow;

  static constexpr int shared_bytes(int rows) { return kCells + rows * kRowBytes; }
};

// Of one step and group: a tile's rows as the registers of a product want them.
inline constexpr int kGridForwardTile = kGridHidden * 8 * 2;

template <int gates>
struct GridBackward {
  static constexpr int kChunks = gates * kGridHidden / 32 / kGridWarps;  // of 32 k, a warp
  static constexpr int kTiles = kGridUnits / 16;                         // of 16 units
  static constexpr int kKept = 96 / (4 * kTiles);        // of 2 * kChunks, in registers
  static constexpr int kDepth = 3, kAhead = kDepth - 1;  // steps of what forward saved
  static constexpr int kSliceRow = kGridUnits * 2 + 16, kCellRow = kGridUnits * 4 + 16;  // bytes

  static constexpr int kSumBytes = kGridWarps * kGridUnits * 8 * 4;  // two of them
  static constexpr int kWeights = 2 * kSumBytes;
  static constexpr int kGrads = kWeights + kGridWarps * (2 * kChunks - kKept) * kTiles * 512;
  // Of every row: gradients of h and c of 32 units, and of each step a slice with the gates, the
  // gradient of the output, and cells.
  static constexpr int kSliceBytes = (gates + 1) * kSliceRow + kCellRow;
  static constexpr int kRowBytes = kGridUnits * (4 + 4) + kDepth * kSliceBytes;

  static constexpr int shared_bytes(int rows) { return kGrads + rows * kRowBytes; }
};

// Of one step and group: a tile's rows of all gates as the registers of a product want them.
template <int gates>
inline constexpr int kGridBackwardTile = gates * kGridHidden * 8 * 2;

}  // namespace treadle
