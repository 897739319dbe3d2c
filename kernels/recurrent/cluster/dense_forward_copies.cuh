// Copies between global and shared memory in the forward dense cluster kernel. The threads load
// input products into stages some steps ahead, and store the output and the gates.
#pragma once

#include "kernels/recurrent/cluster/dense.cuh"

namespace treadle {

// A thread's copies. It fetches 16-byte pieces of input products into a stage, and stores these
// pieces again once gates have overwritten the products. It also stores 8-byte pieces of h to the
// output.
template <class L, int first_input>
struct DenseForwardCopies {
  static constexpr int kPieces = shapes::ceil_div(L::kFetches, L::kThreads);
  static constexpr int kStores = shapes::ceil_div(L::kQuads, L::kThreads);
  const char* piece_from[kPieces];
  char* piece_to[kPieces];
  uint32_t piece_at[kPieces];
  bool fetches[kPieces], stores[kPieces];
  char* quad_to[kStores];
  uint32_t quad_at[kStores];
  bool quads[kStores];
  int64_t from_step, to_step, output_step;

  __device__ __forceinline__ DenseForwardCopies(const PersistentForward& args, const Group& group,
                                                uint32_t base, int first_unit) {
    const int64_t hidden = args.sizes.hidden, batch = args.sizes.batch, d = group.direction;
    const int64_t last = args.sizes.steps - 1, t = group.reverse == 0 ? 0 : last;
    const int64_t way = group.reverse == 0 ? 1 : -1;
    const int thread = static_cast<int>(threadIdx.x);
    from_step = way * batch * args.product_row * 2;
    to_step = way * batch * L::kGates * hidden * 2;
    output_step = way * batch * args.output_row * 2;
    keep(from_step), keep(to_step), keep(output_step);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int e = thread + i * L::kThreads, piece = e % (L::kUnits / 8);
      const int r = e / (L::kUnits / 8) % L::kRows, m = e / (L::kUnits / 8) / L::kRows;
      const int64_t u = first_unit + piece * 8, row = t * batch + group.rows.first + r;
      stores[i] = m < L::kGates && u < hidden && r < group.rows.count;
      fetches[i] = stores[i] && m >= first_input;
      piece_at[i] = base + L::kStages + (m * L::kRows + r) * L::kStageRow + piece * 16;
      piece_from[i] =
          static_cast<const char*>(args.products) +
          2 * (d * args.product_direction + row * args.product_row + m * args.product_gate + u);
      const int64_t before = d * args.sizes.steps * batch;
      piece_to[i] =
          static_cast<char*>(args.gates) + 2 * (((before + row) * L::kGates + m) * hidden + u);
    }
#pragma unroll
    for (int i = 0; i < kStores; ++i) {
      const int e = thread + i * L::kThreads, quad = e % (L::kUnits / 4), r = e / (L::kUnits / 4);
      const int64_t u = first_unit + quad * 4, row = t * batch + group.rows.first + r;
      quads[i] = r < group.rows.count && u < hidden;
      quad_at[i] = base + L::kOutgoing + (quad / 4 * L::kTiles + r / L::kStride) * L::kTileBytes +
                   quad % 4 * 8 * L::kStride + r % L::kStride * 8;
      quad_to[i] = static_cast<char*>(args.output) + 2 * (row * args.output_row + d * hidden + u);
    }
  }

  // Fetches the next step's products to a stage. Commits a group of copies even if there are none,
  // because wait_copies counts groups.
  __device__ __forceinline__ void fetch(bool any, uint32_t stage) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if (any && fetches[i]) ptx::copy16_async(piece_at[i] + stage, piece_from[i]);
      piece_from[i] += from_step;
    }
    ptx::commit_copies();
  }

  __device__ __forceinline__ void store_output(uint32_t parity) {
#pragma unroll
    for (int i = 0; i < kStores; ++i) {
      const uint2 x = ptx::load8(quad_at[i] + parity);
      if (quads[i]) *reinterpret_cast<uint2*>(quad_to[i]) = x;
      quad_to[i] += output_step;
    }
  }

  __device__ __forceinline__ void store_gates(uint32_t stage) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if (stores[i]) *reinterpret_cast<uint4*>(piece_to[i]) = ptx::load16(piece_at[i] + stage);
      piece_to[i] += to_step;
    }
  }
};

}  // namespace treadle
