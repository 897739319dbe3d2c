// Copies between global and shared memory in the backward dense cluster kernel. The threads load
// saved values into stages some steps ahead, and store gradients of gates.
#pragma once

#include "kernels/recurrent/cluster/dense.cuh"

namespace treadle {

// A thread's copies: 16-byte fetches of gates, of the gradient of the output and of c, each with
// its own stride, and 8-byte stores of gradients of gates.
template <class L>
struct DenseBackwardCopies {
  static constexpr int kPieces = shapes::ceil_div(L::kFetches, L::kThreads);
  static constexpr int kStores = shapes::ceil_div(L::kQuads, L::kThreads);
  const char* piece_from[kPieces];
  int64_t piece_step[kPieces];
  uint32_t piece_at[kPieces];
  bool fetches[kPieces], quads[kStores];
  char* quad_to[kStores];
  uint32_t quad_at[kStores];
  int64_t quad_step;

  __device__ __forceinline__ DenseBackwardCopies(const PersistentBackward& args, const Group& group,
                                                 uint32_t base, int first_unit) {
    constexpr int kGates = L::kGates, kRows = L::kRows;
    const int64_t hidden = args.sizes.hidden, batch = args.sizes.batch, d = group.direction;
    const int64_t last = args.sizes.steps - 1, t = group.reverse == 0 ? last : 0;
    const int64_t way = group.reverse == 0 ? -1 : 1, c_part = args.c_row / L::kCParts;
    const int thread = static_cast<int>(threadIdx.x), count = group.rows.count;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int e = thread + i * L::kThreads, of_c = e - L::kHalfFetches;
      if (of_c < 0) {
        constexpr int kEach = L::kUnits / 8;
        const int piece = e % kEach, r = e / kEach % kRows, m = e / kEach / kRows;
        const int64_t u = first_unit + piece * 8, row = t * batch + group.rows.first + r;
        const bool of_gates = m < kGates;
        const char* const gates = static_cast<const char*>(args.gates) +
                                  2 * (d * args.gate_direction + m * args.gate_gate);
        const char* const grads =
            static_cast<const char*>(args.grad_output) + 2 * d * args.grad_direction;
        const int64_t each = 2 * (of_gates ? args.gate_row : args.grad_row);
        piece_from[i] = (of_gates ? gates : grads) + row * each + 2 * u;
        piece_step[i] = way * batch * each;
        piece_at[i] = base + L::kStages + (m * kRows + r) * L::kStageRow + piece * 16;
        // Without grad_output, that part of a stage stays zero.
        fetches[i] = r < count && u < hidden && (of_gates || args.grad_output != nullptr);
      } else {
        constexpr int kEach = L::kUnits / 4;
        const int piece = of_c % kEach, r = of_c / kEach % kRows, p = of_c / kEach / kRows;
        const int64_t u = first_unit + piece * 4, row = t * batch + group.rows.first + r;
        piece_from[i] = static_cast<const char*>(args.c_states) +
                        4 * (d * args.c_direction + row * args.c_row + p * c_part + u);
        piece_step[i] = way * batch * args.c_row * 4;
        piece_at[i] = base + L::kStages + L::kCStates + (p * kRows + r) * L::kCRow + piece * 16;
        fetches[i] = p < L::kCParts && r < count && u < hidden;
      }
      keep(piece_step[i]);
    }
    quad_step = way * batch * kGates * hidden * 2;
    keep(quad_step);
#pragma unroll
    for (int i = 0; i < kStores; ++i) {
      const int e = thread + i * L::kThreads, quad = e % (L::kUnits / 4);
      const int r = e / (L::kUnits / 4) % kRows, m = e / (L::kUnits / 4) / kRows;
      const int64_t u = first_unit + quad * 4;
      const int64_t row = (d * args.sizes.steps + t) * batch + group.rows.first + r;
      quads[i] = m < kGates && r < count && u < hidden;
      quad_at[i] = base + L::kOutgoing +
                   ((m * L::kGroups + quad / 4) * L::kTiles + r / L::kStride) * L::kTileBytes +
                   quad % 4 * 8 * L::kStride + r % L::kStride * 8;
      quad_to[i] = static_cast<char*>(args.grad_gates) + 2 * ((row * kGates + m) * hidden + u);
    }
  }

  __device__ __forceinline__ void fetch(bool any, uint32_t stage) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if (any && fetches[i]) ptx::copy16_async(piece_at[i] + stage, piece_from[i]);
      piece_from[i] += piece_step[i];
    }
    ptx::commit_copies();
  }

  __device__ __forceinline__ void store(uint32_t parity) {
#pragma unroll
    for (int i = 0; i < kStores; ++i) {
      if (quads[i]) *reinterpret_cast<uint2*>(quad_to[i]) = ptx::load8(quad_at[i] + parity);
      quad_to[i] += quad_step;
    }
  }
};

// Transposes a warp's columns of W_hh, 16 rows at a time, to fragments of the A operand: rows are
// loaded 16 bytes per lane, stored in shared memory, and read from there as columns.
template <class L>
struct WeightTurn {
  static constexpr int kEach = L::kWide * 2, kLoads = 16 * kEach / kWarp;  // of 16 bytes
  uint32_t to, from;
  const uint16_t* at;
  int64_t hidden;
  int row, columns;  // `columns` is positive if this lane's 8 columns exist
  bool vector;

  // `weight` points to this warp's first column, and `columns` is the number of columns from there
  // on.
  __device__ __forceinline__ WeightTurn(uint32_t base, int lane, const uint16_t* weight,
                                        int64_t hidden, int columns)
      : to(base + lane / kEach * L::kTurnRow + lane % kEach * 16),
        // ldmatrix loads four matrices. A lane gives the address of row lane % 8 of
        // matrix lane / 8. Matrices 1 and 3 begin 8 columns later; matrices 2 and 3 begin at k + 2.
        // Rows 2q and 2q + 1 of a matrix are k = 4q and 4q + 1.
        from(base + (lane % 8 / 2 * 4 + lane % 2 + lane / 16 * 2) * L::kTurnRow +
             lane / 8 % 2 * 16),
        at(weight + lane % kEach * 8),
        hidden(hidden),
        row(lane / kEach),
        columns(columns - lane % kEach * 8),
        vector(reinterpret_cast<uintptr_t>(weight) % 16 == 0) {}

  // Stores the 16 rows from `first` on. Only `rows` of them exist; the others are zeros.
  __device__ __forceinline__ void put(int64_t first, int rows) const {
    uint4 x[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int r = row + i * (kWarp / kEach);
      const auto* const from_row = at + (first + r) * hidden;
      x[i] = {0, 0, 0, 0};
      if (r < rows && columns > 0) {
        if (vector) {
          x[i] = __ldg(reinterpret_cast<const uint4*>(from_row));
        } else {
          const uint2 low = load_four(from_row, 4, false), high = load_four(from_row + 4, 4, false);
          x[i] = {low.x, low.y, high.x, high.y};
        }
      }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      ptx::store16(to + i * (kWarp / kEach) * L::kTurnRow, x[i]);
    }
    __syncwarp();
  }

  // Returns the fragment of tile `tile`. A tile is 16 of the warp's columns.
  __device__ __forceinline__ uint4 get(int tile) const {
    return ptx::load_transposed(from + tile * 32);
  }
};

}  // namespace treadle
