// The forward kernel of a single block, for any cell (block/block.cuh):
// gates_t = products_t + bias + h_{t-1} W_hh^T, then the cell. Threads 2u and 2u + 1 share unit u:
// each sums half of K (the reduction dimension), and then computes one of the two rows.
#pragma once

#include "kernels/recurrent/block/block.cuh"

namespace treadle {

template <class Cell, int units>
using BlockForward = Block<units, Cell::kStateGates, units, Cell::kGates>;

// This is a single function because the weights fill the registers. Divided into several functions,
// even inlined ones, it would need more registers, and block_backward with 128 units would spill.
template <class Cell, class T, int units, bool any_resets>
__global__ void __launch_bounds__(2 * units, 1)
    block_forward(const __grid_constant__ PersistentForward args, int rows_each) {
  begin_kernel();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (!block_has_code(ptx::kSetmaxnreg, is_half_type<T>, units)) return;
  constexpr int kGates = Cell::kGates, kStateGates = Cell::kStateGates;
  constexpr int kFirstInput = kGates - Cell::kInputGates;
  using Layout = BlockForward<Cell, units>;
  using C = math::CType<float, Cell::kCParts>;
  extern __shared__ __align__(128) unsigned char memory[];
  auto* const states = reinterpret_cast<float*>(memory);
  float* const stages = states + 2 * Layout::kStateFloats + threadIdx.x;
  const Group group(args.sizes, static_cast<int>(blockIdx.x), rows_each);
  const GroupRows& rows = group.rows;
  const int64_t hidden = args.sizes.hidden, d = group.direction;
  const int steps = static_cast<int>(args.sizes.steps);
  // This thread's half of K and its row have the same index.
  const int half = static_cast<int>(threadIdx.x) % 2, row = half;
  const int unit = static_cast<int>(threadIdx.x) / 2;
  const bool real = row < rows.count && row < rows_each && unit < hidden;

  float weights[kStateGates][Layout::kDepth], bias[kGates];
#pragma unroll
  for (int m = 0; m < kGates; ++m) {
    bias[m] = real ? bias_of<Cell, T>(args, d, m, unit) : 0.0f;
    if (m >= kStateGates) continue;
    const int64_t first = (d * kStateGates + Cell::weight_block(m)) * hidden + unit;
    const int count = unit < hidden ? static_cast<int>(hidden) - half * 4 : 0;
    const auto* const at = static_cast<const T*>(args.weight_hh) + first * hidden + half * 4;
#pragma unroll
    for (int i = 0; i < Layout::kDepth; ++i) {
      weights[m][i] = block_k(i) < count ? widen(at[block_k(i)]) : 0.0f;
    }
    __syncthreads();  // otherwise the compiler keeps the addresses of all gates, and spills
  }
  const int64_t own_row = d * args.sizes.batch + rows.first + row;
  const int64_t own_state = own_row * hidden + unit;
  const bool given_states = real && args.h0 != nullptr;
  T first_h = given_states ? static_cast<const T*>(args.h0)[own_state] : T{};
  C c{};
  if (given_states) c = load_unit_c<T, C>(args.c0, own_row, hidden, unit, args.sizes.half_c);
  const auto time = [&](int s) { return group.forward_time(s, steps); };
  const GroupResets<any_resets> resets{args.resets, args.sizes, group};
  PassMarks<any_resets, false, Layout::kRows> marks(resets, 1);
  if (real) {
    const bool anew = resets.before_first(row);
    first_h = resets.first_h(anew, first_h, row, unit);
    c = resets.first_c(anew, c, row, unit);
  }
  const int place = row * Layout::kRowFloats + unit;
  float h = widen(first_h);  // representable in T
  states[place] = h;

  const BlockRow own(rows, row, steps, real, group.reverse != 0);
  RowIterator from(static_cast<const T*>(args.products) + d * args.product_direction + unit, own,
                   args.sizes, args.product_row);
  Prefetched<T, Layout::kAhead> input;
  // Prefetches step s, 4 bytes per copy. Each thread copies only what it reads itself, so
  // wait_copies needs no barrier.
  const auto fetch = [&](int s) {
    if (own.runs(s)) {
      const uint32_t stage =
          ptx::shared_address(stages + s % Layout::kStages * Layout::kStageFloats);
#pragma unroll
      for (int m = kFirstInput; m < kGates; ++m) {
        input.copy(stage + m * Layout::kThreads * 4, from.at + m * args.product_gate);
      }
    }
    ptx::commit_copies();
    input.note(from.at);
    from.advance(own, args.sizes, s);
  };
#pragma unroll 1
  for (int s = 0; s < Layout::kAhead; ++s) fetch(s);
  RowIterator output(static_cast<T*>(args.output) + d * hidden + unit, own, args.sizes,
                     args.output_row);
  const bool any_gates = args.gates != nullptr;
  RowIterator to(static_cast<T*>(args.gates) + d * rows.start(steps) * kGates * hidden + unit, own,
                 args.sizes, kGates * hidden);
  __syncthreads();

  // With resets, the outer loop has one iteration per word of marks. Checking in each step whether
  // the next word is needed would cost more than the marks themselves.
  uint32_t given = resets.given();
  keep(given);
  int s = 0;
  do {
    const int until = any_resets ? min(s + marks.kSteps, steps) : steps;
    const uint32_t word = marks.word(s + 1) >> row;
    uint32_t marked = real ? word : 0;
#pragma unroll 1
    for (; s < until; ++s) {
      if constexpr (any_resets) __builtin_assume(s >= 0);  // otherwise % is slow: s is signed
      const bool runs = own.runs(s);
      const bool anew = any_resets && (marked & 1);
      ptx::wait_copies<Layout::kAhead - 1>();
      const float* const stage = stages + s % Layout::kStages * Layout::kStageFloats;
      float gates[kGates], products[kStateGates];
#pragma unroll
      for (int m = 0; m < kGates; ++m) {
        gates[m] = bias[m];
        if (m < kFirstInput) continue;
        gates[m] = input.get(stage + m * Layout::kThreads, m, args.product_gate) + bias[m];
      }
      const float* const state = states + (s & 1) * Layout::kStateFloats;
      multiply_state<Layout>(weights, state, rows_each, half, products);
#pragma unroll
      for (int m = 0; m < kStateGates; ++m) gates[m] += products[m];
      const auto next = Cell::forward(gates, c);
      if (runs) {
        c = next.new_cell;
        h = rounded_to<T>(next.new_h);
      }
      if (anew) c = C{};
      // h is written first, because all threads wait for it. Other stores and prefetches come
      // between this write and the barrier.
      states[(~s & 1) * Layout::kStateFloats + place] = anew ? 0.0f : h;
      if (any_resets && (marked & given)) {
        states[(~s & 1) * Layout::kStateFloats + place] =
            widen(resets.template h<T>(time(s + 1), row, unit));
        c = resets.template c<C>(time(s + 1), row, unit);
      }
      marked >>= Layout::kRows;
      if (runs) *output.at = Narrow<T>::from(h);
      output.advance(own, args.sizes, s);
      if (any_gates) {
        if (runs) {
#pragma unroll
          for (int m = 0; m < kGates; ++m) to.at[m * hidden] = Narrow<T>::from(gates[m]);
        }
        to.advance(own, args.sizes, s);
      }
      fetch(s + Layout::kAhead);
      // The only barrier of a step: h_t is complete in its buffer, and all threads have read
      // h_{t-1}.
      __syncthreads();
    }
  } while (any_resets && s < steps);
  if (real) {
    static_cast<T*>(args.h)[own_state] = Narrow<T>::from(h);
    store_unit_c<T>(args.c, own_row, hidden, unit, args.sizes.half_c, c);
  }
#endif
}

}  // namespace treadle
