// The shared-memory layout of fused_backward.cu, and the code of its producer, which computes
// grad_z, the gradient of x W^T + bias. In this kernel's formulas g is grad_z.
#pragma once

#include "kernels/common/wgmma.cuh"
#include "kernels/sine_linear/common.cuh"

namespace treadle::sine_fused_backward {

inline constexpr int kTileRows = 64;
inline constexpr int kAcross = 64;   // columns of a 128-byte row
inline constexpr int kInputs = 128;  // per block
inline constexpr int kWarpgroup = 128;
inline constexpr int kThreads = 4 * kWarpgroup;
// Warpgroups: two accumulate grad_weight, one multiplies for grad_input, one produces grad_z.
inline constexpr int kAccumulators = 2;
inline constexpr int kStages = 2;       // stages of grad_z
inline constexpr int kInputStages = 2;  // stages of x

// The layout for layers with up to kOut columns, with kBlocks blocks per cluster. Offsets are in
// bytes.
template <int kOut, int kBlocks>
struct FusedLayout {
  static constexpr int kBlockBytes = kTileRows * 128;  // 64 rows of 64 columns
  static constexpr int kWeightHalf = kOut * 128;       // 64 inputs
  static constexpr int kGradZBytes = kOut / kAcross * kBlockBytes;
  static constexpr int kInputBytes = kInputs / kAcross * kBlockBytes;
  static constexpr int kResultBytes = kInputBytes;
  // Vectors of grad and of phase that a thread prefetches: as many as fit.
  static constexpr int kAhead = kOut == 128 ? 16 : 11;
  static constexpr int kSlotBytes = 2 * 16 * kWarpgroup;
  // Offsets. The weights are at 0.
  static constexpr int kGradZ = kInputs / kAcross * kWeightHalf;
  static constexpr int kInputTiles = kGradZ + kStages * kGradZBytes;
  static constexpr int kResult = kInputTiles + kInputStages * kInputBytes;
  static constexpr int kSums = kResult + kResultBytes;
  static constexpr int kSlots = kSums + kWarpgroup * 8 * 4;
  static constexpr int kBarriers = kSlots + kAhead * kSlotBytes;
  static constexpr int kSharedBytes = 1024 + kBarriers + 8 * (1 + 2 * kStages + 2 * kInputStages);
  // The producer's work: vectors of 8 columns.
  static constexpr int kVectors = kOut / 8;
  static constexpr int kRowStep = kWarpgroup / kVectors;
  static constexpr int kOwnRows = kTileRows / kBlocks;
  static constexpr int kEach = kOwnRows / kRowStep;  // vectors of a thread
  static constexpr int kChunks =
      kOut / kTileRows / kAccumulators;  // of g^T x, 64 columns of g each
  // Registers per thread, by the role of its warpgroup.
  static constexpr int kAccumulatorRegisters = kChunks == 2 ? 160 : 104;
  static constexpr int kMultiplierRegisters = kChunks == 2 ? 112 : 152;
  static constexpr int kProducerRegisters =
      512 - kAccumulators * kAccumulatorRegisters - kMultiplierRegisters;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The tiles of a cluster: first, first + step, ... below count.
struct Tiles {
  int first, step, count;
  int rank;  // of this block in the cluster
};

template <int kOut, int kBlocks>
struct Memory {
  using Layout = FusedLayout<kOut, kBlocks>;
  uint32_t first;

  __device__ explicit Memory(const void* memory)
      : first((ptx::shared_address(memory) + 1023) & ~1023u) {}

  __device__ uint32_t weight(int half) const { return first + half * Layout::kWeightHalf; }
  __device__ uint32_t grad_z(int stage) const {
    return first + Layout::kGradZ + stage * Layout::kGradZBytes;
  }
  __device__ uint32_t input(int stage) const {
    return first + Layout::kInputTiles + stage * Layout::kInputBytes;
  }
  __device__ uint32_t result() const { return first + Layout::kResult; }
  __device__ uint32_t sums() const { return first + Layout::kSums; }
  __device__ uint32_t slots() const { return first + Layout::kSlots; }
  __device__ uint32_t weight_full() const { return first + Layout::kBarriers; }
  __device__ uint32_t grad_z_full(int stage) const { return weight_full() + 8 + stage * 8; }
  __device__ uint32_t grad_z_empty(int stage) const { return grad_z_full(kStages + stage); }
  __device__ uint32_t input_full(int stage) const { return grad_z_full(2 * kStages + stage); }
  __device__ uint32_t input_empty(int stage) const { return input_full(kInputStages + stage); }
};

// The cosines of the 2 n phases in n words; phases are in units of 2^-16 turn. The error of __cosf
// is at most 2^-20. It needs a third of the instructions of Waves, with which the cosines would be
// the bottleneck of this kernel.
template <int n>
__device__ __forceinline__ void cosines(const uint32_t (&words)[n], float (&cosine)[2 * n]) {
  uint32_t least = words[0];
#pragma unroll
  for (int i = 0; i < n; ++i) {
    least = __vmins2(least, words[i]);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      // Bits 0x4300pppp are the float 128 + pppp / 2^16, in turns.
      const float turns = __uint_as_float(__byte_perm(words[i], 0x4300u, 0x5410 + j * 0x22));
      cosine[2 * i + j] = __cosf(fmaf(turns, 0x1.921fb6p2f, -0x1.921fb6p9f));
    }
  }
  // SineLinear's kNaN is the smallest of all phases.
  if ((least & 0xffffu) == 0x8000u || least >> 16 == 0x8000u) {
#pragma unroll
    for (int i = 0; i < 2 * n; ++i) {
      const uint32_t half = words[i / 2] >> i % 2 * 16 & 0xffffu;
      if (half == 0x8000u) cosine[i] = __uint_as_float(0x7fc00000u);
    }
  }
}

// One thread of the producer. It computes grad_z for 8 columns of some rows of every tile.
template <class T, int kOut, int kBlocks>
struct GradZProducer {
  using Layout = FusedLayout<kOut, kBlocks>;
  const Memory<kOut, kBlocks>& memory;
  const int thread, column, columns;
  const float scale;
  uint32_t place;  // offset in a stage
  uint32_t peer;   // distance to the peer block's shared memory
  // This thread's first row of the next tile to load, and the number of rows from there to the end.
  const char *grads, *phases;
  int rows;
  int ahead = 0;             // the next slot
  int row_bytes, tile_rows;  // distances between this thread's rows and between tiles
  int64_t tile_bytes;
  float sum[8] = {};

  __device__ __forceinline__ GradZProducer(const Memory<kOut, kBlocks>& memory_,
                                           const SineLinearFusedBackward& args, const Tiles& tiles)
      : memory(memory_),
        thread(static_cast<int>(threadIdx.x) % kWarpgroup),
        column(thread % Layout::kVectors * 8),
        columns(static_cast<int>(args.columns)),
        scale(static_cast<float>(args.scale)),
        peer(ptx::in_block(memory.first, tiles.rank ^ (kBlocks - 1)) - memory.first),
        row_bytes(Layout::kRowStep * columns * 2),
        tile_rows(tiles.step * kTileRows),
        tile_bytes(int64_t{tile_rows} * columns * 2) {
    const int in_tile = tiles.rank * Layout::kOwnRows + thread / Layout::kVectors;
    place = column / kAcross * Layout::kBlockBytes + in_tile * 128 +
            ((column % kAcross / 8) ^ (in_tile % 8)) * 16;
    // Begins one tile before the first, because load(0) advances.
    const int row = tiles.first * kTileRows + in_tile - tile_rows;
    rows = (column < columns ? static_cast<int>(args.rows) : 0) - row;
    const int64_t first = (int64_t{row} * columns + column) * 2;
    grads = static_cast<const char*>(args.grad) + first;
    phases = static_cast<const char*>(args.phase) + first;
  }

  // The address of this thread's 16 bytes of grad in the next slot, or `later` slots after it. The
  // thread's 16 bytes of phase are kWarpgroup * 16 bytes further.
  __device__ __forceinline__ uint32_t slot(int later = 0) const {
    const int at = ahead + later;
    return memory.slots() + (at < Layout::kAhead ? at : at - Layout::kAhead) * Layout::kSlotBytes +
           thread * 16;
  }

  // Prefetches this thread's i-th row of the tile into the next slot, or zeros after the last row.
  // With cp.async, a thread can wait for just its oldest copies. A wait for loads into registers
  // would include the newest.
  __device__ __forceinline__ void load(int i) {
    if (i == 0) {
      grads += tile_bytes;
      phases += tile_bytes;
      rows -= tile_rows;
    }
    const bool real = i * Layout::kRowStep < rows;
    const int64_t at = real ? int64_t{i} * row_bytes : 0;
    ptx::copy16_async(slot(), grads + at, real);
    ptx::copy16_async(slot() + kWarpgroup * 16, phases + at, real);
    ptx::commit_copies();
    ahead = ahead + 1 == Layout::kAhead ? 0 : ahead + 1;
  }

  __device__ __forceinline__ void prefetch() {
#pragma unroll
    for (int i = 0; i < Layout::kAhead; ++i) load(i % Layout::kEach);
  }

  // Computes one stage of grad_z for all blocks of the cluster, and prefetches the next rows. The
  // column sums add unrounded values.
  __device__ __forceinline__ void produce(int stage) {
    const uint32_t to = memory.grad_z(stage) + place, full = memory.grad_z_full(stage);
    constexpr int kTogether = 2;  // independent work, since a warp has its scheduler to itself
#pragma unroll
    for (int i = 0; i < Layout::kEach; i += kTogether) {
      ptx::wait_copies<Layout::kAhead - kTogether>();
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
        // A thread's rows are 4 or 8 apart. If they are 4 apart, the swizzle of every other row
        // differs.
        const int down = (i + j) * Layout::kRowStep;
        const uint32_t at = (to ^ down % 8 * 16) + down * 128;
        ptx::store16(at, bits[j]);
        if constexpr (kBlocks > 1) ptx::send16(at + peer, bits[j], full + peer);
        load((i + j + Layout::kAhead) % Layout::kEach);
      }
    }
    ptx::publish_to_products();
    __syncwarp();
    if (thread % 32 == 0) {
      // The peer block also writes its rows here, so expect their bytes.
      constexpr int kBytes = (kBlocks - 1) * Layout::kOwnRows * kOut * 2;
      ptx::arrive_expecting(full, thread == 0 ? kBytes : 0);
    }
  }

  // Stores the column sums, added over the threads that share a column.
  __device__ __forceinline__ void store_sums(float* part) const {
    const uint32_t to = memory.sums() + (thread / Layout::kVectors * kOut + column) * 4;
#pragma unroll
    for (int e = 0; e < 8; e += 2) ptx::store_floats(to + e * 4, sum[e], sum[e + 1]);
    ptx::sync_threads(2, kWarpgroup);
    for (int c = thread; c < columns; c += kWarpgroup) {
      float all = 0;
#pragma unroll
      for (int i = 0; i < Layout::kRowStep; ++i) {
        all += ptx::load_float(memory.sums() + (i * kOut + c) * 4);
      }
      part[c] = all;
    }
  }
};

template <class T, int kOut, int kBlocks>
__device__ __forceinline__ void produce_grad_z(const Memory<kOut, kBlocks>& memory,
                                               const SineLinearFusedBackward& args,
                                               const Tiles& tiles, float* part) {
  GradZProducer<T, kOut, kBlocks> producer(memory, args, tiles);
  producer.prefetch();
  ptx::Ring<kStages> ring;
  for (int tile = tiles.first; tile < tiles.count; tile += tiles.step) {
    ptx::wait_barrier(memory.grad_z_empty(ring.stage), ring.parity() ^ 1);
    producer.produce(ring.stage);
    ring.advance();
  }
  ptx::wait_copies<0>();
  producer.store_sums(part);
}

#endif

}  // namespace treadle::sine_fused_backward
