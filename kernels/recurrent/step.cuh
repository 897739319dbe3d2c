// One step of a recurrent layer on CUDA, pointwise part, for any cell: one thread per unit (b, u)
// of the step's rows; cuBLAS multiplies. Defines what cell_launchers.h declares of step. Twin:
// kernels/recurrent/cpu/rows_forward.h, which says what a Cell is.
#pragma once

#include "kernels/common/convert.cuh"
#include "kernels/common/fast_divide.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/recurrent/cell_launchers.h"

namespace treadle {

template <class T>
__device__ __forceinline__ acc_t<T> load_at(const MatrixView& view, int64_t row, int64_t column) {
  return widen(
      static_cast<const T*>(view.data)[row * view.row_stride + column * view.column_stride]);
}

// Whether all gates have both products, so that one array can hold their sum.
template <class Cell>
inline constexpr bool kOneProduct =
    Cell::kInputGates == Cell::kGates && Cell::kStateGates == Cell::kGates;

// Unit (b, u) of a flat index; a step has fewer than 2^31. b changes fastest where the products are
// stored column by column, so that loads coalesce.
struct UnitAt {
  int64_t b, u;
};

struct LocateUnit {
  uint32_t units;
  FastDivide divide;
  bool along_rows;  // b changes fastest

  LocateUnit(int64_t rows, int64_t hidden, bool along_rows)
      : units(static_cast<uint32_t>(rows * hidden)),
        divide(static_cast<uint32_t>(along_rows ? rows : hidden)),
        along_rows(along_rows) {}

  __device__ UnitAt operator()(uint32_t unit) const {
    const uint32_t quotient = divide(unit), rest = unit - quotient * divide.divisor;
    return along_rows ? UnitAt{rest, quotient} : UnitAt{quotient, rest};
  }
};

// Gate k of unit u of a row before its activation, from the products and biases.
template <class Cell, class T, class acc = acc_t<T>>
__device__ __forceinline__ acc gate_of(const RecurrenceForward& args, int k, const UnitAt& at,
                                       int64_t row) {
  constexpr int kFirstInput = Cell::kGates - Cell::kInputGates;
  acc gate = 0;
  if (k >= kFirstInput) {
    const int64_t column = (k - kFirstInput) * args.hidden + at.u;
    gate = load_at<acc>(args.products, row, column);
    if (args.bias_ih != nullptr) gate += widen(static_cast<const T*>(args.bias_ih)[column]);
  }
  if (k < Cell::kStateGates) {
    const int64_t column = Cell::weight_block(k) * args.hidden + at.u;
    if (!kOneProduct<Cell>) gate += load_at<acc>(args.state_products, at.b, column);
    if (args.bias_hh != nullptr) gate += widen(static_cast<const T*>(args.bias_hh)[column]);
  }
  return gate;
}

template <class Cell, class T>
__global__ void __launch_bounds__(kBlockSize)
    recurrence_forward(const __grid_constant__ RecurrenceForward args,
                       const __grid_constant__ RecurrenceStep step,
                       const __grid_constant__ RecurrenceStep next_step,
                       const __grid_constant__ LocateUnit locate) {
  begin_kernel();
  using acc = acc_t<T>;
  const uint32_t unit = blockIdx.x * kBlockSize + threadIdx.x;
  if (unit >= locate.units) return;
  const UnitAt at = locate(unit);
  const int64_t u = at.u, row = step.start + at.b, state = at.b * args.hidden + u;
  acc gates[Cell::kGates];
#pragma unroll
  for (int k = 0; k < Cell::kGates; ++k) {
    gates[k] = gate_of<Cell, T>(args, k, at, row);
    if (args.gates != nullptr) {
      static_cast<T*>(args.gates)[(row * Cell::kGates + k) * args.hidden + u] =
          Narrow<T>::from(gates[k]);
    }
  }
  const auto next = Cell::forward(gates, static_cast<const acc*>(args.c)[state]);
  acc c = next.new_cell;
  T h = Narrow<T>::from(next.new_h);
  static_cast<T*>(args.output)[row * args.output_stride + u] = h;
  // What the next step begins with.
  if (starts_anew(args.resets, next_step, at.b)) {
    const int64_t from = reset_row(args.resets, next_step, at.b) * args.hidden + u;
    h = args.resets.h != nullptr ? static_cast<const T*>(args.resets.h)[from] : T{};
    c = args.resets.c != nullptr ? static_cast<const acc*>(args.resets.c)[from] : acc(0);
  }
  static_cast<acc*>(args.c)[state] = c;
  static_cast<T*>(args.h)[state] = h;
}

template <class Cell, class T>
__global__ void __launch_bounds__(kBlockSize)
    recurrence_backward(const __grid_constant__ RecurrenceBackward args,
                        const __grid_constant__ RecurrenceStep step,
                        const __grid_constant__ LocateUnit locate) {
  begin_kernel();
  using acc = acc_t<T>;
  const uint32_t unit = blockIdx.x * kBlockSize + threadIdx.x;
  if (unit >= locate.units) return;
  const auto [b, u] = locate(unit);
  const int64_t row = step.start + b, state = b * args.hidden + u;
  const int64_t first = row * Cell::kGates * args.hidden + u;
  acc gates[Cell::kGates];
#pragma unroll
  for (int k = 0; k < Cell::kGates; ++k) {
    gates[k] = widen(static_cast<const T*>(args.gates)[first + k * args.hidden]);
  }
  acc grad_h = load_at<acc>(args.grad_h, b, u),
      grad_c = static_cast<const acc*>(args.grad_c)[state];
  if (starts_anew(args.resets, args.last, b)) {
    const int64_t to = (args.last.start + b) * args.hidden + u;
    if (args.resets.grad_h != nullptr) static_cast<acc*>(args.resets.grad_h)[to] = grad_h;
    if (args.resets.grad_c != nullptr) static_cast<acc*>(args.resets.grad_c)[to] = grad_c;
    grad_h = grad_c = 0;
  }
  if (args.grad_output.data != nullptr) grad_h += load_at<T>(args.grad_output, row, u);
  const auto grad = Cell::backward(
      gates, static_cast<const acc*>(args.c_states)[row * args.hidden + u], grad_h, grad_c);
  static_cast<acc*>(args.grad_c)[state] = grad.old_cell;
#pragma unroll
  for (int k = 0; k < Cell::kGates; ++k) {
    static_cast<T*>(args.grad_gates)[first + k * args.hidden] = Narrow<T>::from(grad.gates[k]);
  }
}

inline LaunchShape step_launch_shape(const LocateUnit& locate) {
  const auto grid = ceil_div(int64_t{locate.units}, int64_t{kBlockSize});
  return {static_cast<unsigned>(grid), 1, 1, kBlockSize, 0, 1, 1};
}

template <class Kind>
cudaError_t launch_step_forward(const RecurrenceForward& args, cudaStream_t stream) {
  return visit_floating(args.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using Cell = typename Kind::template Cell<acc_t<T>>;
    const RecurrenceStep step = args.steps[0];
    const LocateUnit locate(step.rows, args.hidden, args.products.column_stride != 1);
    return launch(recurrence_forward<Cell, T>, step_launch_shape(locate), stream, args, step,
                  args.resets.marks != nullptr ? args.steps[1] : RecurrenceStep{}, locate);
  });
}

template <class Kind>
cudaError_t launch_step_backward(const RecurrenceBackward& args, cudaStream_t stream) {
  return visit_floating(args.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using Cell = typename Kind::template Cell<acc_t<T>>;
    const RecurrenceStep step = args.steps[0];
    const LocateUnit locate(step.rows, args.hidden, args.grad_h.column_stride != 1);
    return launch(recurrence_backward<Cell, T>, step_launch_shape(locate), stream, args, step,
                  locate);
  });
}

}  // namespace treadle
