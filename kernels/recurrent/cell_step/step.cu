// One step of torch's cells for few rows: one launch computes the forward pass, another the
// pointwise part of the backward pass. gradients.cu has the rest of the backward pass.
#include <type_traits>

#include "kernels/common/convert.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/math/cells/gru.h"
#include "kernels/math/cells/lstm.h"
#include "kernels/math/cells/rnn_relu.h"
#include "kernels/math/cells/rnn_tanh.h"
#include "kernels/recurrent/cell_step/launchers.h"
#include "kernels/recurrent/warp/forward.cuh"

namespace treadle {
namespace {

template <class T>
__device__ __forceinline__ acc_t<T> element(const void* data, int64_t at) {
  return widen(static_cast<const T*>(data)[at]);
}

template <class T, class acc>
__device__ __forceinline__ void store(void* data, int64_t at, acc value) {
  if (data != nullptr) static_cast<T*>(data)[at] = Narrow<T>::from(value);
}

// ---- forward: four warps multiply a unit's weights by eight rows (warp/forward.cuh)

template <class Cell, class T, int n>
__global__ void __launch_bounds__(kWarpUnits * kWarps * kLanes)
    cell_step_forward(const __grid_constant__ CellStepForward args, uint32_t row_groups) {
  begin_kernel();
  using acc = acc_t<T>;
  constexpr int kGates = Cell::kGates, kFirstInput = kGates - Cell::kInputGates;
  static_assert(kGates * kWarpRows <= kLanes, "a lane for each sum");
  const int in_block = threadIdx.x / (kWarps * kLanes);
  const int64_t hidden = args.sizes.hidden, features = args.sizes.features;
  const int64_t own = int64_t{blockIdx.x / row_groups} * kWarpUnits + in_block;
  const int64_t unit = own < hidden ? own : hidden - 1;  // beyond hidden: computed but not stored
  const int64_t first = int64_t{blockIdx.x % row_groups} * kWarpRows;
  const int64_t left = args.sizes.rows - first;
  const int count = left < kWarpRows ? static_cast<int>(left) : kWarpRows;
  const T *of_input[Cell::kInputGates], *of_h[Cell::kStateGates];
#pragma unroll
  for (int m = 0; m < Cell::kInputGates; ++m) {
    of_input[m] = static_cast<const T*>(args.weight_ih) + (m * hidden + unit) * features;
  }
#pragma unroll
  for (int m = 0; m < Cell::kStateGates; ++m) {
    of_h[m] =
        static_cast<const T*>(args.weight_hh) + (Cell::weight_block(m) * hidden + unit) * hidden;
  }
  acc sums[kLanes] = {};
  add_products<kFirstInput>(of_input,
                            static_cast<const T*>(args.input.data) + first * args.input.stride,
                            args.input.stride, count, features, sums, Constant<int, n>());
  add_products<0>(of_h, static_cast<const T*>(args.h.data) + first * args.h.stride, args.h.stride,
                  count, hidden, sums, Constant<int, n>());
  __shared__ acc parts[kWarpUnits][kWarps][kLanes];
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes % kWarps;
  parts[in_block][warp][lane] = sum_to_lanes(sums);
  __syncthreads();
  if (warp != 0 || lane >= count || own >= hidden) return;
  const int64_t row = first + lane;
  acc gates[kGates] = {};
#pragma unroll
  for (int m = 0; m < kGates; ++m) {
#pragma unroll
    for (int w = 0; w < kWarps; ++w) gates[m] += parts[in_block][w][m * kWarpRows + lane];
    if (args.bias_ih != nullptr && m >= kFirstInput) {
      gates[m] += element<T>(args.bias_ih, (m - kFirstInput) * hidden + unit);
    }
    if (args.bias_hh != nullptr && m < Cell::kStateGates) {
      gates[m] += element<T>(args.bias_hh, Cell::weight_block(m) * hidden + unit);
    }
    store<T>(args.gates, (row * kGates + m) * hidden + unit, gates[m]);
  }
  const CellStepRows& state = args.c.data != nullptr ? args.c : args.h;
  const auto next = Cell::forward(gates, element<T>(state.data, row * state.stride + unit));
  store<T>(args.new_h, row * hidden + unit, next.new_h);
  store<T>(args.new_c, row * hidden + unit, next.new_cell);
}

// ---- backward: a thread for each unit of each row

constexpr int kThreads = 128;

template <class Cell, class T>
__global__ void __launch_bounds__(kThreads)
    cell_step_backward(const __grid_constant__ CellStepBackward args) {
  begin_kernel();
  using acc = acc_t<T>;
  constexpr int kGates = Cell::kGates;
  const int64_t hidden = args.sizes.hidden, at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= args.sizes.rows * hidden) return;
  const int64_t row = at / hidden, unit = at % hidden, first = row * kGates * hidden + unit;
  acc gates[kGates];
#pragma unroll
  for (int m = 0; m < kGates; ++m) gates[m] = element<T>(args.gates, first + m * hidden);
  const auto of = [&](const CellStepRows& t) {
    return t.data == nullptr ? acc(0) : element<T>(t.data, row * t.stride + unit);
  };
  const auto grad = Cell::backward(gates, of(args.old_state), of(args.grad_h), of(args.grad_c));
#pragma unroll
  for (int m = 0; m < kGates; ++m) store<T>(args.grad_gates, first + m * hidden, grad.gates[m]);
  store<T>(args.grad_old_state, at, grad.old_cell);
}

// ---- host

// Calls f(Type<Cell>, Type<T>).
template <class F>
cudaError_t visit_steps(const CellStepSizes& sizes, const F& f) {
  return visit_cell(sizes.cell, [&](auto kind) {
    using Kind = typename decltype(kind)::type;
    // LLTM has kernels of its own (lltm_cell).
    if constexpr (std::is_same_v<Kind, math::Lltm>) {
      return cudaErrorInvalidValue;
    } else {
      return visit_floating(sizes.dtype, [&](auto type) {
        using T = typename decltype(type)::type;
        return f(Type<typename Kind::template Cell<acc_t<T>>>{}, type);
      });
    }
  });
}

}  // namespace

cudaError_t launch_cell_step_forward(const CellStepForward& args, cudaStream_t stream) {
  const CellStepSizes& of = args.sizes;
  const int64_t groups = ceil_div(of.rows, int64_t{kWarpRows});
  const int64_t blocks = groups * ceil_div(of.hidden, int64_t{kWarpUnits});
  return visit_steps(of, [&](auto cell, auto type) {
    using Cell = typename decltype(cell)::type;
    using T = typename decltype(type)::type;
    // Vectors of float64 would need more registers than a thread has.
    constexpr int n = sizeof(T) == 8 ? 1 : kWarpVector;
    const bool vectors = of.hidden % n == 0 && of.features % n == 0;
    const LaunchShape shape = {static_cast<unsigned>(blocks),
                               1,
                               1,
                               kWarpUnits * kWarps * kLanes,
                               0,
                               vectors ? n : 1,
                               kWarpRows};
    return launch(vectors ? cell_step_forward<Cell, T, n> : cell_step_forward<Cell, T, 1>, shape,
                  stream, args, static_cast<uint32_t>(groups));
  });
}

cudaError_t launch_cell_step_backward(const CellStepBackward& args, cudaStream_t stream) {
  const int64_t elements = args.sizes.rows * args.sizes.hidden;
  const LaunchShape shape = {
      static_cast<unsigned>(ceil_div(elements, int64_t{kThreads})), 1, 1, kThreads, 0, 1, 1};
  return visit_steps(args.sizes, [&](auto cell, auto type) {
    using Cell = typename decltype(cell)::type;
    return launch(cell_step_backward<Cell, typename decltype(type)::type>, shape, stream, args);
  });
}

}  // namespace treadle
