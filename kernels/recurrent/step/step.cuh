// The pointwise part of one step of a recurrent layer on CUDA, for any cell, after cuBLAS has
// computed the products. A thread computes one unit (b, u) of the step's rows, or some units of a
// row. This file defines the step functions of cell_launchers.h. Twin:
// kernels/recurrent/cpu/rows_forward.h. kernels/math/cells/lltm.h describes the interface of a
// Cell.
#pragma once

#include "kernels/common/convert.cuh"
#include "kernels/common/fast_divide.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/math/c_parts.h"
#include "kernels/recurrent/step/step_group.h"
#include "kernels/recurrent/step_args.h"
#ifndef __CUDACC_RTC__
#include "kernels/recurrent/cell_launchers.h"
#include "kernels/recurrent/formula/function.h"
#endif

namespace treadle {

// Loads n adjacent units of one row, or one unit.
template <class T, int n, class acc = acc_t<T>>
__device__ __forceinline__ void load_units(const MatrixView& view, int64_t row, int64_t column,
                                           acc (&to)[n]) {
  if constexpr (n > 1) {
    load_vector<T>(view.data, row * view.row_stride + column, to);
  } else {
    to[0] = widen(
        static_cast<const T*>(view.data)[row * view.row_stride + column * view.column_stride]);
  }
}

// Adds n units of an array, unless it is missing.
template <class T, int n, class acc = acc_t<T>>
__device__ __forceinline__ void add_units(const void* data, int64_t at, acc (&to)[n]) {
  if (data == nullptr) return;
  acc one[n];
  load_vector<T>(data, at, one);
#pragma unroll
  for (int e = 0; e < n; ++e) to[e] += one[e];
}

// Whether all gates have both products, so that one array can hold their sum.
template <class Cell>
inline constexpr bool kOneProduct =
    Cell::kInputGates == Cell::kGates && Cell::kStateGates == Cell::kGates;

// Finds the `each` units (b, u) of a row that belong to a flat index. A step has fewer than 2^31
// units. b changes fastest if the products are stored column by column, so that loads coalesce.
struct UnitAt {
  int64_t b, u;
};

struct LocateUnit {
  uint32_t count;
  FastDivide divide;
  int each;
  bool along_rows;  // b changes fastest

  LocateUnit(int64_t rows, int64_t hidden, int each, bool along_rows)
      : count(static_cast<uint32_t>(rows * hidden / each)),
        divide(static_cast<uint32_t>(along_rows ? rows : hidden / each)),
        each(each),
        along_rows(along_rows) {}

  __device__ UnitAt operator()(uint32_t at) const {
    const uint32_t quotient = divide(at), rest = at - quotient * divide.divisor;
    return along_rows ? UnitAt{rest, quotient} : UnitAt{quotient, int64_t{rest} * each};
  }
};

// The rows from which step.start counts: `product` in the products, `row` in all other arrays.
struct RowBase {
  int64_t row, product;
};

__device__ __forceinline__ RowBase row_base(const int64_t* base) {
  return base == nullptr ? RowBase{0, 0} : RowBase{__ldg(base), __ldg(base + 1)};
}

// Computes gate k of some units of a row before activation, from the products and biases.
template <class Cell, class T, int n, class acc = acc_t<T>>
__device__ __forceinline__ void load_gate(const RecurrenceForward& args, int k, const UnitAt& at,
                                          int64_t product_row, acc (&gate)[n]) {
  constexpr int kFirstInput = Cell::kGates - Cell::kInputGates;
#pragma unroll
  for (int e = 0; e < n; ++e) gate[e] = 0;
  if (k >= kFirstInput) {
    const int64_t column = (k - kFirstInput) * args.hidden + at.u;
    load_units<acc>(args.products, product_row, column, gate);
    add_units<T>(args.bias_ih, column, gate);
  }
  if (k < Cell::kStateGates) {
    const int64_t column = Cell::weight_block(k) * args.hidden + at.u;
    if (!kOneProduct<Cell> || args.state_products.data != nullptr) {
      acc of_h[n];
      load_units<acc>(args.state_products, at.b, column, of_h);
#pragma unroll
      for (int e = 0; e < n; ++e) gate[e] += of_h[e];
    }
    add_units<T>(args.bias_hh, column, gate);
  }
}

// Replaces the state of a row that resets before the next step.
template <class T, int n, int parts, class acc = acc_t<T>>
__device__ __forceinline__ void replace_units(const RecurrenceResets& resets, int64_t row,
                                              int64_t hidden, int64_t u, acc (&h)[n],
                                              acc (&c)[parts][n]) {
#pragma unroll
  for (int e = 0; e < n; ++e) h[e] = 0;
  if (resets.h != nullptr) load_vector<T>(resets.h, row * hidden + u, h);
#pragma unroll
  for (int p = 0; p < parts; ++p) {
#pragma unroll
    for (int e = 0; e < n; ++e) c[p][e] = 0;
    if (resets.c != nullptr) load_vector<acc>(resets.c, (row * parts + p) * hidden + u, c[p]);
  }
}

// Loads c of a row's units, or its gradients, as [parts][n] from an array [..., parts * H].
template <class acc, int n, int parts>
__device__ __forceinline__ void load_parts(const void* from, int64_t row, int64_t hidden, int64_t u,
                                           acc (&c)[parts][n]) {
#pragma unroll
  for (int p = 0; p < parts; ++p) load_vector<acc>(from, (row * parts + p) * hidden + u, c[p]);
}
template <class acc, int n, int parts>
__device__ __forceinline__ void store_parts(void* to, int64_t row, int64_t hidden, int64_t u,
                                            const acc (&c)[parts][n]) {
#pragma unroll
  for (int p = 0; p < parts; ++p) store_vector<acc>(to, (row * parts + p) * hidden + u, c[p]);
}

// Returns c of unit e.
template <class acc, int n, int parts>
__device__ __forceinline__ math::CType<acc, parts> parts_of(const acc (&c)[parts][n], int e) {
  math::CType<acc, parts> found;
#pragma unroll
  for (int p = 0; p < parts; ++p) math::part(found, p) = c[p][e];
  return found;
}
template <class acc, int n, int parts>
__device__ __forceinline__ void put_parts(const math::CType<acc, parts>& of, int e,
                                          acc (&c)[parts][n]) {
#pragma unroll
  for (int p = 0; p < parts; ++p) c[p][e] = math::part(of, p);
}

template <class Cell, class T, int n>
__global__ void __launch_bounds__(kBlockSize)
    recurrence_forward(const __grid_constant__ RecurrenceForward args,
                       const __grid_constant__ RecurrenceStep step,
                       const __grid_constant__ RecurrenceStep next_step,
                       const __grid_constant__ LocateUnit locate,
                       const __grid_constant__ StepGroup group) {
  begin_kernel();
  const RowBase base = row_base(group.base);
  using acc = acc_t<T>;
  const uint32_t item = blockIdx.x * kBlockSize + threadIdx.x;
  if (item >= locate.count) return;
  const UnitAt at = locate(item);
  const int64_t u = at.u, row = base.row + step.start + at.b, state = at.b * args.hidden + u;
  const int64_t product_row = base.product + step.start + at.b;
  acc gates[Cell::kGates][n], h[n], c[Cell::kCParts][n];
#pragma unroll
  for (int k = 0; k < Cell::kGates; ++k) load_gate<Cell, T>(args, k, at, product_row, gates[k]);
  load_parts<acc>(args.first_c != nullptr ? args.first_c : args.c, at.b, args.hidden, u, c);
  if (args.gates != nullptr) {
#pragma unroll
    for (int k = 0; k < Cell::kGates; ++k) {
      store_vector<T>(args.gates, (row * Cell::kGates + k) * args.hidden + u, gates[k]);
    }
  }
#pragma unroll
  for (int e = 0; e < n; ++e) {
    acc own[Cell::kGates];
#pragma unroll
    for (int k = 0; k < Cell::kGates; ++k) own[k] = gates[k][e];
    const auto next = Cell::forward(own, parts_of(c, e));
    h[e] = next.new_h;
    put_parts(next.new_cell, e, c);
  }
  store_vector<T>(args.output, row * args.output_stride + u, h);
  if (starts_anew(args.resets, next_step, at.b)) {
    replace_units<T>(args.resets, reset_row(args.resets, next_step, at.b), args.hidden, u, h, c);
  }
  store_parts<acc>(args.c, at.b, args.hidden, u, c);
  store_vector<T>(args.h, state, h);
}

template <class Cell, class T, int n>
__global__ void __launch_bounds__(kBlockSize, 4)
    recurrence_backward(const __grid_constant__ RecurrenceBackward args,
                        const __grid_constant__ RecurrenceStep step,
                        const __grid_constant__ LocateUnit locate,
                        const __grid_constant__ StepGroup group) {
  begin_kernel();
  const RowBase base = row_base(group.base);
  using acc = acc_t<T>;
  const uint32_t item = blockIdx.x * kBlockSize + threadIdx.x;
  if (item >= locate.count) return;
  const auto [b, u] = locate(item);
  constexpr int kCParts = Cell::kCParts;
  const int64_t row = base.row + step.start + b;
  const int64_t first = row * Cell::kGates * args.hidden + u;
  acc gates[Cell::kGates][n], old_cell[kCParts][n], grad_h[n], grad_c[kCParts][n];
  acc grad_output[n] = {};
#pragma unroll
  for (int k = 0; k < Cell::kGates; ++k) {
    load_vector<T>(args.gates, first + k * args.hidden, gates[k]);
  }
  load_parts<acc>(args.c_states, row, args.hidden, u, old_cell);
  load_units<acc>(args.grad_h, b, u, grad_h);
  load_parts<acc>(args.grad_c, b, args.hidden, u, grad_c);
  if (args.grad_output.data != nullptr) load_units<T>(args.grad_output, row, u, grad_output);
  if (starts_anew(args.resets, args.last, b)) {
    const int64_t to = args.last.start + b;
    if (args.resets.grad_h != nullptr) {
      store_vector<acc>(args.resets.grad_h, to * args.hidden + u, grad_h);
    }
    if (args.resets.grad_c != nullptr) {
      store_parts<acc>(args.resets.grad_c, to, args.hidden, u, grad_c);
    }
#pragma unroll
    for (int e = 0; e < n; ++e) {
      grad_h[e] = 0;
      put_parts(math::CType<acc, kCParts>{}, e, grad_c);
    }
  }
#pragma unroll
  for (int e = 0; e < n; ++e) {
    acc own[Cell::kGates];
#pragma unroll
    for (int k = 0; k < Cell::kGates; ++k) own[k] = gates[k][e];
    const auto grad =
        Cell::backward(own, parts_of(old_cell, e), grad_h[e] + grad_output[e], parts_of(grad_c, e));
    put_parts(grad.old_cell, e, grad_c);
#pragma unroll
    for (int k = 0; k < Cell::kGates; ++k) gates[k][e] = grad.gates[k];
  }
  store_parts<acc>(args.grad_c, b, args.hidden, u, grad_c);
#pragma unroll
  for (int k = 0; k < Cell::kGates; ++k) {
    store_vector<T>(args.grad_gates, first + k * args.hidden, gates[k]);
    if (group.gates != nullptr) {
      store_vector<T>(group.gates, (b * Cell::kGates + k) * args.hidden + u, gates[k]);
    }
  }
}

#ifndef __CUDACC_RTC__
// ---- host

using StepForwardKernel = void (*)(RecurrenceForward, RecurrenceStep, RecurrenceStep, LocateUnit,
                                   StepGroup);
using StepBackwardKernel = void (*)(RecurrenceBackward, RecurrenceStep, LocateUnit, StepGroup);

// With at least this many units, threads that compute vectors of units fill the GPU.
inline constexpr int64_t kVectors = int64_t{1} << 15;

inline bool in_vectors(const void* data, int64_t stride, int n) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % n == 0;
}
inline bool in_vectors(const MatrixView& view, int n) {
  return in_vectors(view.data, view.row_stride, n) &&
         (view.data == nullptr || view.column_stride == 1);
}

// The units per thread, unless it computes only one. In half types two are fastest. With eight, a
// lane writes its floats in two accesses; each fills only half of a sector, so they take twice as
// long.
template <class T>
inline constexpr int kUnits = sizeof(T) == 2 ? 2 : 16 / sizeof(T);

template <class T, class F>
cudaError_t with_units(int64_t rows, int64_t hidden, bool in_vectors, const F& f) {
  constexpr int n = kUnits<T>;
  if (in_vectors && hidden % n == 0 && rows * hidden / n >= kVectors) return f(Constant<int, n>());
  return f(Constant<int, 1>());
}

inline LaunchShape step_launch_shape(const LocateUnit& locate) {
  const auto grid = ceil_div(int64_t{locate.count}, int64_t{kBlockSize});
  return {static_cast<unsigned>(grid), 1, 1, kBlockSize, 0, locate.each, 1};
}

template <class Kind>
cudaError_t launch_grouped_forward(const RecurrenceForward& args, const StepGroup& group,
                                   cudaStream_t stream) {
  return visit_floating(args.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using Cell = typename Kind::template Cell<acc_t<T>>;
    constexpr int kMost = kUnits<T>;
    const RecurrenceStep step = args.steps[0];
    bool vectors = in_vectors(args.products, kMost) && in_vectors(args.state_products, kMost) &&
                   in_vectors(args.output, args.output_stride, kMost);
    for (const void* dense : {args.bias_ih, args.bias_hh, static_cast<const void*>(args.h),
                              static_cast<const void*>(args.c), args.first_c,
                              static_cast<const void*>(args.gates), args.resets.h, args.resets.c}) {
      vectors = vectors && in_vectors(dense, 0, kMost);
    }
    return with_units<T>(step.rows, args.hidden, vectors, [&](auto units) {
      constexpr int n = decltype(units)::value;
      const LocateUnit locate(step.rows, args.hidden, n, args.products.column_stride != 1);
      return launch(TREADLE_FUNCTION(StepForwardKernel, recurrence_forward, (Cell, T), (n)),
                    step_launch_shape(locate), stream, args, step,
                    args.resets.marks != nullptr ? args.steps[1] : RecurrenceStep{}, locate, group);
    });
  });
}

template <class Kind>
cudaError_t launch_grouped_backward(const RecurrenceBackward& args, const StepGroup& group,
                                    cudaStream_t stream) {
  return visit_floating(args.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using Cell = typename Kind::template Cell<acc_t<T>>;
    constexpr int kMost = kUnits<T>;
    const RecurrenceStep step = args.steps[0];
    bool vectors = in_vectors(args.grad_output, kMost) && in_vectors(args.grad_h, kMost);
    for (const void* dense :
         {args.gates, args.c_states, static_cast<const void*>(args.grad_c),
          static_cast<const void*>(args.grad_gates), static_cast<const void*>(group.gates),
          static_cast<const void*>(args.resets.grad_h),
          static_cast<const void*>(args.resets.grad_c)}) {
      vectors = vectors && in_vectors(dense, 0, kMost);
    }
    return with_units<T>(step.rows, args.hidden, vectors, [&](auto units) {
      constexpr int n = decltype(units)::value;
      const LocateUnit locate(step.rows, args.hidden, n, args.grad_h.column_stride != 1);
      return launch(TREADLE_FUNCTION(StepBackwardKernel, recurrence_backward, (Cell, T), (n)),
                    step_launch_shape(locate), stream, args, step, locate, group);
    });
  });
}

template <class Kind>
cudaError_t launch_step_forward(const RecurrenceForward& args, cudaStream_t stream) {
  return launch_grouped_forward<Kind>(args, {}, stream);
}
template <class Kind>
cudaError_t launch_step_backward(const RecurrenceBackward& args, cudaStream_t stream) {
  return launch_grouped_backward<Kind>(args, {}, stream);
}

#endif

}  // namespace treadle
