// The forward pass of algorithm "warp" for any cell, with one launch per step. It is for a single
// step of few rows, where keeping weights on the chip would not pay off and a matrix product would
// use few blocks. Four warps multiply the weights of all gates of a unit by up to eight rows. Each
// thread sums over a part of K (the reduction dimension); then these sums are added, and the cell
// is computed. A block has four units, which share the loads of the rows. Twin:
// kernels/recurrent/cpu/rows_forward.h.
#pragma once

#include "kernels/common/convert.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/recurrent/cell_launchers.h"

namespace treadle {

inline constexpr int kWarpRows = 8, kWarpUnits = 4;  // per block
inline constexpr int kWarps = 4;                     // per unit
inline constexpr int kWarpVector = 4;                // elements per load of a thread
inline constexpr int kLanes = 32;

// Multiplies this thread's part of row r by row m of the weights, and adds the product to the sum
// of gate first + m and row r. Missing rows read the last row.
template <int first, int gates, class T, int n, class acc = acc_t<T>>
__device__ __forceinline__ void add_products(const T* const (&weights)[gates], const T* rows,
                                             int64_t row_stride, int row_count, int64_t depth,
                                             acc (&sums)[kLanes], Constant<int, n>) {
  constexpr int kThreads = kWarps * kLanes;
  for (int64_t k = threadIdx.x % kThreads * n; k < depth; k += kThreads * n) {
    acc weight[gates][n];
#pragma unroll
    for (int m = 0; m < gates; ++m) load_vector<T>(weights[m], k, weight[m]);
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      acc x[n];
      load_vector<T>(rows, (r < row_count ? r : row_count - 1) * row_stride + k, x);
#pragma unroll
      for (int m = 0; m < gates; ++m) {
#pragma unroll
        for (int e = 0; e < n; ++e) sums[(first + m) * kWarpRows + r] += weight[m][e] * x[e];
      }
    }
  }
}

// Returns to lane l the sum of value l over the warp. Each round halves the number of values and of
// lanes that remain to be summed.
template <int half = kLanes / 2, class acc>
__device__ __forceinline__ acc sum_to_lanes(acc (&values)[kLanes]) {
  const bool upper = (threadIdx.x & half) != 0;
#pragma unroll
  for (int i = 0; i < half; ++i) {
    const acc sent = upper ? values[i] : values[i + half];
    const acc kept = upper ? values[i + half] : values[i];
    values[i] = kept + __shfl_xor_sync(~0u, sent, half);
  }
  if constexpr (half > 1) return sum_to_lanes<half / 2>(values);
  return values[0];
}

// Computes the cell of one unit of row b.
template <class Cell, class T, class acc = acc_t<T>>
__device__ __forceinline__ void finish_unit(const FusedForward& args, int64_t b, int64_t unit,
                                            acc (&gates)[Cell::kGates]) {
  constexpr int kGates = Cell::kGates, kFirstInput = kGates - Cell::kInputGates;
  const RecurrenceForward& layer = args.layer;
  const int64_t row = args.step.start + b, state = b * layer.hidden + unit;
  const auto at = [](const void* data, int64_t i) { return widen(static_cast<const T*>(data)[i]); };
#pragma unroll
  for (int m = 0; m < kGates; ++m) {
    if (layer.bias_ih != nullptr && m >= kFirstInput) {
      gates[m] += at(layer.bias_ih, (m - kFirstInput) * layer.hidden + unit);
    }
    if (layer.bias_hh != nullptr && m < Cell::kStateGates) {
      gates[m] += at(layer.bias_hh, Cell::weight_block(m) * layer.hidden + unit);
    }
    if (layer.gates != nullptr) {
      static_cast<T*>(layer.gates)[(row * kGates + m) * layer.hidden + unit] =
          Narrow<T>::from(gates[m]);
    }
  }
  const void* const old_c = layer.first_c != nullptr ? layer.first_c : layer.c;
  const auto next = Cell::forward(gates, static_cast<const acc*>(old_c)[state]);
  T h = Narrow<T>::from(next.new_h);
  acc c = next.new_cell;
  static_cast<T*>(layer.output)[row * layer.output_stride + unit] = h;
  // A row that resets before the next step replaces its state.
  if (starts_anew(layer.resets, args.next, b)) {
    const int64_t from = reset_row(layer.resets, args.next, b) * layer.hidden + unit;
    h = layer.resets.h != nullptr ? static_cast<const T*>(layer.resets.h)[from] : T{};
    c = layer.resets.c != nullptr ? static_cast<const acc*>(layer.resets.c)[from] : acc(0);
  }
  static_cast<T*>(b < args.next.rows ? args.next_h : layer.h)[state] = h;
  static_cast<acc*>(layer.c)[state] = c;
}

// n is the number of elements of a vector if all rows consist of whole vectors, and 1 otherwise.
template <class Cell, class T, int n>
__global__ void __launch_bounds__(kWarpUnits * kWarps * kLanes)
    warp_forward(const __grid_constant__ FusedForward args, uint32_t row_groups) {
  begin_kernel();
  using acc = acc_t<T>;
  constexpr int kGates = Cell::kGates, kFirstInput = kGates - Cell::kInputGates;
  static_assert(kGates * kWarpRows <= kLanes, "a lane for each sum");
  const int in_block = threadIdx.x / (kWarps * kLanes);
  const int64_t hidden = args.layer.hidden;
  const int64_t own = int64_t{blockIdx.x / row_groups} * kWarpUnits + in_block;
  const int64_t unit = own < hidden ? own : hidden - 1;  // beyond hidden: computed but not stored
  const int64_t first = int64_t{blockIdx.x % row_groups} * kWarpRows;
  const int64_t left = args.step.rows - first;
  const int count = left < kWarpRows ? static_cast<int>(left) : kWarpRows;
  const T *of_input[Cell::kInputGates], *of_h[Cell::kStateGates];
#pragma unroll
  for (int m = 0; m < Cell::kInputGates; ++m) {
    of_input[m] = static_cast<const T*>(args.weight_ih) + (m * hidden + unit) * args.input_size;
  }
#pragma unroll
  for (int m = 0; m < Cell::kStateGates; ++m) {
    of_h[m] =
        static_cast<const T*>(args.weight_hh) + (Cell::weight_block(m) * hidden + unit) * hidden;
  }
  acc sums[kLanes] = {};
  const auto* input =
      static_cast<const T*>(args.input) + (args.step.start + first) * args.input_row;
  add_products<kFirstInput>(of_input, input, args.input_row, count, args.input_size, sums,
                            Constant<int, n>());
  add_products<0>(of_h, static_cast<const T*>(args.now_h) + first * hidden, hidden, count, hidden,
                  sums, Constant<int, n>());
  __shared__ acc parts[kWarpUnits][kWarps][kLanes];
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes % kWarps;
  parts[in_block][warp][lane] = sum_to_lanes(sums);
  __syncthreads();
  if (warp != 0 || lane >= count || own >= hidden) return;
  acc gates[kGates] = {};
#pragma unroll
  for (int m = 0; m < kGates; ++m) {
#pragma unroll
    for (int w = 0; w < kWarps; ++w) gates[m] += parts[in_block][w][m * kWarpRows + lane];
  }
  finish_unit<Cell, T>(args, first + lane, unit, gates);
}

template <class Kind>
cudaError_t launch_warp_forward(const FusedForward& all, cudaStream_t stream) {
  return visit_floating(all.layer.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using Cell = typename Kind::template Cell<acc_t<T>>;
    const bool vectors = all.layer.hidden % kWarpVector == 0 && all.input_size % kWarpVector == 0;
    return each_fused_step(all, cudaSuccess, [&](const FusedForward& args) {
      const int64_t groups = ceil_div(args.step.rows, int64_t{kWarpRows});
      const int64_t blocks = groups * ceil_div(args.layer.hidden, int64_t{kWarpUnits});
      const LaunchShape shape = {
          static_cast<unsigned>(blocks), 1,        1, kWarpUnits * kWarps * kLanes, 0,
          vectors ? kWarpVector : 1,     kWarpRows};
      return launch(vectors ? warp_forward<Cell, T, kWarpVector> : warp_forward<Cell, T, 1>, shape,
                    stream, args, static_cast<uint32_t>(groups));
    });
  });
}

}  // namespace treadle
