// The LLTM cell for few rows on CUDA. One launch computes the whole forward pass; another computes
// all products and sums of the backward pass. If the matrix products of so few rows were launched
// separately, each launch would have few blocks, and copies between the launches would be
// necessary. Shapes: N problems of B rows, H units, I inputs.
#include "kernels/common/convert.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/math/cells/lltm.h"
#include "kernels/recurrent/lltm_cell/launchers.h"
#include "kernels/recurrent/warp/forward.cuh"

namespace treadle {
namespace {

constexpr int kCellGates = 3;

template <class T>
__device__ __forceinline__ const T* row_of(const LltmView& view, int64_t problem, int64_t row) {
  return static_cast<const T*>(view.data) + problem * view.problem_stride + row * view.row_stride;
}

template <class T>
__device__ __forceinline__ acc_t<T> element_of(const LltmView& view, int64_t problem, int64_t row,
                                               int64_t column) {
  return widen(row_of<T>(view, problem, row)[column * view.column_stride]);
}

// ---- forward: four warps multiply a unit's weights by eight rows, like warp_forward

template <class T, class cell_t, int n>
__global__ void __launch_bounds__(kWarpUnits * kWarps * kLanes)
    lltm_few_forward(const __grid_constant__ LltmFewForward args, uint32_t row_groups) {
  begin_kernel();
  using acc = acc_t<T>;
  const LltmShape& shape = args.cell.shape;
  const int64_t problem = blockIdx.y, hidden = shape.hidden;
  const int in_block = threadIdx.x / (kWarps * kLanes);
  const int64_t own = int64_t{blockIdx.x / row_groups} * kWarpUnits + in_block;
  const int64_t unit = own < hidden ? own : hidden - 1;  // beyond hidden: computed but not stored
  const int64_t first = int64_t{blockIdx.x % row_groups} * kWarpRows;
  const int64_t left = shape.rows_per_problem - first;
  const int count = left < kWarpRows ? static_cast<int>(left) : kWarpRows;
  const T *of_h[kCellGates], *of_input[kCellGates];
#pragma unroll
  for (int m = 0; m < kCellGates; ++m) {
    of_h[m] = row_of<T>(args.weights, problem, m * hidden + unit);
    of_input[m] = of_h[m] + hidden;
  }
  acc sums[kLanes] = {};
  add_products<0>(of_h, row_of<T>(args.old_h, problem, first), args.old_h.row_stride, count, hidden,
                  sums, Constant<int, n>());
  add_products<0>(of_input, row_of<T>(args.input, problem, first), args.input.row_stride, count,
                  args.features, sums, Constant<int, n>());
  __shared__ acc parts[kWarpUnits][kWarps][kLanes];
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes % kWarps;
  parts[in_block][warp][lane] = sum_to_lanes(sums);
  __syncthreads();
  if (warp != 0 || lane >= count || own >= hidden) return;
  const int64_t row = first + lane, flat = problem * shape.rows_per_problem + row;
  acc_t<cell_t> gates[kCellGates];
#pragma unroll
  for (int m = 0; m < kCellGates; ++m) {
    acc sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += parts[in_block][w][m * kWarpRows + lane];
    // The sum is rounded first, because the backward pass reads the rounded value.
    const T stored = Narrow<T>::from(sum);
    static_cast<T*>(args.gates)[(flat * kCellGates + m) * hidden + unit] = stored;
    gates[m] = widen(stored);
    if (args.cell.bias.data != nullptr) {
      gates[m] += element_of<T>(args.cell.bias, problem, 0, m * hidden + unit);
    }
  }
  const auto next = math::LltmCell<cell_t>::forward(
      gates[0], gates[1], gates[2], element_of<cell_t>(args.cell.old_cell, problem, row, unit));
  static_cast<T*>(args.cell.new_h)[flat * hidden + unit] = Narrow<T>::from(next.new_h);
  static_cast<cell_t*>(args.cell.new_cell)[flat * hidden + unit] =
      Narrow<cell_t>::from(next.new_cell);
}

// ---- backward, from grad_gates [N, B, 3H]: blocks of 32 columns and 32 warps

constexpr int kColumns = 32, kRowsOfWarps = 32;
constexpr int kGradientThreads = kColumns * kRowsOfWarps;

// Returns an element of x = [old_h, input].
template <class T>
__device__ __forceinline__ acc_t<T> state_of(const LltmGradients& args, int64_t problem,
                                             int64_t row, int64_t column) {
  const int64_t hidden = args.shape.hidden;
  return column < hidden ? element_of<T>(args.old_h, problem, row, column)
                         : element_of<T>(args.input, problem, row, column - hidden);
}

// Computes grad_weights and grad_bias, which are sums over the rows. A warp computes one gate, and
// each lane one column of x.
template <class T>
__device__ __forceinline__ void weight_gradients(const LltmGradients& args, int64_t problem,
                                                 int64_t gate, int64_t column) {
  using acc = acc_t<T>;
  const int64_t gates = kCellGates * args.shape.hidden, rows = args.shape.rows_per_problem;
  const int64_t width = args.shape.hidden + args.features;
  const T* of_gate = static_cast<const T*>(args.grad_gates) + problem * rows * gates + gate;
  acc sum = 0, total = 0;
  if (gate >= gates) return;
#pragma unroll 8
  for (int64_t b = 0; b < rows; ++b) {
    const acc grad = widen(of_gate[b * gates]);
    total += grad;
    if (column < width && args.grad_weights != nullptr) {
      sum += grad * state_of<T>(args, problem, b, column);
    }
  }
  if (column < width && args.grad_weights != nullptr) {
    static_cast<T*>(args.grad_weights)[(problem * gates + gate) * width + column] =
        Narrow<T>::from(sum);
  }
  if (column == 0 && args.grad_bias != nullptr) {
    static_cast<T*>(args.grad_bias)[problem * gates + gate] = Narrow<T>::from(total);
  }
}

// Computes grad_old_h and grad_input of eight rows, which are sums over the gates. A warp adds
// every 32nd gate, and each lane computes one column of x.
template <class T>
__device__ __forceinline__ void state_gradients(const LltmGradients& args, int64_t problem,
                                                int64_t first, int64_t column) {
  using acc = acc_t<T>;
  __shared__ acc parts[kRowsOfWarps][kWarpRows][kColumns];
  const int lane = threadIdx.x % kColumns, warp = threadIdx.x / kColumns;
  const int64_t hidden = args.shape.hidden, gates = kCellGates * hidden;
  const int64_t rows = args.shape.rows_per_problem, width = hidden + args.features;
  const int64_t left = rows - first;
  const int count = left < kWarpRows ? static_cast<int>(left) : kWarpRows;
  const T* grads = static_cast<const T*>(args.grad_gates) + (problem * rows + first) * gates;
  acc sums[kWarpRows] = {};
  if (column < width) {
#pragma unroll 4
    for (int64_t gate = warp; gate < gates; gate += kRowsOfWarps) {
      const acc weight = widen(row_of<T>(args.weights, problem, gate)[column]);
#pragma unroll
      for (int r = 0; r < kWarpRows; ++r) {
        sums[r] += widen(grads[(r < count ? r : count - 1) * gates + gate]) * weight;
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kWarpRows; ++r) parts[warp][r][lane] = sums[r];
  __syncthreads();
  if (warp >= count || column >= width) return;
  acc sum = 0;
#pragma unroll
  for (int w = 0; w < kRowsOfWarps; ++w) sum += parts[w][warp][lane];
  const int64_t row = problem * rows + first + warp;
  if (column < hidden && args.grad_old_h != nullptr) {
    static_cast<T*>(args.grad_old_h)[row * hidden + column] = Narrow<T>::from(sum);
  }
  if (column >= hidden && args.grad_input != nullptr) {
    static_cast<T*>(args.grad_input)[row * args.features + column - hidden] = Narrow<T>::from(sum);
  }
}

// The first `of_states` blocks compute gradients of the states, each for eight rows; the others
// compute those of weights and biases.
template <class T>
__global__ void __launch_bounds__(kGradientThreads)
    lltm_few_gradients(const __grid_constant__ LltmGradients args, uint32_t column_blocks,
                       uint32_t of_states) {
  begin_kernel();
  const int64_t problem = blockIdx.y;
  const bool states = blockIdx.x < of_states;
  const uint32_t block = states ? blockIdx.x : blockIdx.x - of_states;
  const int64_t column = int64_t{block % column_blocks} * kColumns + threadIdx.x % kColumns;
  const int64_t group = block / column_blocks;
  if (states) {
    state_gradients<T>(args, problem, group * kWarpRows, column);
  } else {
    weight_gradients<T>(args, problem, group * kRowsOfWarps + threadIdx.x / kColumns, column);
  }
}

// ---- host

// Calls f(Type<T>) for half types and float32. Double is not supported: its sums would need more
// shared memory than a block has.
template <class F>
cudaError_t visit_single(Dtype dtype, const F& f) {
  if (dtype == Dtype::kHalf) return f(Type<Half>{});
  if (dtype == Dtype::kBFloat16) return f(Type<BFloat16>{});
  return dtype == Dtype::kFloat ? f(Type<float>{}) : cudaErrorInvalidValue;
}

bool in_vectors(const LltmView& view, int n, size_t element_size) {
  return view.row_stride % n == 0 && view.problem_stride % n == 0 &&
         reinterpret_cast<uintptr_t>(view.data) % (n * element_size) == 0;
}

}  // namespace

cudaError_t launch_lltm_few_forward(const LltmFewForward& args, cudaStream_t stream) {
  const LltmShape& of = args.cell.shape;
  return visit_single(of.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kVector = kWarpVector;
    const bool vectors = of.hidden % kVector == 0 && args.features % kVector == 0 &&
                         in_vectors(args.weights, kVector, sizeof(T)) &&
                         in_vectors(args.old_h, kVector, sizeof(T)) &&
                         in_vectors(args.input, kVector, sizeof(T));
    const int64_t groups = ceil_div(of.rows_per_problem, int64_t{kWarpRows});
    const LaunchShape shape = {
        static_cast<unsigned>(groups * ceil_div(of.hidden, int64_t{kWarpUnits})),
        static_cast<unsigned>(of.problems),
        1,
        kWarpUnits * kWarps * kLanes,
        0,
        vectors ? kVector : 1,
        kWarpRows};
    const auto go = [&](auto cell_type) {
      using cell_t = typename decltype(cell_type)::type;
      return launch(vectors ? lltm_few_forward<T, cell_t, kVector> : lltm_few_forward<T, cell_t, 1>,
                    shape, stream, args, static_cast<uint32_t>(groups));
    };
    if constexpr (sizeof(T) == 2) {
      if (of.cell_dtype == Dtype::kFloat) return go(Type<float>{});
    }
    return go(type);
  });
}

cudaError_t launch_lltm_few_gradients(const LltmGradients& args, cudaStream_t stream) {
  const LltmShape& of = args.shape;
  const int64_t blocks = ceil_div(of.hidden + args.features, int64_t{kColumns});
  const bool any_state = args.grad_old_h != nullptr || args.grad_input != nullptr;
  const bool any_weight = args.grad_weights != nullptr || args.grad_bias != nullptr;
  const int64_t states = any_state ? blocks * ceil_div(of.rows_per_problem, int64_t{kWarpRows}) : 0;
  const int64_t weights =
      any_weight ? blocks * ceil_div(kCellGates * of.hidden, int64_t{kRowsOfWarps}) : 0;
  if (states + weights == 0) return cudaSuccess;
  const LaunchShape shape = {static_cast<unsigned>(states + weights),
                             static_cast<unsigned>(of.problems),
                             1,
                             kGradientThreads,
                             0,
                             1,
                             1};
  return visit_single(of.dtype, [&](auto type) {
    return launch(lltm_few_gradients<typename decltype(type)::type>, shape, stream, args,
                  static_cast<uint32_t>(blocks), static_cast<uint32_t>(states));
  });
}

}  // namespace treadle
