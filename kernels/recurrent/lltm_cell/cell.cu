// The LLTM cell's pointwise part on CUDA: one thread per kWidth consecutive units of a row.
// Shapes: N problems of B rows and H units; gates [N, B, 3H]. Formula: kernels/math/cells/lltm.h.
// Twin: kernels/recurrent/lltm_cell/cpu/cell.cpp.
#include "kernels/common/convert.cuh"
#include "kernels/common/fast_divide.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/common/vector.cuh"
#include "kernels/math/cells/lltm.h"
#include "kernels/recurrent/lltm_cell/launchers.h"

namespace treadle {
namespace {

// The position of a thread's first unit in [N, B, H].
struct Position {
  int64_t problem, row, column;
};

struct Locate {
  int64_t units, rows_per_problem, hidden;
  FastDivide by_hidden;
  bool one_problem, narrow;

  explicit Locate(const LltmShape& shape)
      : units(shape.problems * shape.rows_per_problem * shape.hidden),
        rows_per_problem(shape.rows_per_problem),
        hidden(shape.hidden),
        one_problem(shape.problems == 1),
        narrow(units < (int64_t{1} << 31)) {
    if (narrow) by_hidden = FastDivide(static_cast<uint32_t>(hidden));
  }

  __device__ Position operator()(int64_t unit) const {
    const int64_t flat = narrow ? by_hidden(static_cast<uint32_t>(unit)) : unit / hidden;
    const int64_t problem = one_problem ? 0 : flat / rows_per_problem;
    return {problem, flat - problem * rows_per_problem, unit - flat * hidden};
  }
};

// kWidth > 1 requires a column stride of 1 and 16-byte alignment.
template <class T, int kWidth>
__device__ __forceinline__ void load(const LltmView& view, const Position& at, int64_t column,
                                     acc_t<T> (&into)[kWidth]) {
  const T* source = static_cast<const T*>(view.data) + at.problem * view.problem_stride +
                    at.row * view.row_stride + (at.column + column) * view.column_stride;
  const auto stored = *reinterpret_cast<const Vector<T, kWidth>*>(source);
#pragma unroll
  for (int e = 0; e < kWidth; ++e) into[e] = widen(stored.value[e]);
}

// A missing view leaves `into` unchanged.
template <class T, int kWidth, class acc>
__device__ __forceinline__ void load_wider(const LltmView& view, const Position& at, int64_t column,
                                           acc (&into)[kWidth]) {
  if (view.data == nullptr) return;
  acc_t<T> stored[kWidth];
  load<T, kWidth>(view, at, column, stored);
#pragma unroll
  for (int e = 0; e < kWidth; ++e) into[e] = stored[e];
}

template <class T, int kWidth, class acc>
__device__ __forceinline__ void store(void* data, int64_t element, const acc (&from)[kWidth]) {
  Vector<T, kWidth> stored;
#pragma unroll
  for (int e = 0; e < kWidth; ++e) stored.value[e] = Narrow<T>::from(from[e]);
  *reinterpret_cast<Vector<T, kWidth>*>(static_cast<T*>(data) + element) = stored;
}

// Loads the three gates of kWidth units and adds the bias.
template <class T, int kWidth, class acc>
__device__ __forceinline__ void load_gates(const LltmView& gates, const LltmView& bias,
                                           const Position& at, int64_t hidden,
                                           acc (&g)[3][kWidth]) {
#pragma unroll
  for (int k = 0; k < 3; ++k) {
    acc b[kWidth] = {};
    load_wider<T, kWidth>(gates, at, k * hidden, g[k]);
    load_wider<T, kWidth>(bias, at, k * hidden, b);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) g[k][e] += b[e];
  }
}

template <class T, class cell_t, int kWidth>
__global__ void __launch_bounds__(kBlockSize)
    lltm_forward(const __grid_constant__ LltmForward args, const __grid_constant__ Locate locate) {
  begin_kernel();
  using Cell = math::LltmCell<cell_t>;
  using acc = acc_t<cell_t>;
  const int64_t unit = (int64_t{blockIdx.x} * kBlockSize + threadIdx.x) * kWidth;
  if (unit >= locate.units) return;
  const Position at = locate(unit);
  acc g[3][kWidth], cell[kWidth], h[kWidth];
  load_gates<T, kWidth>(args.gates, args.bias, at, locate.hidden, g);
  load_wider<cell_t, kWidth>(args.old_cell, at, 0, cell);
#pragma unroll
  for (int e = 0; e < kWidth; ++e) {
    const auto state = Cell::forward(g[0][e], g[1][e], g[2][e], cell[e]);
    h[e] = state.new_h;
    cell[e] = state.new_cell;
  }
  store<T, kWidth>(args.new_h, unit, h);
  store<cell_t, kWidth>(args.new_cell, unit, cell);
}

template <class T, class cell_t, int kWidth, bool has_grad_h>
__global__ void __launch_bounds__(kBlockSize)
    lltm_backward(const __grid_constant__ LltmBackward args,
                  const __grid_constant__ Locate locate) {
  begin_kernel();
  using Cell = math::LltmCell<cell_t>;
  using acc = acc_t<cell_t>;
  const int64_t unit = (int64_t{blockIdx.x} * kBlockSize + threadIdx.x) * kWidth;
  if (unit >= locate.units) return;
  const Position at = locate(unit);
  acc g[3][kWidth], cell[kWidth], grad_h[kWidth] = {}, grad_cell[kWidth] = {};
  load_gates<T, kWidth>(args.gates, args.bias, at, locate.hidden, g);
  load_wider<cell_t, kWidth>(args.new_cell, at, 0, cell);
  load_wider<T, kWidth>(args.grad_h, at, 0, grad_h);
  load_wider<cell_t, kWidth>(args.grad_cell, at, 0, grad_cell);
#pragma unroll
  for (int e = 0; e < kWidth; ++e) {
    const auto grad = Cell::template backward<has_grad_h>(g[0][e], g[1][e], g[2][e], cell[e],
                                                          grad_h[e], grad_cell[e]);
    g[0][e] = grad.g0;
    g[1][e] = grad.g1;
    g[2][e] = grad.g2;
    cell[e] = grad.old_cell;
  }
  const int64_t first = (unit - at.column) * 3 + at.column;
#pragma unroll
  for (int k = 0; k < 3; ++k) store<T, kWidth>(args.grad_gates, first + k * locate.hidden, g[k]);
  if (args.grad_old_cell != nullptr) store<cell_t, kWidth>(args.grad_old_cell, unit, cell);
}

template <class F>
auto visit_types(const LltmShape& shape, F&& f) {
  return visit_floating(shape.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (sizeof(T) == 2) {
      if (shape.cell_dtype == Dtype::kFloat) return f(type, Type<float>{});
    }
    return f(type, type);
  });
}

bool vectorisable(const LltmView& view, size_t element_size) {
  const auto whole = [&](int64_t stride) {
    return stride * static_cast<int64_t>(element_size) % 16 == 0;
  };
  return view.data == nullptr ||
         (view.column_stride == 1 && reinterpret_cast<uintptr_t>(view.data) % 16 == 0 &&
          whole(view.row_stride) && whole(view.problem_stride));
}

// With fewer units than this, the threads do not fill the GPU, so more threads with narrow accesses
// are faster. With more units, the values of kWidth below were the fastest of 1, 2, 4 and 8 on an
// H200, where registers are the limit, not memory.
constexpr int64_t kWideFrom = int64_t{1} << 17;

LaunchShape launch_shape(const Locate& locate, int width) {
  const auto grid = ceil_div(locate.units, int64_t{width} * kBlockSize);
  return {static_cast<unsigned>(grid), 1, 1, kBlockSize, 0, width, width};
}

}  // namespace

cudaError_t launch_lltm_cell_forward(const LltmForward& args, cudaStream_t stream) {
  return visit_types(args.shape, [&](auto type, auto cell_type) {
    using T = typename decltype(type)::type;
    using cell_t = typename decltype(cell_type)::type;
    constexpr int kWidth = sizeof(T) == 8 ? 2 : 4;
    const Locate locate(args.shape);
    const bool wide = locate.units >= kWideFrom && args.shape.hidden % kWidth == 0 &&
                      vectorisable(args.gates, sizeof(T)) && vectorisable(args.bias, sizeof(T)) &&
                      vectorisable(args.old_cell, sizeof(cell_t));
    return wide ? launch(lltm_forward<T, cell_t, kWidth>, launch_shape(locate, kWidth), stream,
                         args, locate)
                : launch(lltm_forward<T, cell_t, 1>, launch_shape(locate, 1), stream, args, locate);
  });
}

cudaError_t launch_lltm_cell_backward(const LltmBackward& args, cudaStream_t stream) {
  return visit_types(args.shape, [&](auto type, auto cell_type) {
    using T = typename decltype(type)::type;
    using cell_t = typename decltype(cell_type)::type;
    constexpr int kWidth = sizeof(T) == 2 ? 4 : 2;
    const Locate locate(args.shape);
    const bool wide = locate.units >= kWideFrom && args.shape.hidden % kWidth == 0 &&
                      vectorisable(args.gates, sizeof(T)) && vectorisable(args.bias, sizeof(T)) &&
                      vectorisable(args.new_cell, sizeof(cell_t)) &&
                      vectorisable(args.grad_h, sizeof(T)) &&
                      vectorisable(args.grad_cell, sizeof(cell_t));
    const auto go = [&](auto width, auto has_grad_h) {
      return launch(lltm_backward<T, cell_t, width.value, has_grad_h.value>,
                    launch_shape(locate, width.value), stream, args, locate);
    };
    using Wide = Constant<int, kWidth>;
    using Single = Constant<int, 1>;
    if (args.grad_h.data != nullptr) {
      return wide ? go(Wide{}, Constant<bool, true>{}) : go(Single{}, Constant<bool, true>{});
    }
    return wide ? go(Wide{}, Constant<bool, false>{}) : go(Single{}, Constant<bool, false>{});
  });
}

}  // namespace treadle
