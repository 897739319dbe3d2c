// Algorithm "tiles", forward, for any cell in half types (tiles.cuh): a step in one launch. A slice
// is 64 units with all gates that h is multiplied for. Twin: kernels/recurrent/cpu/rows_forward.h.
#pragma once

#include "kernels/recurrent/tiles.cuh"

namespace treadle {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// What the cell of a piece reads beside the sums. Rows that are none read the first: a load under a
// condition would keep its registers taken through all tiles.
template <class Cell, class T>
struct ForwardPiece {
  Vector<T, kLoaded> products[Cell::kInputGates];
  Vector<float, kLoaded> c;

  __device__ __forceinline__ void load(const TilesForward& args, int64_t b, int64_t unit) {
    const RecurrenceForward& layer = args.layer;
    if (b >= args.step.rows) b = 0;
    const int64_t row = (args.step.start + b) * layer.products.row_stride;
#pragma unroll
    for (int m = 0; m < Cell::kInputGates; ++m) {
      products[m] = eight_once<T>(layer.products.data, row + m * layer.hidden + unit);
    }
    c = eight_at<float>(layer.c, b * layer.hidden + unit);
  }
};

// Sums begin with the biases of their gates.
template <class Cell, class T>
__device__ __forceinline__ void begin_gates(const RecurrenceForward& args, int64_t first_unit,
                                            float (&c)[32 * Cell::kStateGates]) {
  constexpr int kFirstInput = Cell::kGates - Cell::kInputGates;
#pragma unroll
  for (int m = 0; m < Cell::kStateGates; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float of_h[kLoaded] = {}, of_input[kLoaded] = {};
      const int64_t u = first_unit + piece_column(half);
      if (args.bias_hh != nullptr) {
        load_eight<T>(args.bias_hh, Cell::weight_block(m) * args.hidden + u, of_h);
      }
      if (args.bias_ih != nullptr && m >= kFirstInput) {
        load_eight<T>(args.bias_ih, (m - kFirstInput) * args.hidden + u, of_input);
      }
#pragma unroll
      for (int e = 0; e < kLoaded; ++e) {
        c[piece_sum(m, half, e)] = c[piece_sum(m, half + 2, e)] = of_input[e] + of_h[e];
      }
    }
  }
}

// The cell of eight units of row b.
template <class Cell, class T>
__device__ __forceinline__ void finish_units(const TilesForward& args, int64_t b, int64_t unit,
                                             int piece, const ForwardPiece<Cell, T>& loaded,
                                             const float (&c)[32 * Cell::kStateGates]) {
  constexpr int kGates = Cell::kGates, kFirstInput = kGates - Cell::kInputGates;
  const RecurrenceForward& layer = args.layer;
  if (b >= args.step.rows) return;
  const int64_t row = args.step.start + b, hidden = layer.hidden, state = b * hidden + unit;
  float products[Cell::kInputGates][kLoaded], bias[kLoaded] = {}, cell[kLoaded];
#pragma unroll
  for (int m = 0; m < Cell::kInputGates; ++m) widen(loaded.products[m], products[m]);
  widen(loaded.c, cell);
  // Of a gate that h has no product for.
  if (Cell::kStateGates < kGates && layer.bias_ih != nullptr) {
    load_eight<T>(layer.bias_ih, (Cell::kInputGates - 1) * hidden + unit, bias);
  }
  float gates[kGates][kLoaded], h[kLoaded];
#pragma unroll
  for (int e = 0; e < kLoaded; ++e) {
    float own[kGates];
#pragma unroll
    for (int m = 0; m < kGates; ++m) {
      own[m] =
          m < Cell::kStateGates ? c[piece_sum(m < Cell::kStateGates ? m : 0, piece, e)] : bias[e];
      if (m >= kFirstInput) own[m] += products[m - kFirstInput][e];
      gates[m][e] = own[m];
    }
    const auto next = Cell::forward(own, cell[e]);
    cell[e] = next.new_cell;
    h[e] = next.new_h;
  }
  if (layer.gates != nullptr) {
#pragma unroll
    for (int m = 0; m < kGates; ++m) {
      store_eight_once<T>(layer.gates, (row * kGates + m) * hidden + unit, gates[m]);
    }
  }
  store_eight_once<T>(layer.output, row * layer.output_stride + unit, h);
  // What the next step begins with.
  if (starts_anew(layer.resets, args.next, b)) {
    const int64_t from = reset_row(layer.resets, args.next, b) * hidden + unit;
#pragma unroll
    for (int e = 0; e < kLoaded; ++e) h[e] = cell[e] = 0;
    if (layer.resets.h != nullptr) load_eight<T>(layer.resets.h, from, h);
    if (layer.resets.c != nullptr) load_eight<float>(layer.resets.c, from, cell);
  }
  store_eight_of<T>(b < args.next.rows ? args.next_h : layer.h, state, h);
  store_eight_of<float>(layer.c, state, cell);
}

#endif

template <class Cell, class T>
__global__ void __launch_bounds__(kTileThreads, 1)
    tiles_forward(const __grid_constant__ TilesForward args, const __grid_constant__ CUtensorMap h,
                  const __grid_constant__ CUtensorMap weight, const TileCounts tiles) {
  begin_kernel();
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int groups = Cell::kStateGates;
  // Pieces that are read before the product: as many as the sums leave registers for.
  constexpr int kAhead = groups == 4 ? 2 : kTilePieces;
  using Piece = ForwardPiece<Cell, T>;
  const auto load = [&](Piece(&pieces)[kTilePieces], int piece, int row, int slice) {
    pieces[piece].load(args, row + piece_row(piece),
                       int64_t{slice} * kTileColumns + piece_column(piece));
  };
  run_tiles<T, groups, Piece, kTilePieces>(
      h, weight, tiles, /*first_row=*/0,
      [&](int g, int slice) { return Cell::weight_block(g) * tiles.slices + slice; },
      [&](float (&c)[32 * groups], Piece(&pieces)[kTilePieces], int row, int slice) {
        begin_gates<Cell, T>(args.layer, int64_t{slice} * kTileColumns, c);
#pragma unroll
        for (int piece = 0; piece < kAhead; ++piece) load(pieces, piece, row, slice);
      },
      [&](const float (&c)[32 * groups], Piece(&pieces)[kTilePieces], int row, int slice) {
#pragma unroll
        for (int piece = 0; piece < kTilePieces; ++piece) {
          if (piece + kAhead < kTilePieces) load(pieces, piece + kAhead, row, slice);
          finish_units<Cell, T>(args, row + piece_row(piece),
                                int64_t{slice} * kTileColumns + piece_column(piece), piece,
                                pieces[piece], c);
        }
      });
#endif
}

// All steps.
template <class Cell, class T>
cudaError_t run_tiles_forward(TilesForward args, int processors, cudaStream_t stream) {
  const RecurrenceForward& layer = args.layer;
  const int64_t hidden = layer.hidden, state_rows = Cell::kStateGates * hidden;
  CUtensorMap h[2], weight;
  if (!encode_weights(weight, layer.dtype, args.weight_hh, state_rows, hidden)) {
    return cudaErrorNotSupported;
  }
  for (int i = 0; i < 2; ++i) {
    if (!encode_rows(h[i], layer.dtype, args.states[i], layer.batch, hidden, hidden)) {
      return cudaErrorNotSupported;
    }
  }
  for (int64_t s = 0; s < layer.step_count; ++s) {
    args.step = layer.steps[s];
    args.next = layer.steps[s + 1];
    if (args.step.rows == 0) continue;
    const int now = args.turn;
    args.turn ^= 1;
    args.next_h = args.states[args.turn];
    const TileCounts tiles = count_tiles<1>(args.step.rows, hidden, hidden);
    const cudaError_t error = launch_tiles<Cell::kStateGates>(
        tiles_forward<Cell, T>, tiles, processors, stream, args, h[now], weight);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

template <class Kind>
cudaError_t launch_tiles_forward(const TilesForward& args, int processors, cudaStream_t stream) {
  using Cell = typename Kind::template HalfCell<float>;
  return args.layer.dtype == Dtype::kHalf
             ? run_tiles_forward<Cell, Half>(args, processors, stream)
             : run_tiles_forward<Cell, BFloat16>(args, processors, stream);
}

}  // namespace treadle
