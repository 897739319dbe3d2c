// Grid kernels, what both passes share. 32 resident blocks (a group) keep the weights of one
// direction and take up to 64 rows of the batch through all steps, a tile of 8 rows at a time: what
// one tile sends travels while the others are computed.
//
// h travels through global memory, to a new place every step, filled with ones by the host: a
// reader polls the data itself until it is something else, with neither flag nor fence. No number
// has that pattern; a NaN rounded to a half type is another one. The launch is cooperative, so
// every block that is waited for runs.
#pragma once

#include "kernels/recurrent/resets.cuh"

namespace treadle {

// 16 bytes that another block may be writing: two 8-byte words, four elements each. A word is
// stored at once, so it is there whole or not at all.
struct Words {
  uint64_t low, high;

  // The lower two elements of a word tell whether it is there: none is ever all ones.
  __device__ __forceinline__ bool arrived() const {
    return static_cast<uint32_t>(low) != ~0u && static_cast<uint32_t>(high) != ~0u;
  }

  __device__ __forceinline__ uint2 half(int i) const {
    const uint64_t word = i == 0 ? low : high;
    return {static_cast<uint32_t>(word), static_cast<uint32_t>(word >> 32)};
  }
};

// Eight elements of h0, which nobody sends; zeros from element `count` on.
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

// Polls what has not arrived, until all has. The loads are predicated, not branched over: a word
// that is there must not be read again, and lanes stay together.
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

// Gathers four units of a row from lanes l, l + 8, l + 16, l + 24; the result is valid in lanes
// below 8.
__device__ __forceinline__ uint2 gather_four(uint32_t bits) {
  const uint32_t next = __shfl_down_sync(~0u, bits, 8);
  const uint32_t pair = bits | next << 16;
  return {pair, __shfl_down_sync(~0u, pair, 16)};
}

// The exchange through global memory: [step][group][tile of 8 rows][chunk of 32 k][row][8 k] x 16
// bytes, so that a warp reads lane by lane: eight lanes that follow one another share a line of 128
// bytes. A warp reads `chunks` chunks of a tile. A place is written once a call, so nothing has to
// be armed again.
template <int chunks, int tile_bytes>
struct GridExchange {
  int64_t step_bytes;
  const char* read_from;  // of the step before
  char* write_to;

  // `first_written`: the first of the chunks that this block writes.
  __device__ __forceinline__ GridExchange(void* workspace, int group, int groups, int tiles,
                                          int first_written, int warp, int lane)
      : step_bytes(int64_t{groups} * tiles * tile_bytes) {
    char* const own = static_cast<char*>(workspace) + int64_t{group} * tiles * tile_bytes;
    read_from = own + (warp * chunks * 32 + lane) * 16 - step_bytes;
    // Lanes below 8 write, each four units of a row.
    write_to = own + first_written * 512 + (lane * 4 + warp / 2) * 16 + warp % 2 * 8;
  }

  // Waits for tile j of the step before; `loaded`: load_next() has read it once.
  __device__ __forceinline__ void wait(Words (&words)[chunks], int j, bool loaded) const {
    const char* from = read_from + j * tile_bytes;
    if (!loaded) load_all(words, from);
    wait_for_all(words, from);
  }

  // Reads the tile after j, or tile 0 of the next step: often all is there by the time it is
  // needed.
  __device__ __forceinline__ void load_next(Words (&words)[chunks], int j, bool last_tile) const {
    load_all(words, last_tile ? read_from + step_bytes : read_from + (j + 1) * tile_bytes);
  }

  // Sends four units of a row to the m-th chunk that this block writes.
  __device__ __forceinline__ void send(int j, int m, uint2 four) const {
    store_word(write_to + j * tile_bytes + m * 512, four.x | uint64_t{four.y} << 32);
  }

  __device__ __forceinline__ void advance() {
    read_from += step_bytes;
    write_to += step_bytes;
  }
};

// The marks of up to `rows` rows for one step (resets.cuh), a row a lane: loaded a step ahead,
// asked tile by tile.
template <bool any, bool backward, int rows>
struct GridMarks {
  const GroupResets<any>& resets;
  uint32_t low, high;

  // For step p, as PassMarks counts.
  __device__ __forceinline__ void load(int p) {
    if constexpr (any) {
      const int lane = static_cast<int>(threadIdx.x) % kWarp, t = resets.template time<backward>(p);
      low = resets.mark(t, lane);
      if (rows > kWarp) high = resets.mark(t, kWarp + lane);
    }
  }

  // Whether row lane % 8 of the j-th tile starts anew. By whole warps.
  __device__ __forceinline__ bool before(int j) const {
    if constexpr (!any) return false;
    const int row = j * 8 + static_cast<int>(threadIdx.x) % 8;
    return __shfl_sync(~0u, rows <= kWarp || row < kWarp ? low : high, row % kWarp) != 0;
  }
};

// Bytes of a tile of one step: h of all units, in the order of the B operand.
inline constexpr int kGridForwardTile = kGridHidden * 8 * 2;

// Bytes of a tile of one step: gradients of all units' gates with a product with h, in the order of
// the B operand.
template <int state_gates>
inline constexpr int kGridBackwardTile = state_gates * kGridHidden * 8 * 2;

}  // namespace treadle
