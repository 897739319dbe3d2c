// The LLTM cell's pointwise part on the CPU. Twin: kernels/lltm_cell.cu.
// Blocks of units go through buffers on the stack: load and widen (rows may be short, strided or
// expanded), compute whole vectors, round and store.
#include "cpu/lltm_cell.h"

#include <algorithm>

#include "cpu/convert.h"
#include "kernels/math/lltm_cell.h"

namespace treadle::cpu::TREADLE_ISA {
namespace {

constexpr int64_t kBlock = 256;
// The computing loops run to a multiple of this, over whatever the buffers hold there.
constexpr int64_t kLanes = 16;

template <class acc>
struct alignas(64) Buffer {
  acc at[kBlock] = {};
};

// Consecutive units of one row.
struct Run {
  int64_t cell, row, column;
  int64_t offset, size;  // in the block
};

template <class F>
void for_each_run(const LltmShape& shape, int64_t begin, int64_t size, F&& f) {
  int64_t row = begin / shape.hidden, column = begin % shape.hidden;
  for (int64_t done = 0; done < size; ++row, column = 0) {
    const int64_t length = std::min(shape.hidden - column, size - done);
    f(Run{row / shape.rows_per_cell, row % shape.rows_per_cell, column, done, length});
    done += length;
  }
}

template <class T, class acc>
void load_run(const LltmView& view, const Run& run, int64_t part, acc* buf) {
  const int64_t element = run.cell * view.cell_stride + run.row * view.row_stride +
                          (part + run.column) * view.column_stride;
  const char* src = static_cast<const char*>(view.data) + element * int64_t{sizeof(T)};
  load<T, acc>(src, view.column_stride * int64_t{sizeof(T)}, buf, run.size);
}

// Gate `gate` of the run's units, its bias added.
template <class T, class acc>
void load_gate(const LltmView& gates, const LltmView& bias, const Run& run, int64_t part,
               acc* buf) {
  load_run<T>(gates, run, part, buf);
  if (bias.data == nullptr) return;
  alignas(64) acc addend[kBlock];
  load_run<T>(bias, run, part, addend);
  for (int64_t i = 0; i < run.size; ++i) buf[i] += addend[i];
}

template <class T, class cell_t>
void forward(const LltmForward& args, int64_t begin, int64_t end) {
  using acc = acc_t<cell_t>;
  using Cell = math::LltmCell<cell_t>;
  const int64_t hidden = args.shape.hidden;
  Buffer<acc> g0, g1, g2, cell, h;
  for (; begin < end; begin += kBlock) {
    const int64_t size = std::min(kBlock, end - begin);
    for_each_run(args.shape, begin, size, [&](const Run& run) {
      load_gate<T>(args.gates, args.bias, run, 0, g0.at + run.offset);
      load_gate<T>(args.gates, args.bias, run, hidden, g1.at + run.offset);
      load_gate<T>(args.gates, args.bias, run, 2 * hidden, g2.at + run.offset);
      load_run<cell_t>(args.old_cell, run, 0, cell.at + run.offset);
    });
    const int64_t padded = (size + kLanes - 1) / kLanes * kLanes;
    for (int64_t i = 0; i < padded; ++i) {
      const auto state = Cell::forward(g0.at[i], g1.at[i], g2.at[i], cell.at[i]);
      h.at[i] = state.new_h;
      cell.at[i] = state.new_cell;
    }
    store_contiguous<T, acc>(static_cast<char*>(args.new_h) + begin * int64_t{sizeof(T)}, h.at,
                             size);
    store_contiguous<cell_t, acc>(
        static_cast<char*>(args.new_cell) + begin * int64_t{sizeof(cell_t)}, cell.at, size);
  }
}

template <class T, class cell_t, bool has_grad_h>
void backward(const LltmBackward& args, int64_t begin, int64_t end) {
  using acc = acc_t<cell_t>;
  using Cell = math::LltmCell<cell_t>;
  const int64_t hidden = args.shape.hidden;
  Buffer<acc> g0, g1, g2, cell, grad_h, grad_cell;
  for (; begin < end; begin += kBlock) {
    const int64_t size = std::min(kBlock, end - begin);
    if (args.grad_cell.data == nullptr) grad_cell = {};
    for_each_run(args.shape, begin, size, [&](const Run& run) {
      load_gate<T>(args.gates, args.bias, run, 0, g0.at + run.offset);
      load_gate<T>(args.gates, args.bias, run, 2 * hidden, g2.at + run.offset);
      if constexpr (has_grad_h) {
        load_gate<T>(args.gates, args.bias, run, hidden, g1.at + run.offset);
        load_run<cell_t>(args.new_cell, run, 0, cell.at + run.offset);
        load_run<T>(args.grad_h, run, 0, grad_h.at + run.offset);
      }
      if (args.grad_cell.data != nullptr) {
        load_run<cell_t>(args.grad_cell, run, 0, grad_cell.at + run.offset);
      }
    });
    const int64_t padded = (size + kLanes - 1) / kLanes * kLanes;
    for (int64_t i = 0; i < padded; ++i) {
      const auto grad = Cell::template backward<has_grad_h>(
          g0.at[i], g1.at[i], g2.at[i], cell.at[i], grad_h.at[i], grad_cell.at[i]);
      g0.at[i] = grad.g0;
      g1.at[i] = grad.g1;
      g2.at[i] = grad.g2;
      grad_cell.at[i] = grad.old_cell;
    }
    for_each_run(args.shape, begin, size, [&](const Run& run) {
      const int64_t row = run.cell * args.shape.rows_per_cell + run.row;
      char* dst = static_cast<char*>(args.grad_gates) +
                  (row * 3 * hidden + run.column) * int64_t{sizeof(T)};
      const int64_t part = hidden * int64_t{sizeof(T)};
      store_contiguous<T, acc>(dst, g0.at + run.offset, run.size);
      store_contiguous<T, acc>(dst + part, g1.at + run.offset, run.size);
      store_contiguous<T, acc>(dst + 2 * part, g2.at + run.offset, run.size);
    });
    if (args.grad_old_cell != nullptr) {
      store_contiguous<cell_t, acc>(
          static_cast<char*>(args.grad_old_cell) + begin * int64_t{sizeof(cell_t)}, grad_cell.at,
          size);
    }
  }
}

// Calls f(Type<T>{}, Type<cell_t>{}).
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

}  // namespace

void lltm_cell_forward(const LltmForward& args, int64_t begin, int64_t end) {
  visit_shape(args.shape, [&](auto type, auto cell_type) {
    forward<typename decltype(type)::type, typename decltype(cell_type)::type>(args, begin, end);
  });
}

void lltm_cell_backward(const LltmBackward& args, int64_t begin, int64_t end) {
  visit_shape(args.shape, [&](auto type, auto cell_type) {
    using T = typename decltype(type)::type;
    using cell_t = typename decltype(cell_type)::type;
    if (args.grad_h.data != nullptr) {
      backward<T, cell_t, true>(args, begin, end);
    } else {
      backward<T, cell_t, false>(args, begin, end);
    }
  });
}

}  // namespace treadle::cpu::TREADLE_ISA
