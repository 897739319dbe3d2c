// The backward kernel of a single block, for any cell (block/block.cuh): the cell's backward pass,
// then grad_h_{t-1} = grad_gates_t W_hh. Threads 2u and 2u + 1 share unit u: each sums half of K
// (the reduction dimension), and then computes one of the two rows.
#pragma once

#include "kernels/recurrent/block/block.cuh"

namespace treadle {

// K runs over all units of each gate that has a product with h, gate by gate.
template <class Cell, int units>
using BlockBackward = Block<units, 1, Cell::kStateGates * units, Cell::kGates + Cell::kCParts + 1>;

// This is a single function because the weights fill the registers. Divided into several functions,
// even inlined ones, it would need more registers, and would spill with 128 units.
template <class Cell, class T, int units, bool any_resets>
__global__ void __launch_bounds__(2 * units, 1)
    block_backward(const __grid_constant__ PersistentBackward args, int rows_each) {
  begin_kernel();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (!block_has_code(ptx::kSetmaxnreg, is_half_type<T>, units)) return;
  constexpr int kGates = Cell::kGates, kStateGates = Cell::kStateGates;
  constexpr int kCParts = Cell::kCParts;
  using Layout = BlockBackward<Cell, units>;
  using C = math::CType<float, kCParts>;
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

  float weights[1][Layout::kDepth];
#pragma unroll
  for (int i = 0; i < Layout::kDepth; ++i) {
    const int64_t v = block_k(i) % units + half * 4, m = Cell::weight_block(block_k(i) / units);
    weights[0][i] =
        unit < hidden && v < hidden
            ? load_wide<T>(args.weight_hh, ((d * kStateGates + m) * hidden + v) * hidden + unit)
            : 0.0f;
  }
  for (int e = threadIdx.x; e < Layout::kStateFloats; e += Layout::kThreads) states[e] = 0;
  const int64_t own_row = d * args.sizes.batch + rows.first + row;
  const int64_t own_state = own_row * hidden + unit;
  float grad_h = 0;
  C grad_c{};
  if (real && args.grad_h_n != nullptr) {
    grad_h = widen(static_cast<const T*>(args.grad_h_n)[own_state]);
  }
  if (real && args.grad_c_n != nullptr) {
    grad_c = load_unit_c<T, C>(args.grad_c_n, own_row, hidden, unit, args.sizes.half_c);
  }
  const int place = row * Layout::kRowFloats + unit;

  const BlockRow own(rows, row, steps, real, group.reverse == 0);
  const auto time = [&](int s) { return group.backward_time(s, steps); };
  const GroupResets<any_resets> resets{args.resets, args.sizes, group};
  PassMarks<any_resets, true, Layout::kRows> marks(resets);
  const bool any_grad = args.grad_output != nullptr;
  RowIterator gates_at(static_cast<const T*>(args.gates) + d * args.gate_direction + unit, own,
                       args.sizes, args.gate_row);
  RowIterator c_at(static_cast<const float*>(args.c_states) + d * args.c_direction + unit, own,
                   args.sizes, args.c_row);
  RowIterator grad_at(static_cast<const T*>(args.grad_output) + d * args.grad_direction + unit, own,
                      args.sizes, args.grad_row);
  Prefetched<T, Layout::kAhead> of_gates, of_grad;
  Prefetched<float, Layout::kAhead> of_c;
  // Prefetches step s, 4 bytes per copy. Each thread copies only what it reads itself, so
  // wait_copies needs no barrier.
  const auto fetch = [&](int s) {
    if (own.runs(s)) {
      const uint32_t stage =
          ptx::shared_address(stages + s % Layout::kStages * Layout::kStageFloats);
#pragma unroll
      for (int m = 0; m < kGates; ++m) {
        of_gates.copy(stage + m * Layout::kThreads * 4, gates_at.at + m * args.gate_gate);
      }
#pragma unroll
      for (int p = 0; p < kCParts; ++p) {
        of_c.copy(stage + (kGates + p) * Layout::kThreads * 4,
                  c_at.at + p * (args.c_row / kCParts));
      }
      if (any_grad) of_grad.copy(stage + (kGates + kCParts) * Layout::kThreads * 4, grad_at.at);
    }
    ptx::commit_copies();
    of_gates.note(gates_at.at);
    of_grad.note(grad_at.at);
    gates_at.advance(own, args.sizes, s);
    c_at.advance(own, args.sizes, s);
    grad_at.advance(own, args.sizes, s);
  };
#pragma unroll 1
  for (int s = 0; s < Layout::kAhead; ++s) fetch(s);
  RowIterator to(static_cast<T*>(args.grad_gates) + d * rows.start(steps) * kGates * hidden + unit,
                 own, args.sizes, kGates * hidden);
  __syncthreads();

  // There is one more iteration than steps, for grad_h0. With resets, the outer loop has one
  // iteration per word of marks, as in the forward pass.
  uint32_t wanted = resets.wanted();
  keep(wanted);
  int s = 0, last;
  do {
    last = any_resets ? min(s + marks.kSteps - 1, steps) : steps;
    const uint32_t word = marks.word(s) >> row;
    uint32_t marked = real ? word : 0;
#pragma unroll 1
    for (; s <= last; ++s) {
      if constexpr (any_resets) __builtin_assume(s >= 0);  // otherwise % is slow: s is signed
      const bool anew = any_resets && (marked & 1);
      ptx::wait_copies<Layout::kAhead - 1>();
      const float* const stage = stages + s % Layout::kStages * Layout::kStageFloats;
      float gates[kGates];
#pragma unroll
      for (int m = 0; m < kGates; ++m) {
        gates[m] = of_gates.get(stage + m * Layout::kThreads, m, args.gate_gate);
      }
      // Everything that does not depend on the gradients is computed before the product, whose
      // latency hides it.
      C c;
#pragma unroll
      for (int p = 0; p < kCParts; ++p) {
        math::part(c, p) = of_c.get(stage + (kGates + p) * Layout::kThreads);
      }
      const auto slopes = Cell::slopes(gates, c);
      const float grad_output =
          any_grad ? of_grad.get(stage + (kGates + kCParts) * Layout::kThreads) : 0.0f;
      const float* const state = states + (s & 1) * Layout::kStateFloats;
      float by_h[1];
      multiply_state<Layout>(weights, state, rows_each, half, by_h);
      // A row without step s - 1 wrote zeros. Their products are not added, because 0 x inf is NaN.
      if (own.runs(s - 1)) grad_h += by_h[0];
      if (any_resets && (marked & wanted)) {
        resets.hand_over(time(s - 1), row, unit, grad_h, grad_c);
      }
      if (anew) grad_h = 0, grad_c = C{};
      marked >>= Layout::kRows;
      if (s == steps) break;
      // A row without this step keeps its gradients and writes zeros.
      const bool runs = own.runs(s);
      const auto grad = Cell::backward(slopes, grad_h + grad_output, grad_c);
      if (runs) {
        grad_c = grad.old_cell;
        grad_h = 0;
      }
      float rounded[kGates];
#pragma unroll
      for (int m = 0; m < kGates; ++m) rounded[m] = rounded_to<T>(grad.gates[m]);
#pragma unroll
      for (int m = 0; m < kStateGates; ++m) {
        states[(~s & 1) * Layout::kStateFloats + place + m * units] = runs ? rounded[m] : 0.0f;
      }
      if (runs) {
#pragma unroll
        for (int m = 0; m < kGates; ++m) to.at[m * hidden] = Narrow<T>::from(rounded[m]);
      }
      to.advance(own, args.sizes, s);
      fetch(s + Layout::kAhead);
      // The only barrier of a step: the gradients are complete, and all threads have read the
      // previous ones.
      __syncthreads();
    }
  } while (any_resets && last < steps);
  if (real && args.grad_h0 != nullptr) {
    static_cast<T*>(args.grad_h0)[own_state] = Narrow<T>::from(grad_h);
  }
  if (real && args.grad_c0 != nullptr) {
    store_unit_c<T>(args.grad_c0, own_row, hidden, unit, args.sizes.half_c, grad_c);
  }
#endif
}

}  // namespace treadle
