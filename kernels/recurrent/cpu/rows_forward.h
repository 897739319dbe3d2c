// A recurrent layer's steps on the CPU, for any cell. Rows are independent, so each thread computes
// all steps of some rows. A step's product, its activations and the state stay in the caches;
// weights are packed into panels once per call. Twin: kernels/recurrent/step/step.cuh.
// kernels/math/cells/lltm.h describes the interface of a Cell.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>

#include "kernels/math/c_parts.h"
#include "kernels/recurrent/cpu/gemm.h"
#include "kernels/recurrent/cpu/rows.h"

namespace treadle::cpu::TREADLE_ISA {

// Zeroed memory of one task, aligned to cache lines.
template <class acc>
class Scratch {
 public:
  explicit Scratch(int64_t size)
      : data_(static_cast<acc*>(
            ::operator new[](std::max<int64_t>(size, 1) * sizeof(acc), std::align_val_t{64}))) {
    std::fill_n(data_.get(), size, acc(0));
  }
  acc* operator+(int64_t i) const { return data_.get() + i; }

 private:
  struct Free {
    void operator()(acc* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  std::unique_ptr<acc[], Free> data_;
};

// The number of groups of kColumns units. Panels and states are padded to whole groups.
template <class acc>
int64_t groups_of(int64_t hidden) {
  return (hidden + kColumns<acc> - 1) / kColumns<acc>;
}

// The backward product computes two groups at once.
inline constexpr int kBackwardUnits = 2;

// Packs weights [gates * H, K] into panels [group][gate][K][column], for products with W^T. Writes
// the panels of units first to last, like pack_backward. Gate g has the rows of block block_of(g).
template <class T, class acc, class Block>
void pack_gates(const MatrixView& weight, int gates, int64_t depth, int64_t hidden, int64_t first,
                int64_t last, const Block& block_of, acc* panels) {
  constexpr int64_t kN = kColumns<acc>;
  const auto* data = static_cast<const char*>(weight.data);
  for (int64_t unit = first; unit < last; unit += kN) {
    const int64_t units = std::min(kN, last - unit);
    for (int gate = 0; gate < gates; ++gate) {
      const char* rows[kN];
      for (int64_t i = 0; i < kN; ++i) {
        const int64_t row = block_of(gate) * hidden + unit + std::min(i, units - 1);
        rows[i] = data + row * weight.row_stride * int64_t{sizeof(T)};
      }
      acc* to = panels + (unit * gates + gate * kN) * depth;
      int64_t k = 0;
      for (; k + kN <= depth && weight.column_stride == 1; k += kN, to += kN * kN) {
        transpose_block<T, acc>(rows, k * int64_t{sizeof(T)}, to);
      }
      for (; k < depth; ++k, to += kN) {
        const int64_t at = k * weight.column_stride * int64_t{sizeof(T)};
        for (int64_t i = 0; i < kN; ++i) to[i] = from_stored<T, acc>(read<T>(rows[i] + at));
      }
    }
  }
}

// Packs W_hh [G_h H, H].
template <class Cell, class T, class acc>
void pack_forward(const MatrixView& weight, int64_t hidden, int64_t first, int64_t last,
                  acc* panels) {
  pack_gates<T>(weight, Cell::kStateGates, hidden, hidden, first, last, Cell::weight_block, panels);
}

// Packs W_ih [G_i H, I].
template <class Cell, class T, class acc>
void pack_input(const MatrixView& weight, int64_t inputs, int64_t hidden, int64_t first,
                int64_t last, acc* panels) {
  pack_gates<T>(
      weight, Cell::kInputGates, inputs, hidden, first, last, [](int64_t gate) { return gate; },
      panels);
}

// Packs weights [G_h H, H] into panels [group][G_h H][column], for grad_gates W.
template <class Cell, class T, class acc>
void pack_backward(const MatrixView& weight, int64_t hidden, int64_t first, int64_t last,
                   acc* panels) {
  constexpr int64_t kN = kColumns<acc>;
  const auto* data = static_cast<const char*>(weight.data);
  const int64_t depth = Cell::kStateGates * hidden;
  // The backward product reads whole pairs of groups.
  const int64_t end =
      (last + kBackwardUnits * kN - 1) / (kBackwardUnits * kN) * kBackwardUnits * kN;
  for (int64_t unit = first; unit < end; unit += kN) {
    const int64_t units = std::clamp(last - unit, int64_t{0}, kN);
    acc* to = panels + unit * depth;
    for (int64_t k = 0; k < depth; ++k, to += kN) {
      const int64_t row = Cell::weight_block(static_cast<int>(k / hidden)) * hidden + k % hidden;
      const int64_t at = row * weight.row_stride + unit * weight.column_stride;
      load<T, acc>(data + at * int64_t{sizeof(T)}, weight.column_stride * int64_t{sizeof(T)}, to,
                   units);
      std::fill(to + units, to + kN, acc(0));
    }
  }
}

// Whether the cell has output(), which computes h from the gates and the new c.
template <class Cell, class = void>
inline constexpr bool kHasOutput = false;
template <class Cell>
inline constexpr bool kHasOutput<Cell, std::void_t<decltype(&Cell::output)>> = true;

// The gates of kColumns units of a row, and a number for each of these units.
template <class Cell, class acc>
using GatesOf = acc[Cell::kGates][kColumns<acc>];
template <class acc>
using UnitsOf = acc[kColumns<acc>];

// The functions below depend on acc, but not on the dtype T of the tensors. They are not inlined,
// so float, float16 and bfloat16 share their code, which takes most of the time to compile.

// Computes the new c and h of kColumns units of `count` rows. A cell is a long chain of dependent
// instructions, so the processor starts the next row before the current one has finished. With
// several rows, c and h have separate loops. Each chain is then half as long, so more rows overlap.
template <class Cell, class acc>
TREADLE_NOINLINE void advance(const GatesOf<Cell, acc>* gates, acc* own_c, int64_t padded,
                              int64_t count, UnitsOf<acc>* h) {
  constexpr int64_t kN = kColumns<acc>;
  constexpr int kGates = Cell::kGates, kCParts = Cell::kCParts;
  constexpr bool kApart = kMostRows<Cell::kStateGates> >= 4 && kHasOutput<Cell>;
  using C = math::CType<acc, kCParts>;
  for (int64_t r = 0; r < count; ++r) {
    acc* const row_c = own_c + r * kCParts * padded;
    acc c[kCParts][kN];
    for (int64_t i = 0; i < kN; ++i) {
      acc g[kGates];
      for (int k = 0; k < kGates; ++k) g[k] = gates[r][k][i];
      C old_c{};
      for (int p = 0; p < kCParts; ++p) math::part(old_c, p) = row_c[p * padded + i];
      C new_c;
      if constexpr (kHasOutput<Cell>) {
        new_c = Cell::next(g, old_c);
        if constexpr (!kApart) h[r][i] = Cell::output(g, new_c);
      } else {
        const auto state = Cell::forward(g, old_c);
        new_c = state.new_cell, h[r][i] = state.new_h;
      }
      for (int p = 0; p < kCParts; ++p) c[p][i] = math::part(new_c, p);
    }
    for (int p = 0; p < kCParts; ++p) std::copy_n(c[p], kN, row_c + p * padded);
  }
  if constexpr (kApart) {
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t i = 0; i < kN; ++i) {
        acc g[kGates];
        for (int k = 0; k < kGates; ++k) g[k] = gates[r][k][i];
        h[r][i] = Cell::output(g, own_c[r * padded + i]);
      }
    }
  }
}

// Replaces c before a step by c after the step.
template <class Cell, class acc>
TREADLE_NOINLINE void next_c(const GatesOf<Cell, acc>& gates, UnitsOf<acc>* c) {
  constexpr int kGates = Cell::kGates, kCParts = Cell::kCParts;
  for (int64_t i = 0; i < kColumns<acc>; ++i) {
    acc g[kGates];
    for (int k = 0; k < kGates; ++k) g[k] = gates[k][i];
    math::CType<acc, kCParts> own{};
    for (int p = 0; p < kCParts; ++p) math::part(own, p) = c[p][i];
    const auto next = Cell::next(g, own);
    for (int p = 0; p < kCParts; ++p) c[p][i] = math::part(next, p);
  }
}

template <class T, class acc>
TREADLE_INLINE void load_some(const void* base, int64_t at, acc (&x)[kColumns<acc>], int64_t n) {
  const char* const from = static_cast<const char*>(base) + at * int64_t{sizeof(T)};
  // With a constant length the compiler uses vectors and does not call memcpy.
  n == kColumns<acc> ? load_contiguous<T, acc>(from, x, kColumns<acc>)
                     : load_contiguous<T, acc>(from, x, n);
}

template <class T, class acc>
TREADLE_INLINE void store_some(void* base, int64_t at, const acc (&x)[kColumns<acc>], int64_t n) {
  char* const to = static_cast<char*>(base) + at * int64_t{sizeof(T)};
  n == kColumns<acc> ? store_contiguous<T, acc>(to, x, kColumns<acc>)
                     : store_contiguous<T, acc>(to, x, n);
}

// The forward pass of a part of the batch.
template <template <class> class CellOf, class T, class acc = acc_t<T>>
class ForwardRows {
  using Cell = CellOf<acc>;
  static constexpr int kGates = Cell::kGates, kStateGates = Cell::kStateGates;
  static constexpr int kInputGates = Cell::kInputGates, kFirstInput = kGates - kInputGates;
  static constexpr int kMostGates = std::max(kStateGates, kInputGates);
  static constexpr int kCParts = Cell::kCParts;
  static constexpr int64_t kN = kColumns<acc>;

 public:
  ForwardRows(const RecurrenceForward& args, const acc* panels, const RowsPart& part)
      : a_(args),
        panels_(panels),
        part_(part),
        begin_(part.begin),
        count_(part.end - part.begin),
        first_(part.first_unit),
        width_(part.last_unit - part.first_unit),
        padded_(groups_of<acc>(args.hidden) * kN),
        c_(count_ * kCParts * padded_),
        bias_(kGates * padded_),
        own_h_(part.h == nullptr ? 2 * count_ * padded_ : 0) {
    acc* const h = part.h == nullptr ? own_h_ + 0 : static_cast<acc*>(part.h);
    h_[0] = h, h_[1] = h + count_ * padded_;
  }

  void run() {
    load_state();
    int64_t active = 0;
    for (int64_t s = 0; s < a_.step_count; ++s) {
      const RecurrenceStep& step = a_.steps[s];
      const int64_t rows = std::clamp(step.rows - begin_, int64_t{0}, count_);
      // Rows from `rows` to `active` have ended before this step.
      store_state(rows, active);
      active = rows;
      start_anew(step, rows);
      // The product reads h of all units. Other threads may write them.
      if (part_.barrier != nullptr) part_.barrier->wait(part_.count);
      for (int64_t column = first_; column < part_.last_unit; column += kN) {
        run_group(step, column / kN, rows);
      }
      std::swap(h_[0], h_[1]);
    }
    store_state(0, active);
  }

 private:
  const RecurrenceForward& a_;
  const acc* panels_;
  const RowsPart& part_;
  int64_t begin_, count_, first_, width_, padded_;
  Scratch<acc> c_, bias_, own_h_;
  // Before and after this step. Rows without this step have their h in both.
  acc* h_[2];

  void load_state() {
    for (int gate = kFirstInput; gate < kGates; ++gate) {
      add_bias(a_.bias_ih, gate - kFirstInput, gate);
    }
    for (int gate = 0; gate < kStateGates; ++gate) {
      add_bias(a_.bias_hh, Cell::weight_block(gate), gate);
    }
    for (int64_t r = 0; r < count_; ++r) {
      acc* const own = h_[0] + r * padded_ + first_;
      load_h(a_.h, begin_ + r, own);
      std::copy_n(own, width_, h_[1] + r * padded_ + first_);
      load_c(a_.c, begin_ + r, r);
    }
  }

  // Loads this part's units of row `row` of an array [..., H].
  void load_h(const void* from, int64_t row, acc* to) const {
    const int64_t at = row * a_.hidden + first_;
    load_contiguous<T, acc>(static_cast<const char*>(from) + at * int64_t{sizeof(T)}, to, width_);
  }

  // Loads row r of c from `row` of an array [..., kCParts * H].
  void load_c(const void* from, int64_t row, int64_t r) {
    for (int64_t p = r * kCParts, of = row * kCParts; p < (r + 1) * kCParts; ++p, ++of) {
      std::copy_n(static_cast<const acc*>(from) + of * a_.hidden + first_, width_,
                  c_ + (p * padded_ + first_));
    }
  }

  void add_bias(const void* bias, int64_t block, int gate) {
    if (bias == nullptr) return;
    const int64_t element = block * a_.hidden;
    acc* const to = bias_ + gate * padded_;
    for (int64_t column = first_; column < part_.last_unit; column += kN) {
      acc own[kN] = {};
      const int64_t n = std::min(kN, a_.hidden - column);
      load_some<T>(bias, element + column, own, n);
      for (int64_t i = 0; i < n; ++i) to[column + i] += own[i];
    }
  }

  void store_state(int64_t from, int64_t to) {
    for (int64_t r = from; r < to; ++r) {
      const int64_t at = (begin_ + r) * a_.hidden;
      char* h = static_cast<char*>(a_.h) + (at + first_) * int64_t{sizeof(T)};
      store_contiguous<T, acc>(h, h_[0] + r * padded_ + first_, width_);
      for (int64_t p = 0; p < kCParts; ++p) {
        std::copy_n(c_ + ((r * kCParts + p) * padded_ + first_), width_,
                    static_cast<acc*>(a_.c) + at * kCParts + p * a_.hidden + first_);
      }
    }
  }

  void start_anew(const RecurrenceStep& step, int64_t rows) {
    const RecurrenceResets& resets = a_.resets;
    for (int64_t r = 0; r < rows && resets.marks != nullptr; ++r) {
      if (!starts_anew(resets, step, begin_ + r)) continue;
      const int64_t row = reset_row(resets, step, begin_ + r);
      acc* const h = h_[0] + r * padded_ + first_;
      std::fill_n(h, width_, acc(0));
      std::fill_n(c_ + r * kCParts * padded_, kCParts * padded_, acc(0));
      if (resets.h != nullptr) {
        load_h(resets.h, row, h);
        load_c(resets.c, row, r);
      }
    }
  }

  void run_group(const RecurrenceStep& step, int64_t group, int64_t rows) {
    const int64_t first_row = step.start + begin_;
    if (a_.state_products.data != nullptr) return finish_group(first_row, group, rows);
    const acc* const panel = panels_ + group * a_.hidden * kStateGates * kN;
    const bool given = a_.input.data == nullptr;
    alignas(64) acc of_input[kMostRows<kMostGates> * kInputGates * kN];
    multiply_rows<kStateGates, kMostGates>(
        panel, h_[0], padded_, rows, a_.hidden,
        [&](int64_t first, int count) {
          given ? fetch(first_row + first, count, group * kN)
                : multiply_input(first_row + first, count, group, of_input);
        },
        [&](int64_t first, int64_t count, const acc* products) {
          finish(first_row, first, count, group, products, given ? nullptr : of_input);
        });
  }

  // Multiplies `count` rows of the input, from row `row` on.
  TREADLE_INLINE void multiply_input(int64_t row, int count, int64_t group, acc* products) const {
    const MatrixView& input = a_.input;
    multiply_some<kInputGates>(
        static_cast<const acc*>(a_.input_panels) + group * a_.input_size * kInputGates * kN,
        static_cast<const acc*>(input.data) + row * input.row_stride, input.row_stride, count,
        a_.input_size, products);
  }

  // Computes a group from the products with h that the caller has computed.
  void finish_group(int64_t first_row, int64_t group, int64_t rows) {
    constexpr int kMost = kMostRows<kMostGates>;
    acc products[kMost * kStateGates * kN] = {};
    const int64_t n = std::min(kN, a_.hidden - group * kN);
    for (int64_t first = 0; first < rows; first += kMost) {
      const int64_t count = std::min<int64_t>(kMost, rows - first);
      for (int64_t i = 0; i < count * kStateGates; ++i) {
        const int64_t row = begin_ + first + i / kStateGates;
        const int64_t block = Cell::weight_block(static_cast<int>(i % kStateGates));
        acc own[kN] = {};
        load_some<acc>(a_.state_products.data,
                       row * a_.state_products.row_stride + block * a_.hidden + group * kN, own, n);
        std::copy_n(own, kN, products + i * kN);
      }
      finish(first_row, first, count, group, products, nullptr);
    }
  }

  // Prefetches the input products, whose stride is too large for the hardware prefetcher.
  TREADLE_INLINE void fetch(int64_t row, int64_t count, int64_t column) const {
    const acc* from = static_cast<const acc*>(a_.products.data) + row * a_.products.row_stride;
    for (int64_t r = 0; r < count; ++r, from += a_.products.row_stride) {
      for (int k = 0; k < Cell::kInputGates; ++k) __builtin_prefetch(from + k * a_.hidden + column);
    }
  }

  using Gates = GatesOf<Cell, acc>;

  // Computes the gates and the new state of kN units of some rows. If `of_input` is null, their
  // products with the input are in the arguments.
  TREADLE_INLINE void finish(int64_t first_row, int64_t first, int64_t count, int64_t group,
                             const acc* products, const acc* of_input) {
    constexpr int kMost = kMostRows<kMostGates>;
    const int64_t column = group * kN;
    Gates gates[kMost];
    acc h[kMost][kN];
    for (int64_t r = 0; r < count; ++r) {
      const acc* const own = of_input == nullptr ? nullptr : of_input + r * kInputGates * kN;
      add_up(first_row + first + r, column, products + r * kStateGates * kN, own, gates[r]);
    }
    advance<Cell, acc>(gates, c_ + first * kCParts * padded_ + column, padded_, count, h);
    for (int64_t r = 0; r < count; ++r) store_h(first_row, first + r, column, h[r]);
  }

  // Adds a row's products with h, its products with the input, and the biases.
  TREADLE_INLINE void add_up(int64_t row, int64_t column, const acc* products, const acc* of_input,
                             Gates& gates) {
    const int64_t n = std::min(kN, a_.hidden - column);
    for (int k = 0; k < kGates; ++k) {
      acc sum[kN] = {};
      if (k >= kFirstInput && of_input != nullptr) {
        std::copy_n(of_input + (k - kFirstInput) * kN, kN, sum);
      } else if (k >= kFirstInput) {
        load_some<acc>(a_.products.data,
                       row * a_.products.row_stride + (k - kFirstInput) * a_.hidden + column, sum,
                       n);
      }
      const acc* bias = bias_ + k * padded_ + column;
      if (k < kStateGates) {
        for (int64_t i = 0; i < kN; ++i) sum[i] += products[k * kN + i] + bias[i];
      } else {
        for (int64_t i = 0; i < kN; ++i) sum[i] += bias[i];
      }
      if (a_.gates != nullptr) {
        store_some<T>(a_.gates, (row * kGates + k) * a_.hidden + column, sum, n);
      }
      std::copy_n(sum, kN, gates[k]);
    }
  }

  TREADLE_INLINE void store_h(int64_t first_row, int64_t r, int64_t column, acc (&h)[kN]) {
    const int64_t n = std::min(kN, a_.hidden - column), row = first_row + r;
    store_some<T>(a_.output, row * a_.output_stride + column, h, n);
    // The next step reads the stored, rounded value.
    if constexpr (!std::is_same_v<T, acc>) {
      load_some<T>(a_.output, row * a_.output_stride + column, h, n);
    }
    std::copy_n(h, kN, h_[1] + r * padded_ + column);
  }
};

}  // namespace treadle::cpu::TREADLE_ISA
