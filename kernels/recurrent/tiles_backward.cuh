// Algorithm "tiles", backward, for any cell in half types (tiles.cuh): a step in one launch, which
// multiplies the gradients of the gates of the step before it by W_hh, and one launch more for the
// gradients of the first states. A slice is 64 or 128 units. Twin:
// kernels/recurrent/cpu/rows_backward.h.
#pragma once

#include "kernels/recurrent/tiles.cuh"

namespace treadle {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// What the cell of a piece reads beside the sums. Loads have no condition, as forward.
template <class Cell, class T>
struct BackwardPiece {
  Vector<T, kLoaded> gates[Cell::kGates], grad_output;
  Vector<float, kLoaded> old_cell, grad_c;

  __device__ __forceinline__ void load(const TilesBackward& args, int64_t b, int64_t unit) {
    const RecurrenceBackward& layer = args.layer;
    if (b >= args.step.rows) b = 0;
    const int64_t row = args.step.start + b, hidden = layer.hidden;
#pragma unroll
    for (int m = 0; m < Cell::kGates; ++m) {
      gates[m] = eight_once<T>(layer.gates, (row * Cell::kGates + m) * hidden + unit);
    }
    const bool any = layer.grad_output.data != nullptr;
    grad_output = eight_once<T>(any ? layer.grad_output.data : layer.gates,
                                any ? row * layer.grad_output.row_stride + unit : unit);
    old_cell = eight_once<float>(layer.c_states, row * hidden + unit);
    grad_c = eight_at<float>(layer.grad_c, b * hidden + unit);
  }
};

// The cell of eight units of row b.
template <class Cell, class T, int groups>
__device__ __forceinline__ void finish_grads(const TilesBackward& args, int64_t b, int64_t unit,
                                             int g, int piece, const BackwardPiece<Cell, T>& loaded,
                                             const float (&c)[32 * groups]) {
  constexpr int kGates = Cell::kGates;
  const RecurrenceBackward& layer = args.layer;
  const RecurrenceStep &step = args.step, &last = layer.last;
  const bool given = b < last.rows, runs = b < step.rows;
  if (!given && !runs) return;
  const int64_t row = step.start + b, hidden = layer.hidden, state = b * hidden + unit;
  auto* const all_grad_h = static_cast<float*>(const_cast<void*>(layer.grad_h.data));
  float grad_h[kLoaded], grad_c[kLoaded];
  // Rows that the step before did not have are in their first step: their product is of others'.
  if (given) {
#pragma unroll
    for (int e = 0; e < kLoaded; ++e) grad_h[e] = c[piece_sum(g, piece, e)];
  } else {
    load_eight<float>(all_grad_h, state, grad_h);
  }
  // Where the row ends the caller cuts, as in the algorithm "step".
  if (!runs) return store_eight_of<float>(all_grad_h, state, grad_h);
  widen(loaded.grad_c, grad_c);
  if (starts_anew(layer.resets, last, b)) {
    const int64_t to = (last.start + b) * hidden + unit;
    if (layer.resets.grad_h != nullptr) store_eight_of<float>(layer.resets.grad_h, to, grad_h);
    if (layer.resets.grad_c != nullptr) store_eight_of<float>(layer.resets.grad_c, to, grad_c);
#pragma unroll
    for (int e = 0; e < kLoaded; ++e) grad_h[e] = grad_c[e] = 0;
  }
  float gates[kGates][kLoaded], old_cell[kLoaded], grad_out[kLoaded] = {};
#pragma unroll
  for (int m = 0; m < kGates; ++m) widen(loaded.gates[m], gates[m]);
  widen(loaded.old_cell, old_cell);
  if (layer.grad_output.data != nullptr) widen(loaded.grad_output, grad_out);
#pragma unroll
  for (int e = 0; e < kLoaded; ++e) {
    float own[kGates];
#pragma unroll
    for (int m = 0; m < kGates; ++m) own[m] = gates[m][e];
    const auto grad = Cell::backward(own, old_cell[e], grad_h[e] + grad_out[e], grad_c[e]);
    grad_c[e] = grad.old_cell;
#pragma unroll
    for (int m = 0; m < kGates; ++m) gates[m][e] = grad.gates[m];
  }
  store_eight_of<float>(layer.grad_c, state, grad_c);
#pragma unroll
  for (int m = 0; m < kGates; ++m) {
    store_eight_of<T>(layer.grad_gates, (row * kGates + m) * hidden + unit, gates[m]);
  }
}

#endif

template <class Cell, class T, int groups>
__global__ void __launch_bounds__(kTileThreads, 1)
    tiles_backward(const __grid_constant__ TilesBackward args,
                   const __grid_constant__ CUtensorMap grads,
                   const __grid_constant__ CUtensorMap weight, const TileCounts tiles) {
  begin_kernel();
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  // As forward. A piece more for each group.
  constexpr int kPieces = groups * kTilePieces, kAhead = 3;
  using Piece = BackwardPiece<Cell, T>;
  const auto unit_of = [](int k, int slice) {
    return (int64_t{slice} * groups + k / kTilePieces) * kTileColumns +
           piece_column(k % kTilePieces);
  };
  const auto load = [&](Piece(&pieces)[kPieces], int k, int row, int slice) {
    pieces[k].load(args, row + piece_row(k % kTilePieces), unit_of(k, slice));
  };
  run_tiles<T, groups, Piece, kPieces>(
      grads, weight, tiles, static_cast<int>(args.layer.last.start),
      [&](int g, int slice) { return slice * groups + g; },
      [&](float (&c)[32 * groups], Piece(&pieces)[kPieces], int row, int slice) {
#pragma unroll
        for (float& sum : c) sum = 0;
#pragma unroll
        for (int k = 0; k < kAhead; ++k) load(pieces, k, row, slice);
      },
      [&](const float (&c)[32 * groups], Piece(&pieces)[kPieces], int row, int slice) {
#pragma unroll
        for (int k = 0; k < kPieces; ++k) {
          if (k + kAhead < kPieces) load(pieces, k + kAhead, row, slice);
          finish_grads<Cell, T, groups>(args, row + piece_row(k % kTilePieces), unit_of(k, slice),
                                        k / kTilePieces, k % kTilePieces, pieces[k], c);
        }
      });
#endif
}

// All steps, and the product behind the last.
template <class Cell, class T, int groups>
cudaError_t run_tiles_backward(TilesBackward args, int processors, cudaStream_t stream) {
  RecurrenceBackward& layer = args.layer;
  const int64_t hidden = layer.hidden, depth = Cell::kStateGates * hidden;
  CUtensorMap grads, weight;
  if (!encode_weights(weight, layer.dtype, args.weight_hh, hidden, depth) ||
      !encode_rows(grads, layer.dtype, layer.grad_gates, args.rows, depth, Cell::kGates * hidden)) {
    return cudaErrorNotSupported;
  }
  for (int64_t s = 0; s <= layer.step_count; ++s) {
    args.step = s < layer.step_count ? layer.steps[s] : RecurrenceStep{};
    if (args.step.rows == 0 && s < layer.step_count) continue;
    const int64_t rows = args.step.rows > layer.last.rows ? args.step.rows : layer.last.rows;
    if (rows == 0) continue;
    const TileCounts tiles = count_tiles<groups>(rows, hidden, layer.last.rows > 0 ? depth : 0);
    const cudaError_t error = launch_tiles<groups>(tiles_backward<Cell, T, groups>, tiles,
                                                   processors, stream, args, grads, weight);
    if (error != cudaSuccess) return error;
    layer.last = args.step;
  }
  return cudaSuccess;
}

template <class Kind>
cudaError_t launch_tiles_backward(const TilesBackward& args, int processors, cudaStream_t stream) {
  using Cell = typename Kind::template Cell<float>;
  const bool wide = args.layer.hidden % (2 * kTileColumns) == 0;
  if (args.layer.dtype == Dtype::kHalf) {
    return wide ? run_tiles_backward<Cell, Half, 2>(args, processors, stream)
                : run_tiles_backward<Cell, Half, 1>(args, processors, stream);
  }
  return wide ? run_tiles_backward<Cell, BFloat16, 2>(args, processors, stream)
              : run_tiles_backward<Cell, BFloat16, 1>(args, processors, stream);
}

}  // namespace treadle
