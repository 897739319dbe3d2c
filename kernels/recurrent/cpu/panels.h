// Weights of recurrent layers, packed into panels for the products of gemm.h: as a whole, or, for a
// product that is computed only once, one group of units at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>

#include "kernels/recurrent/cpu/gemm.h"
#include "kernels/recurrent/cpu/rows.h"

namespace treadle::cpu::TREADLE_ISA {

// Memory of one task, aligned to cache lines.
template <class acc>
class Scratch {
 public:
  explicit Scratch(int64_t size, bool zeroed = true)
      : data_(static_cast<acc*>(
            ::operator new[](std::max<int64_t>(size, 1) * sizeof(acc), std::align_val_t{64}))) {
    if (zeroed) std::fill_n(data_.get(), size, acc(0));
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

// Packs a group of kColumns units of weights [gates * H, K] into a panel [gate][K][column], for
// products with W^T. Gate g has the rows of block block_of(g). If the group has fewer `units`, the
// last one is repeated.
template <class T, class acc, class Block>
void pack_group(const MatrixView& weight, int gates, int64_t depth, int64_t hidden, int64_t unit,
                int64_t units, const Block& block_of, acc* to) {
  constexpr int64_t kN = kColumns<acc>;
  const auto* data = static_cast<const char*>(weight.data);
  for (int gate = 0; gate < gates; ++gate) {
    const char* rows[kN];
    for (int64_t i = 0; i < kN; ++i) {
      const int64_t row = block_of(gate) * hidden + unit + std::min(i, units - 1);
      rows[i] = data + row * weight.row_stride * int64_t{sizeof(T)};
    }
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

// Packs the groups of units first to last into panels [group][gate][K][column]. `panels` points to
// the panel of unit `first`.
template <class T, class acc, class Block>
void pack_gates(const MatrixView& weight, int gates, int64_t depth, int64_t hidden, int64_t first,
                int64_t last, const Block& block_of, acc* panels) {
  for (int64_t unit = first; unit < last; unit += kColumns<acc>) {
    pack_group<T, acc>(weight, gates, depth, hidden, unit,
                       std::min<int64_t>(kColumns<acc>, last - unit), block_of,
                       panels + (unit - first) * gates * depth);
  }
}

// Calls f(std::integral_constant, unit) for groups of `size` units: for `most` groups at once as
// long as there are so many, then for each of the others.
template <int most, class F>
TREADLE_INLINE void over_groups(int64_t first, int64_t last, int64_t size, const F& f) {
  int64_t unit = first;
  if constexpr (most > 1) {
    for (; unit + (most - 1) * size < last; unit += most * size) {
      f(std::integral_constant<int, most>{}, unit);
    }
  }
  for (; unit < last; unit += size) f(std::integral_constant<int, 1>{}, unit);
}

// Packs W_hh [G_h H, H].
template <class Cell, class T, class acc>
void pack_forward(const MatrixView& weight, int64_t hidden, int64_t first, int64_t last,
                  acc* panels) {
  pack_gates<T>(weight, Cell::kStateGates, hidden, hidden, first, last, Cell::weight_block,
                panels + first * Cell::kStateGates * hidden);
}

// Packs W_ih [G_i H, I].
template <class Cell, class T, class acc>
void pack_input(const MatrixView& weight, int64_t inputs, int64_t hidden, int64_t first,
                int64_t last, acc* panels) {
  pack_gates<T>(
      weight, Cell::kInputGates, inputs, hidden, first, last, [](int64_t gate) { return gate; },
      panels + first * Cell::kInputGates * inputs);
}

// Packs units first to last of weights [G_h H, H] into panels [group][G_h H][column], for
// grad_gates W. `panels` points to the panel of unit `first`.
template <class Cell, class T, class acc>
void pack_columns(const MatrixView& weight, int64_t hidden, int64_t first, int64_t last,
                  acc* panels) {
  constexpr int64_t kN = kColumns<acc>;
  const auto* data = static_cast<const char*>(weight.data);
  const int64_t depth = Cell::kStateGates * hidden;
  // The backward product reads whole pairs of groups.
  const int64_t end =
      (last + kBackwardUnits * kN - 1) / (kBackwardUnits * kN) * kBackwardUnits * kN;
  for (int64_t unit = first; unit < end; unit += kN) {
    const int64_t units = std::clamp(last - unit, int64_t{0}, kN);
    acc* to = panels + (unit - first) * depth;
    for (int64_t k = 0; k < depth; ++k, to += kN) {
      const int64_t row = Cell::weight_block(static_cast<int>(k / hidden)) * hidden + k % hidden;
      const int64_t at = row * weight.row_stride + unit * weight.column_stride;
      load<T, acc>(data + at * int64_t{sizeof(T)}, weight.column_stride * int64_t{sizeof(T)}, to,
                   units);
      std::fill(to + units, to + kN, acc(0));
    }
  }
}

template <class Cell, class T, class acc>
void pack_backward(const MatrixView& weight, int64_t hidden, int64_t first, int64_t last,
                   acc* panels) {
  pack_columns<Cell, T>(weight, hidden, first, last, panels + first * Cell::kStateGates * hidden);
}

// Multiplies rows by W^T of units first to last. It packs one group of units at a time, which stays
// in the cache, so it needs no memory for a packed W. Sums have the order of addition of panels
// that are packed once.
template <int blocks, class T, class acc>
void multiply_unpacked(const RowProducts& a, int64_t first, int64_t last) {
  constexpr int64_t kN = kColumns<acc>;
  constexpr int kGroups = kGroupsAtOnce<blocks>, kAll = kGroups * blocks;
  const Scratch<acc> panels(kAll * a.depth * kN, /*zeroed=*/false);
  const auto run = [&](auto groups, int64_t unit) {
    constexpr int kOwn = decltype(groups)::value * blocks;
    const int64_t units = std::min(decltype(groups)::value * kN, last - unit);
    pack_gates<T>(
        a.weight, blocks, a.depth, a.hidden, unit, unit + units, [](int block) { return block; },
        panels + 0);
    multiply_rows<kOwn>(
        panels + 0, static_cast<const acc*>(a.x), a.x_stride, a.rows, a.depth,
        [](int64_t, int64_t) {},
        [&](int64_t row, int64_t count, const acc* products) {
          for (int64_t i = 0; i < count * kOwn; ++i, products += kN) {
            const int64_t from = i % kOwn / blocks * kN;
            std::copy_n(products, std::min(kN, units - from),
                        static_cast<acc*>(a.out) + (row + i / kOwn) * a.out_stride +
                            i % blocks * a.hidden + unit + from);
          }
        });
  };
  over_groups<kGroups>(first, last, kN, run);
}

// Does the same for the backward product, whose result is [R, H].
template <class Cell, class T, class acc>
void multiply_back_unpacked(const RowProducts& a, int64_t first, int64_t last) {
  constexpr int64_t kWidth = kBackwardUnits * kColumns<acc>;
  const Scratch<acc> panels(a.depth * kWidth, /*zeroed=*/false);
  for (int64_t unit = first; unit < last; unit += kWidth) {
    const int64_t units = std::min(kWidth, last - unit);
    pack_columns<Cell, T>(a.weight, a.hidden, unit, unit + units, panels + 0);
    multiply_rows<kBackwardUnits>(
        panels + 0, static_cast<const acc*>(a.x), a.x_stride, a.rows, a.depth,
        [](int64_t, int64_t) {},
        [&](int64_t row, int64_t count, const acc* products) {
          for (int64_t i = 0; i < count; ++i) {
            std::copy_n(products + i * kWidth, units,
                        static_cast<acc*>(a.out) + (row + i) * a.out_stride + unit);
          }
        });
  }
}

template <class Cell, class T, class acc>
void multiply_unpacked(ProductOf product, const RowProducts& a, int64_t first, int64_t last) {
  switch (product) {
    case ProductOf::kInput:
      return multiply_unpacked<Cell::kInputGates, T, acc>(a, first, last);
    case ProductOf::kState:
      return multiply_unpacked<Cell::kStateGates, T, acc>(a, first, last);
    case ProductOf::kGradient:
      return multiply_back_unpacked<Cell, T, acc>(a, first, last);
  }
}

}  // namespace treadle::cpu::TREADLE_ISA
