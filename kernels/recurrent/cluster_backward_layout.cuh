// Of the regime "cluster", backward: where what lies in a block's shared memory, and its copies
// from and to memory.
#pragma once

#include "kernels/cluster.cuh"

namespace treadle {

template <int gates, int units, int blocks>
struct ClusterBackward {
  static constexpr int kGates = gates, kUnits = units, kHidden = units * blocks, kRows = 8;
  static constexpr int kGroups = units / 16;                             // of 16 units
  static constexpr int kWarps = units == 16 ? 4 : units == 48 ? 12 : 8;  // and parts of K
  static constexpr int kComputing = kWarp * kWarps;
  static constexpr bool kCopyWarp = units <= 32;  // as forward
  static constexpr int kThreads = kComputing + (kCopyWarp ? kWarp : 0);
  static constexpr int kCopying = kCopyWarp ? kWarp : kComputing;
  static constexpr int kChunks = gates * kHidden / 16 / kWarps;  // of 16 k, a warp
  static constexpr int kItems = units / 4 / kWarps;  // of a lane: one unit of one row each
  // Of a thread: what it sends, and what it copies: of gates and the gradient of the output, of
  // cells, and of the gradients of gates.
  static constexpr int kSends = ceil_div(gates * kHidden, kComputing);
  static constexpr int kPieces = ceil_div((gates + 1) * kRows * units / 8, kCopying);
  static constexpr int kCellPieces = ceil_div(kRows * units / 4, kCopying);
  static constexpr int kQuads = ceil_div(gates * kRows * units / 4, kCopying);
  static constexpr int kFree =
      (registers_of(kThreads) - (kCopyWarp ? 40 : 50) - 16 * kItems - 3 * kSends) / (4 * kGroups);
  static constexpr int kKept = kChunks < kFree ? kChunks : kFree;
  static constexpr int kDepth = units == 48 ? 6 : 8;  // steps of what forward saved
  static constexpr int kAhead = kDepth - 2;

  // In bytes.
  static constexpr int kStagedBytes = gates * units * kRows * 2;  // own gradients; two of them
  static constexpr int kStateBytes = blocks * kStagedBytes;       // everybody's; two of them
  static constexpr int kSliceRow = units * 2 + 16, kCellRow = units * 4 + 16;
  static constexpr int kCells = (gates + 1) * kRows * kSliceRow;  // in a slice, after gates and
  static constexpr int kSliceBytes = kCells + kRows * kCellRow;   // the gradient of the output
  static constexpr int kState = 0, kSums = kState + 2 * kStateBytes;
  static constexpr int kStaged = kSums + kWarps * units * 8 * 4;
  static constexpr int kSlices = kStaged + 2 * kStagedBytes;
  static constexpr int kWeights = kSlices + kDepth * kSliceBytes;
  static constexpr int kBarriers = kWeights + kWarps * (kChunks - kKept) * kGroups * 512;
  static constexpr int kSharedBytes = kBarriers + 2 * kWarps * 8;
  static_assert(units / 4 % kWarps == 0 && gates * kHidden / 16 % kWarps == 0);
};

// Fetches what forward saved some steps ahead, and stores gradients: the part of one of
// Is::kCopying threads. `kReady`: how many steps are there before the first.
template <class Is, int kReady>
struct BackwardCopies {
  const PersistentBackward& args;
  const Group& group;
  const bool vector;
  const char* piece_from[Is::kPieces];  // gates, or the gradient of the output
  uint32_t piece_at[Is::kPieces];
  int piece_row[Is::kPieces];
  bool of_gates[Is::kPieces];
  const char* cell_from[Is::kCellPieces];
  uint32_t cell_at[Is::kCellPieces];
  int cell_row[Is::kCellPieces];
  char* quad_to[Is::kQuads];  // gradients: four units of one gate of one row
  uint32_t quad_at[Is::kQuads];
  int quad_row[Is::kQuads], quad_left[Is::kQuads];

  __device__ __forceinline__ BackwardCopies(const PersistentBackward& args, const Group& group,
                                            uint32_t base, int first_unit, int stride, int thread)
      : args(args), group(group), vector(args.sizes.hidden % 4 == 0) {
    constexpr int units = Is::kUnits, kRows = Is::kRows, kGates = Is::kGates;
    const int64_t hidden = args.sizes.hidden, d = group.direction, first_row = group.rows.first;
    const int64_t all_rows = group.rows.start(static_cast<int>(args.sizes.steps));
    const int arrays = args.grad_output != nullptr ? kGates + 1 : kGates;
#pragma unroll
    for (int i = 0; i < Is::kPieces; ++i) {
      const int e = thread + i * Is::kCopying;
      const int piece = e % (units / 8), r = e / (units / 8) % kRows, m = e / (units / 8) / kRows;
      const int64_t u = first_unit + piece * 8, row = first_row + r;
      of_gates[i] = m < kGates;
      piece_row[i] = m < arrays && u < hidden ? r : kRows;
      piece_at[i] = base + Is::kSlices + (m * kRows + r) * Is::kSliceRow + piece * 16;
      piece_from[i] =
          m < kGates
              ? static_cast<const char*>(args.gates) +
                    2 * (d * args.gate_direction + row * args.gate_row + m * args.gate_gate + u)
              : static_cast<const char*>(args.grad_output) +
                    2 * (d * args.grad_direction + row * args.grad_row + u);
    }
#pragma unroll
    for (int i = 0; i < Is::kCellPieces; ++i) {
      const int e = thread + i * Is::kCopying, piece = e % (units / 4), r = e / (units / 4);
      const int64_t u = first_unit + piece * 4;
      cell_row[i] = r < kRows && u < hidden ? r : kRows;
      cell_at[i] = base + Is::kSlices + Is::kCells + r * Is::kCellRow + piece * 16;
      cell_from[i] = static_cast<const char*>(args.cells) +
                     4 * (d * args.cell_direction + (first_row + r) * args.cell_row + u);
    }
#pragma unroll
    for (int i = 0; i < Is::kQuads; ++i) {
      const int e = thread + i * Is::kCopying;
      const int quad = e % (units / 4), r = e / (units / 4) % kRows, m = e / (units / 4) / kRows;
      const int64_t u = first_unit + quad * 4;
      quad_left[i] = static_cast<int>(hidden - u);
      quad_row[i] = m < kGates && u < hidden ? r : kRows;
      quad_at[i] = base + Is::kStaged + (m * Is::kGroups + quad / 4) * 32 * stride +
                   quad % 4 * 8 * stride + r * 8;
      quad_to[i] = static_cast<char*>(args.grad_gates) +
                   2 * (((d * all_rows + first_row + r) * kGates + m) * hidden + u);
    }
  }

  // Direction 1 ran backward in time.
  __device__ __forceinline__ int time(int s) const {
    return group.direction == 0 ? static_cast<int>(args.sizes.steps) - 1 - s : s;
  }

  __device__ __forceinline__ void fetch(int s) const {
    if (s < args.sizes.steps) {
      const int active = group.rows.active(time(s));
      const int64_t start = group.rows.start(time(s));
      const int slice = s % Is::kDepth * Is::kSliceBytes;
      const int64_t gate_step = start * static_cast<int>(args.gate_row) * 2;
      const int64_t grad_step = start * static_cast<int>(args.grad_row) * 2;
      const int64_t cell_step = start * static_cast<int>(args.cell_row) * 4;
#pragma unroll
      for (int i = 0; i < Is::kPieces; ++i) {
        if (piece_row[i] >= active) continue;
        ptx::copy16_async(piece_at[i] + slice,
                          piece_from[i] + (of_gates[i] ? gate_step : grad_step));
      }
#pragma unroll
      for (int i = 0; i < Is::kCellPieces; ++i) {
        if (cell_row[i] < active) ptx::copy16_async(cell_at[i] + slice, cell_from[i] + cell_step);
      }
    }
    ptx::commit_copies();
  }

  __device__ __forceinline__ void begin() const {
    for (int s = 0; s < Is::kAhead; ++s) fetch(s);
    ptx::wait_copies<Is::kAhead - kReady>();
  }

  // Before the barrier of step s: what step s + 1 reads is there.
  __device__ __forceinline__ void before() const { ptx::wait_copies<Is::kAhead - 1 - kReady>(); }

  // After the barrier of step s.
  __device__ __forceinline__ void after(int s) const {
    const int active = group.rows.active(time(s));
    const int64_t step =
        group.rows.start(time(s)) * (Is::kGates * static_cast<int>(args.sizes.hidden)) * 2;
#pragma unroll
    for (int i = 0; i < Is::kQuads; ++i) {
      if (quad_row[i] >= active) continue;
      store_four(quad_to[i] + step, ptx::load8(quad_at[i] + (s & 1) * Is::kStagedBytes),
                 quad_left[i], vector);
    }
    fetch(s + Is::kAhead);
  }
};

}  // namespace treadle
