// The LLTM cell's pointwise part on the CPU. Twin: kernels/lltm_cell.cu.
// Long dense rows are computed where they lie; short, strided and expanded ones are first gathered
// in blocks on the stack, and their results scattered from there.
#include "cpu/lltm_cell.h"

#include <algorithm>
#include <cstring>

#include "cpu/convert.h"
#include "kernels/math/lltm_cell.h"

namespace treadle::cpu::TREADLE_ISA {
namespace {

constexpr int64_t kBlock = 256;
// The formulas do whole groups of this many units: a block's tail is computed for nothing.
constexpr int64_t kLanes = 16;
// A run is computed where it lies from this length.
constexpr int64_t kLongRun = 64;
constexpr int64_t kMaxElementSize = 8;

struct alignas(64) Buffer {
  char bytes[kBlock * kMaxElementSize];
};

// What a missing input reads.
constexpr Buffer kZeros = {};

// Columns `part` and on of a view.
struct Input {
  const LltmView& view;
  int64_t part, element_size;
};

// Columns `part` and on of a dense matrix, which is null if nobody wants it.
struct Output {
  void* data;
  int64_t row_size, part, element_size;
};

// Consecutive units of one row.
struct Run {
  int64_t cell, row, column, size;
};

Run run_at(const LltmShape& shape, int64_t unit, int64_t end) {
  const int64_t row = unit / shape.hidden, column = unit % shape.hidden;
  return {row / shape.rows_per_cell, row % shape.rows_per_cell, column,
          std::min(shape.hidden - column, end - unit)};
}

const char* address(const Input& input, const Run& run) {
  const LltmView& view = input.view;
  const int64_t element = run.cell * view.cell_stride + run.row * view.row_stride +
                          (input.part + run.column) * view.column_stride;
  return static_cast<const char*>(view.data) + element * input.element_size;
}

char* address(const Output& output, const Run& run, const LltmShape& shape) {
  const int64_t row = run.cell * shape.rows_per_cell + run.row;
  const int64_t element = row * output.row_size + output.part + run.column;
  return static_cast<char*>(output.data) + element * output.element_size;
}

template <class Word>
void copy_words(const char* src, int64_t stride, char* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    write(dst + i * int64_t{sizeof(Word)}, read<Word>(src + i * stride * int64_t{sizeof(Word)}));
  }
}

// n elements, `stride` elements apart -> dense.
void gather(const char* src, int64_t stride, int64_t element_size, char* dst, int64_t n) {
  if (stride == 1 && n >= kLanes) {
    std::memcpy(dst, src, n * element_size);
  } else if (element_size == 2) {
    copy_words<uint16_t>(src, stride, dst, n);
  } else if (element_size == 4) {
    copy_words<uint32_t>(src, stride, dst, n);
  } else {
    copy_words<uint64_t>(src, stride, dst, n);
  }
}

// The formula over n units, a multiple of kLanes: dense inputs of the stored types to dense
// outputs.
using Formula = void (*)(const char* const* in, char* const* out, int64_t n);

template <size_t kInputs, size_t kOutputs>
struct Task {
  const LltmShape& shape;
  Input inputs[kInputs];
  Output outputs[kOutputs];
  Formula formula;

  // For one block.
  struct Scratch {
    Buffer in[kInputs], out[kOutputs];
    const char* sources[kInputs];
    char* targets[kOutputs];
  };

  // Units begin .. end.
  void run(int64_t begin, int64_t end) const {
    Scratch scratch;
    const bool dense = std::all_of(inputs, inputs + kInputs, [](const Input& input) {
      return input.view.data == nullptr || input.view.column_stride == 1;
    });
    while (begin < end) {
      const Run run = run_at(shape, begin, end);
      int64_t n = std::min(run.size, kBlock) / kLanes * kLanes;
      if (dense && run.size >= kLongRun) {
        run_in_place(scratch, run, n);
      } else {
        n = std::min(kBlock, end - begin);
        run_gathered(scratch, begin, n);
      }
      begin += n;
    }
  }

  void run_in_place(Scratch& s, const Run& run, int64_t n) const {
    for (size_t k = 0; k < kInputs; ++k) {
      s.sources[k] = inputs[k].view.data ? address(inputs[k], run) : kZeros.bytes;
    }
    for (size_t k = 0; k < kOutputs; ++k) {
      s.targets[k] = outputs[k].data ? address(outputs[k], run, shape) : s.out[k].bytes;
    }
    formula(s.sources, s.targets, n);
  }

  void run_gathered(Scratch& s, int64_t begin, int64_t n) const {
    const int64_t padded = (n + kLanes - 1) / kLanes * kLanes;
    for (size_t k = 0; k < kInputs; ++k) {
      const int64_t size = inputs[k].element_size;
      s.sources[k] = inputs[k].view.data ? s.in[k].bytes : kZeros.bytes;
      std::memset(s.in[k].bytes + n * size, 0, (padded - n) * size);
    }
    for (size_t k = 0; k < kOutputs; ++k) s.targets[k] = s.out[k].bytes;
    Run run;
    for (int64_t done = 0; done < n; done += run.size) {
      run = run_at(shape, begin + done, begin + n);
      for (size_t k = 0; k < kInputs; ++k) {
        const auto& [view, part, size] = inputs[k];
        if (view.data == nullptr) continue;
        gather(address(inputs[k], run), view.column_stride, size, s.in[k].bytes + done * size,
               run.size);
      }
    }
    formula(s.sources, s.targets, padded);
    for (int64_t done = 0; done < n; done += run.size) {
      run = run_at(shape, begin + done, begin + n);
      for (size_t k = 0; k < kOutputs; ++k) {
        const int64_t size = outputs[k].element_size;
        if (outputs[k].data == nullptr) continue;
        gather(s.out[k].bytes + done * size, 1, size, address(outputs[k], run, shape), run.size);
      }
    }
  }
};

template <class T, class acc>
TREADLE_INLINE void load_lanes(const char* src, int64_t i, acc (&x)[kLanes]) {
  load_contiguous<T, acc>(src + i * int64_t{sizeof(T)}, x, kLanes);
}

template <class T, class acc>
TREADLE_INLINE void store_lanes(char* dst, int64_t i, const acc (&x)[kLanes]) {
  store_contiguous<T, acc>(dst + i * int64_t{sizeof(T)}, x, kLanes);
}

template <class T, class cell_t, class acc = acc_t<cell_t>>
void forward(const char* const* in, char* const* out, int64_t n) {
  acc g[3][kLanes], bias[3][kLanes], cell[kLanes], h[kLanes];
  for (int64_t i = 0; i < n; i += kLanes) {
    for (int k = 0; k < 3; ++k) load_lanes<T>(in[k], i, g[k]);
    for (int k = 0; k < 3; ++k) load_lanes<T>(in[3 + k], i, bias[k]);
    load_lanes<cell_t>(in[6], i, cell);
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const auto state =
          math::LltmCell<cell_t>::forward(g[0][lane] + bias[0][lane], g[1][lane] + bias[1][lane],
                                          g[2][lane] + bias[2][lane], cell[lane]);
      h[lane] = state.new_h;
      cell[lane] = state.new_cell;
    }
    store_lanes<T>(out[0], i, h);
    store_lanes<cell_t>(out[1], i, cell);
  }
}

template <class T, class cell_t, bool has_grad_h, class acc = acc_t<cell_t>>
void backward(const char* const* in, char* const* out, int64_t n) {
  acc g[3][kLanes], bias[3][kLanes], cell[kLanes], grad_h[kLanes], grad_cell[kLanes];
  for (int64_t i = 0; i < n; i += kLanes) {
    for (int k = 0; k < 3; ++k) load_lanes<T>(in[k], i, g[k]);
    for (int k = 0; k < 3; ++k) load_lanes<T>(in[3 + k], i, bias[k]);
    load_lanes<cell_t>(in[6], i, cell);
    load_lanes<T>(in[7], i, grad_h);
    load_lanes<cell_t>(in[8], i, grad_cell);
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const auto grad = math::LltmCell<cell_t>::template backward<has_grad_h>(
          g[0][lane] + bias[0][lane], g[1][lane] + bias[1][lane], g[2][lane] + bias[2][lane],
          cell[lane], grad_h[lane], grad_cell[lane]);
      g[0][lane] = grad.g0;
      g[1][lane] = grad.g1;
      g[2][lane] = grad.g2;
      grad_cell[lane] = grad.old_cell;
    }
    for (int k = 0; k < 3; ++k) store_lanes<T>(out[k], i, g[k]);
    store_lanes<cell_t>(out[3], i, grad_cell);
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
    using T = typename decltype(type)::type;
    using cell_t = typename decltype(cell_type)::type;
    constexpr int64_t size = sizeof(T), cell_size = sizeof(cell_t);
    const int64_t hidden = args.shape.hidden;
    const Task<7, 2> task{args.shape,
                          {{args.gates, 0, size},
                           {args.gates, hidden, size},
                           {args.gates, 2 * hidden, size},
                           {args.bias, 0, size},
                           {args.bias, hidden, size},
                           {args.bias, 2 * hidden, size},
                           {args.old_cell, 0, cell_size}},
                          {{args.new_h, hidden, 0, size}, {args.new_cell, hidden, 0, cell_size}},
                          forward<T, cell_t>};
    task.run(begin, end);
  });
}

void lltm_cell_backward(const LltmBackward& args, int64_t begin, int64_t end) {
  visit_shape(args.shape, [&](auto type, auto cell_type) {
    using T = typename decltype(type)::type;
    using cell_t = typename decltype(cell_type)::type;
    constexpr int64_t size = sizeof(T), cell_size = sizeof(cell_t);
    const int64_t hidden = args.shape.hidden;
    const Task<9, 4> task{
        args.shape,
        {{args.gates, 0, size},
         {args.gates, hidden, size},
         {args.gates, 2 * hidden, size},
         {args.bias, 0, size},
         {args.bias, hidden, size},
         {args.bias, 2 * hidden, size},
         {args.new_cell, 0, cell_size},
         {args.grad_h, 0, size},
         {args.grad_cell, 0, cell_size}},
        {{args.grad_gates, 3 * hidden, 0, size},
         {args.grad_gates, 3 * hidden, hidden, size},
         {args.grad_gates, 3 * hidden, 2 * hidden, size},
         {args.grad_old_cell, hidden, 0, cell_size}},
        args.grad_h.data ? backward<T, cell_t, true> : backward<T, cell_t, false>};
    task.run(begin, end);
  });
}

}  // namespace treadle::cpu::TREADLE_ISA
