// The gradients of one step of a cell that are products with grad_gates, for few rows, in one
// launch. If cuBLAS computed them, each step would need four products and a sum, each with few
// blocks. Both sides of a cell, input and h, have a weight [gates * H, width]:
//   grad_weight = grad_gates^T x, grad_bias = the sum of grad_gates over the rows
//   grad_x = grad_gates weight
#include "kernels/common/convert.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/recurrent/cell_step/launchers.h"

namespace treadle {
namespace {

constexpr int kThreads = 256, kLanes = 32, kWarps = kThreads / kLanes;
constexpr int kVector = 4;
constexpr int kRows = 8;  // of grad_x, per block
// grad_x: this many lanes compute columns, and the others of the warp other gates.
constexpr int kColumnLanes = 8, kSlices = kThreads / kColumnLanes;

struct Side {
  const void *weight, *x, *add;  // `add` [B, width] is added to grad_x; or null
  void *grad_weight, *grad_bias, *grad_x;
  int64_t x_stride, width;
  int64_t gates, first;  // the columns of grad_gates are first to first + gates - 1
  int64_t shift;         // the row of the weight is this much lower than the column, modulo gates
  uint32_t x_blocks, weight_blocks;
};

struct Sides {
  const void* grad_gates;
  int64_t rows, stride;  // of grad_gates
  Side side[2];

  // The row of the weight for a gate, which counts from `first`.
  static __device__ __forceinline__ int64_t weight_row(const Side& side, int64_t gate) {
    return gate < side.shift ? gate - side.shift + side.gates : gate - side.shift;
  }
};

// grad_x of eight rows and kColumnLanes * n columns. Each slice of threads sums over every
// kSlices-th gate.
template <class T, int n, class acc = acc_t<T>>
__device__ __forceinline__ void gradients_of_x(const Sides& args, const Side& side,
                                               uint32_t block) {
  constexpr int kColumns = kColumnLanes * n;
  const auto column_blocks = static_cast<uint32_t>(ceil_div(side.width, int64_t{kColumns}));
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  const int64_t first_column = int64_t{block % column_blocks} * kColumns;
  const int64_t column = first_column + threadIdx.x % kColumnLanes * n;
  const int64_t first_row = int64_t{block / column_blocks} * kRows;
  const int64_t left = args.rows - first_row;
  const int count = left < kRows ? static_cast<int>(left) : kRows;
  const T* const grads =
      static_cast<const T*>(args.grad_gates) + first_row * args.stride + side.first;
  acc sums[kRows][n] = {};
  if (column < side.width) {
#pragma unroll 2
    for (int64_t gate = threadIdx.x / kColumnLanes; gate < side.gates; gate += kSlices) {
      acc weight[n];
      load_vector<T>(side.weight, Sides::weight_row(side, gate) * side.width + column, weight);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const acc grad = widen(grads[(r < count ? r : count - 1) * args.stride + gate]);
#pragma unroll
        for (int e = 0; e < n; ++e) sums[r][e] += grad * weight[e];
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int e = 0; e < n; ++e) {
      for (int other = kColumnLanes; other < kLanes; other *= 2) {
        sums[r][e] += __shfl_xor_sync(~0u, sums[r][e], other);
      }
    }
  }
  __shared__ acc parts[kWarps][kRows][kColumns];
  if (lane < kColumnLanes) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int e = 0; e < n; ++e) parts[warp][r][lane * n + e] = sums[r][e];
    }
  }
  __syncthreads();
  const int r = static_cast<int>(threadIdx.x) / kColumns, at = threadIdx.x % kColumns;
  const int64_t own = first_column + at;
  if (r >= count || own >= side.width) return;
  acc sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += parts[w][r][at];
  const int64_t to = (first_row + r) * side.width + own;
  if (side.add != nullptr) sum += widen(static_cast<const T*>(side.add)[to]);
  static_cast<T*>(side.grad_x)[to] = Narrow<T>::from(sum);
}

// grad_weight of kWarps * n gates and kLanes * n columns, and grad_bias. A thread computes n gates
// and n columns.
template <class T, int n, class acc = acc_t<T>>
__device__ __forceinline__ void gradients_of_weight(const Sides& args, const Side& side,
                                                    uint32_t block) {
  constexpr int kColumns = kLanes * n;
  const auto column_blocks = static_cast<uint32_t>(ceil_div(side.width, int64_t{kColumns}));
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  const int64_t column = int64_t{block % column_blocks} * kColumns + lane * n;
  const int64_t gate = (int64_t{block / column_blocks} * kWarps + warp) * n;
  const bool any = column < side.width && side.grad_weight != nullptr;
  if (gate >= side.gates) return;
  acc sums[n][n] = {}, total[n] = {};
#pragma unroll 4
  for (int64_t b = 0; b < args.rows; ++b) {
    acc grads[n], x[n] = {};
    load_vector<T>(args.grad_gates, b * args.stride + side.first + gate, grads);
    if (any) load_vector<T>(side.x, b * side.x_stride + column, x);
#pragma unroll
    for (int g = 0; g < n; ++g) {
      total[g] += grads[g];
#pragma unroll
      for (int e = 0; e < n; ++e) sums[g][e] += grads[g] * x[e];
    }
  }
  // The n gates are adjacent in the weight, too, because n divides H.
  const int64_t row = Sides::weight_row(side, gate);
#pragma unroll
  for (int g = 0; g < n; ++g) {
    if (any) store_vector<T>(side.grad_weight, (row + g) * side.width + column, sums[g]);
  }
  if (column == 0 && side.grad_bias != nullptr) store_vector<T>(side.grad_bias, row, total);
}

template <class T, int n>
__global__ void __launch_bounds__(kThreads)
    cell_step_gradients(const __grid_constant__ Sides args) {
  begin_kernel();
  uint32_t block = blockIdx.x;
  // Blocks for grad_x come first, because they take longest.
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    if (block < args.side[s].x_blocks) return gradients_of_x<T, n>(args, args.side[s], block);
    block -= args.side[s].x_blocks;
  }
  const int s = block < args.side[0].weight_blocks ? 0 : 1;
  if (s == 1) block -= args.side[0].weight_blocks;
  gradients_of_weight<T, n>(args, args.side[s], block);
}

template <class T, int n>
cudaError_t run(Sides args, cudaStream_t stream) {
  uint32_t blocks = 0;
  for (Side& side : args.side) {
    if (side.grad_x != nullptr) {
      side.x_blocks = static_cast<uint32_t>(ceil_div(side.width, int64_t{kColumnLanes * n}) *
                                            ceil_div(args.rows, int64_t{kRows}));
    }
    if (side.grad_weight != nullptr || side.grad_bias != nullptr) {
      side.weight_blocks = static_cast<uint32_t>(ceil_div(side.width, int64_t{kLanes * n}) *
                                                 ceil_div(side.gates, int64_t{kWarps * n}));
    }
    blocks += side.x_blocks + side.weight_blocks;
  }
  if (blocks == 0) return cudaSuccess;
  return launch(cell_step_gradients<T, n>, {blocks, 1, 1, kThreads, 0, n, kRows}, stream, args);
}

}  // namespace

cudaError_t launch_cell_step_gradients(const CellStepGradients& args, cudaStream_t stream) {
  const CellInfo& cell = cell_info(args.sizes.cell);
  const int64_t hidden = args.sizes.hidden, features = args.sizes.features;
  const auto gates = [&](int count) { return count * hidden; };
  const Sides sides = {
      args.grad_gates,
      args.sizes.rows,
      gates(cell.gates),
      {{args.weight_ih, args.input.data, nullptr, args.grad_weight_ih, args.grad_bias_ih,
        args.grad_input, args.input.stride, features, gates(cell.input_gates),
        gates(cell.input_first), 0, 0, 0},
       {args.weight_hh, args.h.data, args.add_to_h, args.grad_weight_hh, args.grad_bias_hh,
        args.grad_h, args.h.stride, hidden, gates(cell.state_gates), gates(cell.state_first),
        gates(cell.torch_shift), 0, 0}}};
  const bool vectors = hidden % kVector == 0 && features % kVector == 0;
  return visit_floating(args.sizes.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    return vectors ? run<T, kVector>(sides, stream) : run<T, 1>(sides, stream);
  });
}

}  // namespace treadle
