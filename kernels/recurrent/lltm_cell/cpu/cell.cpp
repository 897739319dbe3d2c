// The LLTM cell's pointwise part on the CPU. Twin: kernels/recurrent/lltm_cell/cell.cu.
#include "kernels/recurrent/lltm_cell/cpu/cell.h"

#include "kernels/common/cpu/gather.h"
#include "kernels/math/cells/lltm.h"

namespace treadle::cpu::TREADLE_ISA {
namespace {

template <class T, class acc>
TREADLE_INLINE void load_lanes(const char* src, int64_t i, acc (&x)[kLanes]) {
  load_contiguous<T, acc>(src + i * int64_t{sizeof(T)}, x, kLanes);
}

template <class T, class acc>
TREADLE_INLINE void store_lanes(char* dst, int64_t i, const acc (&x)[kLanes]) {
  store_contiguous<T, acc>(dst + i * int64_t{sizeof(T)}, x, kLanes);
}

template <class T, class c_t, class acc = acc_t<c_t>>
void forward(const char* const* in, char* const* out, int64_t n) {
  acc g[3][kLanes], bias[3][kLanes], c[kLanes], h[kLanes];
  for (int64_t i = 0; i < n; i += kLanes) {
    for (int k = 0; k < 3; ++k) load_lanes<T>(in[k], i, g[k]);
    for (int k = 0; k < 3; ++k) load_lanes<T>(in[3 + k], i, bias[k]);
    load_lanes<c_t>(in[6], i, c);
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const auto state =
          math::LltmCell<c_t>::forward(g[0][lane] + bias[0][lane], g[1][lane] + bias[1][lane],
                                       g[2][lane] + bias[2][lane], c[lane]);
      h[lane] = state.new_h;
      c[lane] = state.new_cell;
    }
    store_lanes<T>(out[0], i, h);
    store_lanes<c_t>(out[1], i, c);
  }
}

template <class T, class c_t, bool has_grad_h, class acc = acc_t<c_t>>
void backward(const char* const* in, char* const* out, int64_t n) {
  acc g[3][kLanes], bias[3][kLanes], c[kLanes], grad_h[kLanes], grad_cell[kLanes];
  for (int64_t i = 0; i < n; i += kLanes) {
    for (int k = 0; k < 3; ++k) load_lanes<T>(in[k], i, g[k]);
    for (int k = 0; k < 3; ++k) load_lanes<T>(in[3 + k], i, bias[k]);
    load_lanes<c_t>(in[6], i, c);
    load_lanes<T>(in[7], i, grad_h);
    load_lanes<c_t>(in[8], i, grad_cell);
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const auto grad = math::LltmCell<c_t>::template backward<has_grad_h>(
          g[0][lane] + bias[0][lane], g[1][lane] + bias[1][lane], g[2][lane] + bias[2][lane],
          c[lane], grad_h[lane], grad_cell[lane]);
      g[0][lane] = grad.g0;
      g[1][lane] = grad.g1;
      g[2][lane] = grad.g2;
      grad_cell[lane] = grad.old_cell;
    }
    for (int k = 0; k < 3; ++k) store_lanes<T>(out[k], i, g[k]);
    store_lanes<c_t>(out[3], i, grad_cell);
  }
}

// Calls f(Type<T>{}, Type<c_t>{}), where c_t is the stored type of c.
template <class F>
void visit_shape(const LltmShape& shape, F&& f) {
  visit_floating(shape.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (is_half_type<T>) {
      if (shape.cell_dtype == Dtype::kFloat) return f(type, Type<float>{});
    }
    f(type, type);
  });
}

// The columns of a view from `first` on.
GatherInput part(const LltmView& view, int64_t first, int64_t element_size) {
  const char* data = static_cast<const char*>(view.data);
  if (data != nullptr) data += first * view.column_stride * element_size;
  return {data, view.problem_stride, view.row_stride, view.column_stride, element_size};
}

}  // namespace

void lltm_cell_forward(const LltmForward& args, int64_t begin, int64_t end) {
  visit_shape(args.shape, [&](auto type, auto c_type) {
    using T = typename decltype(type)::type;
    using c_t = typename decltype(c_type)::type;
    constexpr int64_t size = sizeof(T), c_size = sizeof(c_t);
    const int64_t hidden = args.shape.hidden;
    const GatherTask<7, 2> task{{args.shape.rows_per_problem, hidden},
                                {part(args.gates, 0, size), part(args.gates, hidden, size),
                                 part(args.gates, 2 * hidden, size), part(args.bias, 0, size),
                                 part(args.bias, hidden, size), part(args.bias, 2 * hidden, size),
                                 part(args.old_cell, 0, c_size)},
                                {{args.new_h, hidden, 0, size}, {args.new_cell, hidden, 0, c_size}},
                                forward<T, c_t>};
    task.run(begin, end);
  });
}

void lltm_cell_backward(const LltmBackward& args, int64_t begin, int64_t end) {
  visit_shape(args.shape, [&](auto type, auto c_type) {
    using T = typename decltype(type)::type;
    using c_t = typename decltype(c_type)::type;
    constexpr int64_t size = sizeof(T), c_size = sizeof(c_t);
    const int64_t hidden = args.shape.hidden;
    const GatherTask<9, 4> task{
        {args.shape.rows_per_problem, hidden},
        {part(args.gates, 0, size), part(args.gates, hidden, size),
         part(args.gates, 2 * hidden, size), part(args.bias, 0, size),
         part(args.bias, hidden, size), part(args.bias, 2 * hidden, size),
         part(args.new_cell, 0, c_size), part(args.grad_h, 0, size),
         part(args.grad_cell, 0, c_size)},
        {{args.grad_gates, 3 * hidden, 0, size},
         {args.grad_gates, 3 * hidden, hidden, size},
         {args.grad_gates, 3 * hidden, 2 * hidden, size},
         {args.grad_old_cell, hidden, 0, c_size}},
        args.grad_h.data ? backward<T, c_t, true> : backward<T, c_t, false>};
    task.run(begin, end);
  });
}

}  // namespace treadle::cpu::TREADLE_ISA
