// Of the regime "cluster", forward: where what lies in a block's shared memory, and its copies from
// and to memory.
#pragma once

#include "kernels/cluster.cuh"

namespace treadle {

// Sizes of a kernel, and where what lies in a block's shared memory.
template <int gates, int units, int blocks, int tiles>
struct ClusterForward {
  static constexpr int kUnits = units, kBlocks = blocks, kTiles = tiles, kGates = gates;
  static constexpr int kHidden = units * blocks, kRows = 8 * tiles;
  static constexpr int kGroups = units / 16;           // of 16 units
  static constexpr int kSplits = units >= 64 ? 2 : 4;  // of K
  static constexpr int kWarps = kGroups * kSplits, kComputing = kWarp * kWarps;
  // One more warp copies between memory and shared memory; but where weights need registers that
  // it would cost, those that compute do.
  static constexpr bool kCopyWarp = units <= 32;
  static constexpr int kThreads = kComputing + (kCopyWarp ? kWarp : 0);
  static constexpr int kCopying = kCopyWarp ? kWarp : kComputing;
  static constexpr int kChunks = kHidden / 16 / kSplits;  // of 16 k, a warp
  // Of a lane: one unit of one row each.
  static constexpr int kItems = 4 * tiles >= kSplits ? 4 * tiles / kSplits : 1;
  // Of a thread: what it sends, and what it copies, by 16 bytes and by 8.
  static constexpr int kSends = ceil_div(kHidden * tiles, kComputing);
  static constexpr int kPieces = ceil_div(gates * kRows * units / 8, kCopying);
  static constexpr int kQuads = ceil_div(kRows * units / 4, kCopying);
  // Chunks whose weights are kept in registers; those of the others, in shared memory.
  static constexpr int kFree = (registers_of(kThreads) - (kCopyWarp ? 44 : 64) - 4 * gates * tiles -
                                5 * kItems - 3 * kSends) /
                               (4 * gates);
  static constexpr int kKept = kChunks < kFree ? kChunks : kFree;
  static constexpr int kDepth = tiles == 1 ? 8 : 4, kAhead = kDepth - 2;  // steps of the input

  // In bytes.
  static constexpr int kStateBytes = kHidden * kRows * 2;  // h of all units; two of them
  static constexpr int kStagedBytes = units * kRows * 2;   // h of own units; two of them
  static constexpr int kSliceRow = units * 2 + 16;         // of the input: kDepth slices
  static constexpr int kSliceBytes = gates * kRows * kSliceRow;
  static constexpr int kState = 0, kSums = kState + 2 * kStateBytes;
  static constexpr int kStaged = kSums + kSplits * gates * tiles * units * 8 * 4;
  static constexpr int kSlices = kStaged + 2 * kStagedBytes;
  static constexpr int kBias = kSlices + kDepth * kSliceBytes;
  static constexpr int kWeights = kBias + gates * units * 4;
  static constexpr int kBarriers = kWeights + kWarps * (kChunks - kKept) * gates * 512;
  static constexpr int kSharedBytes = kBarriers + 2 * kSplits * 8;
};

// Fetches the input's products some steps ahead, and stores what is computed: the part of one of
// Is::kCopying threads.
template <class Is>
struct ForwardCopies {
  const PersistentForward& args;
  const Group& group;
  const bool vector;
  const char* piece_from[Is::kPieces];  // products
  char* piece_to[Is::kPieces];          // gates, which take their place
  uint32_t piece_at[Is::kPieces];
  int piece_row[Is::kPieces], piece_left[Is::kPieces];
  char* quad_to[Is::kQuads];  // output: four units of one row
  uint32_t quad_at[Is::kQuads];
  int quad_row[Is::kQuads], quad_left[Is::kQuads];

  __device__ __forceinline__ ForwardCopies(const PersistentForward& args, const Group& group,
                                           uint32_t base, int first_unit, int stride, int thread)
      : args(args), group(group), vector(args.sizes.hidden % 8 == 0 && args.output_row % 4 == 0) {
    constexpr int units = Is::kUnits, tiles = Is::kTiles, kRows = Is::kRows;
    const int64_t hidden = args.sizes.hidden, d = group.direction, first_row = group.rows.first;
    const int64_t all_rows = group.rows.start(static_cast<int>(args.sizes.steps));
#pragma unroll
    for (int i = 0; i < Is::kPieces; ++i) {
      const int e = thread + i * Is::kCopying;
      const int piece = e % (units / 8), r = e / (units / 8) % kRows, m = e / (units / 8) / kRows;
      const int64_t u = first_unit + piece * 8;
      piece_left[i] = static_cast<int>(hidden - u);
      piece_row[i] = m < Is::kGates && u < hidden ? r : kRows;
      piece_at[i] = base + Is::kSlices + (m * kRows + r) * Is::kSliceRow + piece * 16;
      piece_from[i] = static_cast<const char*>(args.products) +
                      2 * (d * args.product_direction + (first_row + r) * args.product_row +
                           m * args.product_gate + u);
      piece_to[i] = static_cast<char*>(args.gates) +
                    2 * (((d * all_rows + first_row + r) * Is::kGates + m) * hidden + u);
    }
#pragma unroll
    for (int i = 0; i < Is::kQuads; ++i) {
      const int e = thread + i * Is::kCopying, quad = e % (units / 4), r = e / (units / 4);
      const int64_t u = first_unit + quad * 4;
      quad_left[i] = static_cast<int>(hidden - u);
      quad_row[i] = r < kRows && u < hidden ? r : kRows;
      quad_at[i] = base + Is::kStaged + (quad / 4 * tiles + r / 8) * 32 * stride +
                   quad % 4 * 8 * stride + r % 8 * 8;
      quad_to[i] = static_cast<char*>(args.output) +
                   2 * ((first_row + r) * args.output_row + d * hidden + u);
    }
  }

  __device__ __forceinline__ int time(int s) const {
    return group.direction == 0 ? s : static_cast<int>(args.sizes.steps) - 1 - s;
  }

  __device__ __forceinline__ void fetch(int s) const {
    if (s < args.sizes.steps) {
      const int active = group.rows.active(time(s));
      const int64_t step = group.rows.start(time(s)) * static_cast<int>(args.product_row) * 2;
      const int slice = s % Is::kDepth * Is::kSliceBytes;
#pragma unroll
      for (int i = 0; i < Is::kPieces; ++i) {
        if (piece_row[i] < active) ptx::copy16_async(piece_at[i] + slice, piece_from[i] + step);
      }
    }
    ptx::commit_copies();
  }

  // The first steps; the first one is there when all copying threads have returned.
  __device__ __forceinline__ void begin() const {
    for (int s = 0; s < Is::kAhead; ++s) fetch(s);
    ptx::wait_copies<Is::kAhead - 1>();
  }

  // Before the barrier of step s: what step s + 1 reads is there.
  __device__ __forceinline__ void before() const { ptx::wait_copies<Is::kAhead - 2>(); }

  // After the barrier of step s.
  __device__ __forceinline__ void after(int s) const {
    const int active = group.rows.active(time(s));
    const int64_t start = group.rows.start(time(s));
    const int64_t output_step = start * static_cast<int>(args.output_row) * 2;
#pragma unroll
    for (int i = 0; i < Is::kQuads; ++i) {
      if (quad_row[i] >= active) continue;
      store_four(quad_to[i] + output_step, ptx::load8(quad_at[i] + (s & 1) * Is::kStagedBytes),
                 quad_left[i], vector);
    }
    if (args.gates != nullptr) {
      const int64_t step = start * (Is::kGates * static_cast<int>(args.sizes.hidden)) * 2;
      const int slice = s % Is::kDepth * Is::kSliceBytes;
#pragma unroll
      for (int i = 0; i < Is::kPieces; ++i) {
        if (piece_row[i] >= active) continue;
        store_eight(piece_to[i] + step, ptx::load16(piece_at[i] + slice), piece_left[i], vector);
      }
    }
    fetch(s + Is::kAhead);
  }
};

}  // namespace treadle
