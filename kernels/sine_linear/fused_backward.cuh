// What the blocks of sine_linear_gradients.cu have in shared memory, and who makes the slope there.
#pragma once

#include "kernels/sine_linear.cuh"
#include "kernels/warpgroup.cuh"

namespace treadle::sine_gradients {

inline constexpr int kTileRows = 64;
inline constexpr int kAcross = 64;   // columns that a row of 128 bytes has
inline constexpr int kInputs = 128;  // of a block
inline constexpr int kWarpgroup = 128;
inline constexpr int kThreads = 4 * kWarpgroup;
inline constexpr int kAdders = 2;       // warpgroups; then one that multiplies, then the maker
inline constexpr int kStages = 2;       // of g
inline constexpr int kInputStages = 2;  // of x

// What a layer of up to kOut columns has, with kBlocks blocks for the same rows. In bytes.
template <int kOut, int kBlocks>
struct Plan {
  static constexpr int kBlockBytes = kTileRows * 128;  // 64 rows of 64 columns
  static constexpr int kWeightHalf = kOut * 128;       // 64 inputs
  static constexpr int kSlopeBytes = kOut / kAcross * kBlockBytes;
  static constexpr int kInputBytes = kInputs / kAcross * kBlockBytes;
  static constexpr int kResultBytes = kInputBytes;
  // How many of its vectors of grad and phase a thread loads ahead: as many as fit.
  static constexpr int kAhead = kOut == 128 ? 16 : 11;
  static constexpr int kSlotBytes = 2 * 16 * kWarpgroup;
  // Where they begin, behind the weights.
  static constexpr int kSlopes = kInputs / kAcross * kWeightHalf;
  static constexpr int kInputTiles = kSlopes + kStages * kSlopeBytes;
  static constexpr int kResult = kInputTiles + kInputStages * kInputBytes;
  static constexpr int kSums = kResult + kResultBytes;
  static constexpr int kSlots = kSums + kWarpgroup * 8 * 4;
  static constexpr int kBarriers = kSlots + kAhead * kSlotBytes;
  static constexpr int kSharedBytes = 1024 + kBarriers + 8 * (1 + 2 * kStages + 2 * kInputStages);
  // Of g, 8 columns at a time.
  static constexpr int kVectors = kOut / 8;
  static constexpr int kRowStep = kWarpgroup / kVectors;
  static constexpr int kOwnRows = kTileRows / kBlocks;
  static constexpr int kEach = kOwnRows / kRowStep;           // vectors of a thread
  static constexpr int kChunks = kOut / kTileRows / kAdders;  // of g^T x, 64 columns of g each
  // Registers of a thread that adds, multiplies, makes.
  static constexpr int kAdds = kChunks == 2 ? 160 : 104;
  static constexpr int kMultiplies = kChunks == 2 ? 112 : 152;
  static constexpr int kMakes = 512 - 2 * kAdds - kMultiplies;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Those of this block's cluster, which is the first-th of `step`, and of `count` in all.
struct Tiles {
  int first, step, count;
  int rank;  // of this block in the cluster
};

template <int kOut, int kBlocks>
struct Memory {
  using Is = Plan<kOut, kBlocks>;
  uint32_t first;

  __device__ explicit Memory(const void* memory)
      : first((ptx::shared_address(memory) + 1023) & ~1023u) {}

  __device__ uint32_t weight(int half) const { return first + half * Is::kWeightHalf; }
  __device__ uint32_t slope(int stage) const {
    return first + Is::kSlopes + stage * Is::kSlopeBytes;
  }
  __device__ uint32_t input(int stage) const {
    return first + Is::kInputTiles + stage * Is::kInputBytes;
  }
  __device__ uint32_t result() const { return first + Is::kResult; }
  __device__ uint32_t sums() const { return first + Is::kSums; }
  __device__ uint32_t slots() const { return first + Is::kSlots; }
  __device__ uint32_t weight_full() const { return first + Is::kBarriers; }
  __device__ uint32_t slope_full(int stage) const { return weight_full() + 8 + stage * 8; }
  __device__ uint32_t slope_empty(int stage) const { return slope_full(kStages + stage); }
  __device__ uint32_t input_full(int stage) const { return slope_full(2 * kStages + stage); }
  __device__ uint32_t input_empty(int stage) const { return input_full(kInputStages + stage); }
};

// cos of what n words of phases say, 2^-16 turns. The special function unit is within 2^-20, and
// takes a third of the instructions of Waves, which would bound this kernel.
template <int n>
__device__ __forceinline__ void cosines(const uint32_t (&words)[n], float (&cosine)[2 * n]) {
  uint32_t least = words[0];
#pragma unroll
  for (int i = 0; i < n; ++i) {
    least = __vmins2(least, words[i]);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      // 128 turns and so many units.
      const float turns = __uint_as_float(__byte_perm(words[i], 0x4300u, 0x5410 + j * 0x22));
      cosine[2 * i + j] = __cosf(fmaf(turns, 0x1.921fb6p2f, -0x1.921fb6p9f));
    }
  }
  // A half that is SineLinear's kNaN, the least of all.
  if ((least & 0xffffu) == 0x8000u || least >> 16 == 0x8000u) {
#pragma unroll
    for (int i = 0; i < 2 * n; ++i) {
      const uint32_t half = words[i / 2] >> i % 2 * 16 & 0xffffu;
      if (half == 0x8000u) cosine[i] = __uint_as_float(0x7fc00000u);
    }
  }
}

// Of g what a thread makes: 8 columns of some rows of every tile.
template <class T, int kOut, int kBlocks>
struct Slopes {
  using Is = Plan<kOut, kBlocks>;
  const Memory<kOut, kBlocks>& memory;
  const int thread, column, columns;
  const float scale;
  uint32_t place;  // in a stage
  uint32_t other;  // from here to the other block's memory
  // Of the tile that is loaded: its first row, and how many of all are left from there on.
  const char *grads, *phases;
  int rows;
  int ahead = 0;             // the slot whose turn it is
  int row_bytes, tile_rows;  // from a row to its next; from a tile to the next
  int64_t tile_bytes;
  float sum[8] = {};

  __device__ __forceinline__ Slopes(const Memory<kOut, kBlocks>& memory_,
                                    const SineLinearGradients& args, const Tiles& tiles)
      : memory(memory_),
        thread(static_cast<int>(threadIdx.x) % kWarpgroup),
        column(thread % Is::kVectors * 8),
        columns(static_cast<int>(args.columns)),
        scale(static_cast<float>(args.scale)),
        other(ptx::in_block(memory.first, tiles.rank ^ (kBlocks - 1)) - memory.first),
        row_bytes(Is::kRowStep * columns * 2),
        tile_rows(tiles.step * kTileRows),
        tile_bytes(int64_t{tile_rows} * columns * 2) {
    const int in_tile = tiles.rank * Is::kOwnRows + thread / Is::kVectors;
    place = column / kAcross * Is::kBlockBytes + in_tile * 128 +
            ((column % kAcross / 8) ^ (in_tile % 8)) * 16;
    // One before the first, from where `load` goes on.
    const int row = tiles.first * kTileRows + in_tile - tile_rows;
    rows = (column < columns ? static_cast<int>(args.rows) : 0) - row;
    const int64_t first = (int64_t{row} * columns + column) * 2;
    grads = static_cast<const char*>(args.grad) + first;
    phases = static_cast<const char*>(args.phase) + first;
  }

  // Of grad, and behind it of phase, this thread's own: the slot whose turn it is, or the next.
  __device__ __forceinline__ uint32_t slot(int later = 0) const {
    const int at = ahead + later;
    return memory.slots() + (at < Is::kAhead ? at : at - Is::kAhead) * Is::kSlotBytes + thread * 16;
  }

  // The i-th row of the tile that is loaded, into the slot. By way of shared memory: loads into
  // registers are waited for in groups, in which new ones would be, too. Zeros for what is no row.
  __device__ __forceinline__ void load(int i) {
    if (i == 0) {
      grads += tile_bytes;
      phases += tile_bytes;
      rows -= tile_rows;
    }
    const bool real = i * Is::kRowStep < rows;
    const int64_t at = real ? int64_t{i} * row_bytes : 0;
    ptx::copy16_async(slot(), grads + at, real);
    ptx::copy16_async(slot() + kWarpgroup * 16, phases + at, real);
    ptx::commit_copies();
    ahead = ahead + 1 == Is::kAhead ? 0 : ahead + 1;
  }

  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int i = 0; i < Is::kAhead; ++i) load(i % Is::kEach);
  }

  // g of its rows, for all blocks of the cluster; then loads the next. What is added up has not
  // been rounded.
  __device__ __forceinline__ void make(int stage) {
    const uint32_t to = memory.slope(stage) + place, full = memory.slope_full(stage);
    constexpr int kTogether = 2;  // a warp is alone with its scheduler
#pragma unroll
    for (int i = 0; i < Is::kEach; i += kTogether) {
      ptx::wait_copies<Is::kAhead - kTogether>();
      uint4 grad[kTogether], phase[kTogether];
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        grad[j] = ptx::load16(slot(j));
        phase[j] = ptx::load16(slot(j) + kWarpgroup * 16);
      }
      float product[8 * kTogether], cosine[8 * kTogether];
      cosines(reinterpret_cast<const uint32_t (&)[4 * kTogether]>(phase), cosine);
      widen(reinterpret_cast<const Vector<T, 8 * kTogether>&>(grad), product);
#pragma unroll
      for (int e = 0; e < 8 * kTogether; ++e) {
        product[e] *= scale * cosine[e];
        sum[e % 8] += product[e];
      }
      Vector<T, 8 * kTogether> rounded;
      narrow(product, rounded);
      const auto& bits = reinterpret_cast<const uint4(&)[kTogether]>(rounded);
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        // Its rows are 4 or 8 apart: of 4, every other one is swizzled the other way.
        const int down = (i + j) * Is::kRowStep;
        const uint32_t at = (to ^ down % 8 * 16) + down * 128;
        ptx::store16(at, bits[j]);
        if constexpr (kBlocks > 1) ptx::send16(at + other, bits[j], full + other);
        load((i + j + Is::kAhead) % Is::kEach);
      }
    }
    ptx::publish_to_products();
    __syncwarp();
    if (thread % 32 == 0) {
      // Of the other block come its rows.
      constexpr int kBytes = (kBlocks - 1) * Is::kOwnRows * kOut * 2;
      ptx::arrive_expecting(full, thread == 0 ? kBytes : 0);
    }
  }

  // Sums of the columns over the threads that have them.
  __device__ __forceinline__ void add_up(float* part) const {
    const uint32_t to = memory.sums() + (thread / Is::kVectors * kOut + column) * 4;
#pragma unroll
    for (int e = 0; e < 8; e += 2) ptx::store_floats(to + e * 4, sum[e], sum[e + 1]);
    ptx::sync_threads(2, kWarpgroup);
    for (int c = thread; c < columns; c += kWarpgroup) {
      float all = 0;
#pragma unroll
      for (int i = 0; i < Is::kRowStep; ++i) {
        all += ptx::load_float(memory.sums() + (i * kOut + c) * 4);
      }
      part[c] = all;
    }
  }
};

template <class T, int kOut, int kBlocks>
__device__ __forceinline__ void make_slopes(const Memory<kOut, kBlocks>& memory,
                                            const SineLinearGradients& args, const Tiles& tiles,
                                            float* part) {
  Slopes<T, kOut, kBlocks> slopes(memory, args, tiles);
  slopes.begin();
  ptx::Ring<kStages> ring;
  for (int tile = tiles.first; tile < tiles.count; tile += tiles.step) {
    ptx::wait_barrier(memory.slope_empty(ring.stage), ring.parity() ^ 1);
    slopes.make(ring.stage);
    ring.advance();
  }
  ptx::wait_copies<0>();
  slopes.add_up(part);
}

#endif

}  // namespace treadle::sine_gradients
