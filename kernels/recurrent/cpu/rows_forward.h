// A recurrent layer's steps on the CPU, for any cell. Rows are independent, so each thread computes
// all steps of some rows. A step's product, its activations and the state stay in the caches;
// weights are packed into panels once per call. Twin: kernels/recurrent/step/step.cuh.
// kernels/math/cells/lltm.h describes the interface of a Cell.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/math/c_parts.h"
#include "kernels/recurrent/cpu/panels.h"
#include "kernels/recurrent/cpu/rows.h"

namespace treadle::cpu::TREADLE_ISA {

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

// Adds a + bias to `sum`, or only the bias if a is null.
template <class acc>
TREADLE_INLINE void add_vectors(acc (&sum)[kColumns<acc>], const acc* bias, const acc* a) {
  using V = VectorType<acc>;
  constexpr int kLanes = kVectorBytes / sizeof(acc);
  for (int i = 0; i < kColumns<acc>; i += kLanes) {
    V total, more;
    std::memcpy(&total, sum + i, sizeof(V));
    std::memcpy(&more, bias + i, sizeof(V));
    if (a != nullptr) {
      V product;
      std::memcpy(&product, a + i, sizeof(V));
      more = product + more;
    }
    total = total + more;
    std::memcpy(sum + i, &total, sizeof(V));
  }
}

// The forward pass of a part of the batch.
template <template <class> class CellOf, class T, class acc = acc_t<T>>
class ForwardRows {
  using Cell = CellOf<acc>;
  static constexpr int kGates = Cell::kGates, kStateGates = Cell::kStateGates;
  static constexpr int kInputGates = Cell::kInputGates, kFirstInput = kGates - kInputGates;
  static constexpr int kMostGates = std::max(kStateGates, kInputGates);
  static constexpr int kGroups = kGroupsAtOnce<kMostGates>;
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
        most_rows_(rows_in_l2(padded_ + (args.input.data == nullptr ? 0 : args.input_size))),
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
      if (a_.state_products.data != nullptr) {
        add_state_products(step.start + begin_, rows);
      } else {
        const int64_t blocks = (rows + most_rows_ - 1) / most_rows_;
        for (int64_t i = 0; i < blocks; ++i) {
          const int64_t first = rows * i / blocks, last = rows * (i + 1) / blocks;
          over_groups<kGroups>(first_, part_.last_unit, kN, [&](auto groups, int64_t column) {
            run_groups<decltype(groups)::value>(step, column / kN, first, last - first);
          });
        }
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
  // The most rows whose input and h stay in the L2 cache, while every group reads them again.
  int64_t most_rows_;
  Scratch<acc> c_, bias_, own_h_;
  // Before and after this step. Rows without this step have their h in both.
  acc* h_[2];

  static int64_t rows_in_l2(int64_t row_elements) {
    constexpr int64_t kBytes = 3 << 18, kLeast = 48;
    return std::max(kBytes / (row_elements * int64_t{sizeof(acc)}), kLeast);
  }

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

  // Computes `groups` groups, from group `first_group` on, of some rows.
  template <int groups>
  void run_groups(const RecurrenceStep& step, int64_t first_group, int64_t from, int64_t rows) {
    constexpr int kState = groups * kStateGates, kInput = groups * kInputGates;
    constexpr int kMost = groups * kMostGates;
    const int64_t first_row = step.start + begin_;
    const bool given = a_.input.data == nullptr;
    alignas(64) acc of_input[kMostRows<kMost> * kInput * kN];
    multiply_rows<kState, kMost>(
        panels_ + first_group * a_.hidden * kStateGates * kN, h_[0] + from * padded_, padded_, rows,
        a_.hidden,
        [&](int64_t first, int count) {
          const int64_t row = first_row + from + first;
          for (int i = 0; i < groups && given; ++i) fetch(row, count, (first_group + i) * kN);
          if (!given) multiply_input<groups>(row, count, first_group, of_input);
        },
        [&](int64_t first, int64_t count, const acc* products) {
          for (int i = 0; i < groups; ++i) {
            finish<groups>(first_row, from + first, count, first_group + i,
                           products + i * kStateGates * kN,
                           given ? nullptr : of_input + i * kInputGates * kN);
          }
        });
  }

  // Multiplies `count` rows of the input, from row `row` on.
  template <int groups>
  TREADLE_INLINE void multiply_input(int64_t row, int count, int64_t group, acc* products) const {
    const MatrixView& input = a_.input;
    multiply_some<groups * kInputGates>(
        static_cast<const acc*>(a_.input_panels) + group * a_.input_size * kInputGates * kN,
        static_cast<const acc*>(input.data) + row * input.row_stride, input.row_stride, count,
        a_.input_size, products);
  }

  // Computes all groups from the products with h that the caller has computed.
  void add_state_products(int64_t first_row, int64_t rows) {
    constexpr int kMost = kMostRows<kMostGates>;
    for (int64_t column = first_; column < part_.last_unit; column += kN) {
      const int64_t n = std::min(kN, a_.hidden - column);
      for (int64_t first = 0; first < rows; first += kMost) {
        acc products[kMost * kStateGates * kN] = {};
        const int64_t count = std::min<int64_t>(kMost, rows - first);
        for (int64_t i = 0; i < count * kStateGates; ++i) {
          const int64_t row = begin_ + first + i / kStateGates;
          const int64_t block = Cell::weight_block(static_cast<int>(i % kStateGates));
          acc own[kN] = {};
          load_some<acc>(a_.state_products.data,
                         row * a_.state_products.row_stride + block * a_.hidden + column, own, n);
          std::copy_n(own, kN, products + i * kN);
        }
        finish<1>(first_row, first, count, column / kN, products, nullptr);
      }
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

  // Computes the gates and the new state of kN units of some rows, from products of `groups`
  // groups. If `of_input` is null, their products with the input are in the arguments.
  template <int groups>
  TREADLE_INLINE void finish(int64_t first_row, int64_t first, int64_t count, int64_t group,
                             const acc* products, const acc* of_input) {
    constexpr int kMost = kMostRows<kMostGates>;
    const int64_t column = group * kN;
    Gates gates[kMost];
    acc h[kMost][kN];
    for (int64_t r = 0; r < count; ++r) {
      const acc* const own =
          of_input == nullptr ? nullptr : of_input + r * groups * kInputGates * kN;
      add_up(first_row + first + r, column, products + r * groups * kStateGates * kN, own,
             gates[r]);
    }
    advance<Cell, acc>(gates, c_ + first * kCParts * padded_ + column, padded_, count, h);
    for (int64_t r = 0; r < count; ++r) store_h(first_row, first + r, column, h[r]);
  }

  // Adds a row's products with h, its products with the input, and the biases.
  TREADLE_INLINE void add_up(int64_t row, int64_t column, const acc* products, const acc* of_input,
                             Gates& gates) {
    const int64_t n = std::min(kN, a_.hidden - column);
    for (int k = 0; k < kGates; ++k) {
      // The compiler would keep an array of its own in single elements.
      acc(&sum)[kN] = gates[k];
      if (k < kFirstInput) {
        std::fill_n(sum, kN, acc(0));
      } else if (of_input != nullptr) {
        std::copy_n(of_input + (k - kFirstInput) * kN, kN, sum);
      } else {
        if (n < kN) std::fill_n(sum, kN, acc(0));
        load_some<acc>(a_.products.data,
                       row * a_.products.row_stride + (k - kFirstInput) * a_.hidden + column, sum,
                       n);
      }
      const acc* bias = bias_ + k * padded_ + column;
      add_vectors(sum, bias, k < kStateGates ? products + k * kN : nullptr);
      if (a_.gates != nullptr) {
        store_some<T>(a_.gates, (row * kGates + k) * a_.hidden + column, sum, n);
      }
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
