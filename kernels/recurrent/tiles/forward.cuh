// The forward pass of algorithm "tiles" (tiles/tiles.cuh) for any cell, with one launch per step. A
// tile has a slice of 64 or 32 units with all their gates. Twin:
// kernels/recurrent/cpu/rows_forward.h.
#pragma once

#include "kernels/recurrent/tiles/tiles.cuh"

namespace treadle {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <class Cell, class Stages>
inline constexpr int kTileSums = Stages::kSums * Cell::kGates;  // per thread

// Initialises sums with the biases of their gates.
template <class Cell, class Stages>
__device__ __forceinline__ void begin_gates(const RecurrenceForward& args, int64_t first_unit,
                                            float (&sums)[kTileSums<Cell, Stages>]) {
  using T = typename Stages::Element;
  constexpr int kFirstInput = Cell::kGates - Cell::kInputGates;
#pragma unroll
  for (int m = 0; m < Cell::kGates; ++m) {
#pragma unroll
    for (int half = 0; half < Stages::kHalves; ++half) {
      float of_h[kLoaded] = {}, of_input[kLoaded] = {};
      const int64_t u = first_unit + piece_column<Stages>(half);
      if (args.bias_hh != nullptr && m < Cell::kStateGates) {
        load_vector<T>(args.bias_hh, Cell::weight_block(m) * args.hidden + u, of_h);
      }
      if (args.bias_ih != nullptr && m >= kFirstInput) {
        load_vector<T>(args.bias_ih, (m - kFirstInput) * args.hidden + u, of_input);
      }
#pragma unroll
      for (int e = 0; e < kLoaded; ++e) {
        sums[piece_sum<Stages>(m, half, e)] =
            sums[piece_sum<Stages>(m, half + Stages::kHalves, e)] = of_input[e] + of_h[e];
      }
    }
  }
}

// Computes the cell of eight units of row b; `cell` is c before the step.
template <class Cell, class Stages>
__device__ __forceinline__ void finish_units(const FusedForward& args, int64_t b, int64_t unit,
                                             int piece, float (&cell)[kLoaded],
                                             const float (&sums)[kTileSums<Cell, Stages>]) {
  using T = typename Stages::Element;
  constexpr int kGates = Cell::kGates;
  const RecurrenceForward& layer = args.layer;
  // Four lanes have the same rows.
  const unsigned lanes = __ballot_sync(~0u, b < args.step.rows);
  if (b >= args.step.rows) return;
  const int64_t row = args.step.start + b, hidden = layer.hidden, state = b * hidden + unit;
  float h[kLoaded];
#pragma unroll
  for (int e = 0; e < kLoaded; ++e) {
    float gates[kGates];
#pragma unroll
    for (int m = 0; m < kGates; ++m) gates[m] = sums[piece_sum<Stages>(m, piece, e)];
    const auto next = Cell::forward(gates, cell[e]);
    cell[e] = next.new_cell;
    h[e] = next.new_h;
  }
  if (layer.gates != nullptr) {
#pragma unroll
    for (int m = 0; m < kGates; ++m) {
      float gate[kLoaded];
#pragma unroll
      for (int e = 0; e < kLoaded; ++e) gate[e] = sums[piece_sum<Stages>(m, piece, e)];
      store_columns<T, true>(layer.gates, (row * kGates + m) * hidden + unit, lanes, gate);
    }
  }
  store_columns<T, true>(layer.output, row * layer.output_stride + unit, lanes, h);
  // A row that resets before the next step replaces its state.
  if (starts_anew(layer.resets, args.next, b)) {
    const int64_t from = reset_row(layer.resets, args.next, b) * hidden + unit;
#pragma unroll
    for (int e = 0; e < kLoaded; ++e) h[e] = cell[e] = 0;
    if (layer.resets.h != nullptr) load_vector<T>(layer.resets.h, from, h);
    if (layer.resets.c != nullptr) load_vector<float>(layer.resets.c, from, cell);
  }
  store_columns<T, false>(b < args.next.rows ? args.next_h : layer.h, state, lanes, h);
  store_by_quads<false>(layer.c, state, lanes, cell);
}

#endif

template <class Cell, class Stages>
__global__ void __launch_bounds__(kTileThreads, 1)
    tiles_forward(const __grid_constant__ FusedForward args,
                  const __grid_constant__ CUtensorMap input,
                  const __grid_constant__ CUtensorMap weight_ih,
                  const __grid_constant__ CUtensorMap h,
                  const __grid_constant__ CUtensorMap weight_hh, const TileCounts tiles) {
  // Except in the first step, the previous launch is the previous step, which has waited for the
  // kernels that write the input and the weights.
  if (!args.follows) begin_kernel();
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  static_assert(Cell::kInputGates == Stages::kGroups && Cell::kStateGates == Stages::kGroups,
                "both products have stages of one size");
  constexpr int kFirstInput = Cell::kGates - Cell::kInputGates;
  extern __shared__ char shared[];
  const TileMemory<Stages> memory(shared);
  if (threadIdx.x == 0) init_tile_barriers(memory);
  ptx::sync_cluster();
  const int rank = static_cast<int>(ptx::block_in_cluster());
  const int warpgroup = threadIdx.x / kWarpgroup, count = tiles.row_pairs * tiles.slices;
  const int first = blockIdx.x / kTileBlocks, each = gridDim.x / kTileBlocks;
  if (warpgroup == kTileConsumers) {
    ptx::setmaxnreg_dec<40>();
    if (threadIdx.x % kWarpgroup == 0) {
      ptx::Ring<Stages::kCount> turn;
      for (int tile = first; tile < count; tile += each) {
        const int slice = tile % tiles.slices;
        const int row = (tile / tiles.slices * kTileBlocks + rank) * kTileRows;
        const bool any = row < args.step.rows;
        load_stages(memory, turn, input, weight_ih, tiles.of_input,
                    static_cast<int>(args.step.start) + row, any, rank,
                    [&](int g) { return g * tiles.slices + slice; });
        if (args.follows && tile == first) begin_kernel();
        load_stages(memory, turn, h, weight_hh, tiles.of_h, row, any, rank,
                    [&](int g) { return Cell::weight_block(g) * tiles.slices + slice; });
      }
    }
  } else {
    ptx::setmaxnreg_inc<232>();
    const int of_thread = warpgroup * 64 + threadIdx.x / kWarp % 4 * 16 + threadIdx.x % kWarp / 4;
    TileReader<Stages> reader{memory, warpgroup};
    for (int tile = first; tile < count; tile += each) {
      const int row = (tile / tiles.slices * kTileBlocks + rank) * kTileRows + of_thread;
      const int64_t unit = int64_t{tile % tiles.slices} * Stages::kColumns;
      float sums[kTileSums<Cell, Stages>];
      begin_gates<Cell, Stages>(args.layer, unit, sums);
      reader.template multiply<kFirstInput, Cell::kStateGates - kFirstInput>(tiles.of_input, sums);
      // The input product must end before the sums of gates without an input product are used.
      // Otherwise the compiler would make every wgmma wait.
      if constexpr (kFirstInput != 0) reader.finish();
      if (args.follows && tile == first) begin_kernel();
      // c is loaded before the product, which hides the latency. Missing rows read the first row,
      // because a conditional load would occupy its registers during all tiles.
      float c[Stages::kPieces][kLoaded];
#pragma unroll
      for (int piece = 0; piece < Stages::kPieces; ++piece) {
        const int64_t b = row + piece_row<Stages>(piece);
        load_vector<float>(
            args.layer.c,
            (b < args.step.rows ? b : 0) * args.layer.hidden + unit + piece_column<Stages>(piece),
            c[piece]);
      }
      reader.template multiply<0, kFirstInput>(tiles.of_h, sums);
      reader.finish();
#pragma unroll
      for (int piece = 0; piece < Stages::kPieces; ++piece) {
        finish_units<Cell, Stages>(args, row + piece_row<Stages>(piece),
                                   unit + piece_column<Stages>(piece), piece, c[piece], sums);
      }
    }
  }
  // No block may exit while the other block of the cluster still writes to its shared memory.
  __syncwarp();
  ptx::sync_cluster();
#endif
}

// Launches all steps.
template <class Cell, class Stages>
cudaError_t run_tile_steps(const FusedForward& args, int processors, cudaStream_t stream) {
  const RecurrenceForward& layer = args.layer;
  const int64_t hidden = layer.hidden, width = args.input_size;
  CUtensorMap input, weight_ih, h[2], weight_hh;
  bool encoded =
      encode_rows<Stages>(input, layer.dtype, args.input, args.rows, width, args.input_row) &&
      encode_weights<Stages>(weight_ih, layer.dtype, args.weight_ih, Cell::kInputGates * hidden,
                             width) &&
      encode_weights<Stages>(weight_hh, layer.dtype, args.weight_hh, Cell::kStateGates * hidden,
                             hidden);
  for (int i = 0; i < 2; ++i) {
    encoded = encoded &&
              encode_rows<Stages>(h[i], layer.dtype, args.states[i], layer.batch, hidden, hidden);
  }
  if (!encoded) return cudaErrorNotSupported;
  const cudaError_t error =
      cudaFuncSetAttribute(tiles_forward<Cell, Stages>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           Stages::kSharedBytes);
  if (error != cudaSuccess) return error;
  return each_fused_step(args, cudaSuccess, [&](const FusedForward& step) {
    return launch_tiles<Stages>(
        tiles_forward<Cell, Stages>, count_tiles<Stages>(step.step.rows, hidden, width), processors,
        stream, step, input, weight_ih, h[step.now_h == args.states[0] ? 0 : 1], weight_hh);
  });
}

template <class Cell, class T>
cudaError_t run_tiles_forward(const FusedForward& args, int processors, cudaStream_t stream) {
  constexpr int groups = Cell::kStateGates;
  const RecurrenceForward& layer = args.layer;
  const int units = plan_tiles(groups, sizeof(T) / 2, layer.batch, layer.hidden, processors).units;
  return units == 64 ? run_tile_steps<Cell, TileStages<T, groups, 64>>(args, processors, stream)
                     : run_tile_steps<Cell, TileStages<T, groups, 32>>(args, processors, stream);
}

template <class Kind>
cudaError_t launch_tiles_forward(const FusedForward& args, int processors, cudaStream_t stream) {
  using Cell = typename Kind::template Cell<float>;
  using HalfCell = typename Kind::template HalfCell<float>;
  switch (args.layer.dtype) {
    case Dtype::kHalf:
      return run_tiles_forward<HalfCell, Half>(args, processors, stream);
    case Dtype::kBFloat16:
      return run_tiles_forward<HalfCell, BFloat16>(args, processors, stream);
    default:
      return run_tiles_forward<Cell, float>(args, processors, stream);
  }
}

}  // namespace treadle
