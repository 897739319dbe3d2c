// The backward dense cluster kernel (cluster/dense.cuh): grad_h_{t-1} = grad_gates_t W_hh. A block
// multiplies the gradients of its own gates by its rows of W_hh, which gives a part of grad_h of
// every unit. It sends these partial sums from the accumulators to the blocks that own the units.
// Each of those adds the parts in the order of the sending blocks. A step has one barrier of all
// threads, after which the block's own gradients are complete. While sums are being sent, all
// threads make their copies between global and shared memory. `rows_each` is the number of rows per
// cluster. Twin: kernels/recurrent/cpu/rows_backward.h.
//
// The sums for step s + 2 overwrite those for step s. Two such buffers of sums are enough, because
// a block sends sums for step s + 2 only after it has received those for step s + 1 from all
// blocks. These were sent after the barrier of step s, and before that barrier the threads of the
// sender had read the sums for step s. For the same reason it is enough to arm the mbarrier for
// step s + 2 before the barrier of step s.
#pragma once

#include <cstring>

#include "kernels/recurrent/cluster/dense_backward_copies.cuh"
#include "kernels/recurrent/cluster/dense_resets.cuh"

namespace treadle {

// A word that depends on all slopes. Storing it forces the compiler to compute the slopes before
// the next wait for a barrier, because it cannot move a store past the wait.
template <class Slopes>
__device__ __forceinline__ uint32_t bits_of_all(const Slopes& slopes) {
  constexpr int kWords = sizeof(Slopes) / 4;
  uint32_t x[kWords], all = 0;
  memcpy(x, &slopes, sizeof(Slopes));
#pragma unroll
  for (int i = 0; i < kWords; ++i) all |= x[i];
  return all;
}

template <class Cell, class T, int units, int blocks, int tiles, int stride, bool any_resets>
__global__ void __launch_bounds__(
    DenseLayout<DenseBackward, Cell, units, blocks, tiles, stride>::kThreads, 1)
    cluster_dense_backward(const __grid_constant__ PersistentBackward args, int rows_each) {
  begin_kernel();
#if TREADLE_CLUSTER_CODE
  constexpr int kGates = Cell::kGates, kStateGates = Cell::kStateGates;
  using L = DenseLayout<DenseBackward, Cell, units, blocks, tiles, stride>;
  using C = math::CType<float, Cell::kCParts>;
  constexpr int kChunks = L::kChunks, kItems = L::kItems, kGroups = L::kGroups, kWide = L::kWide;
  extern __shared__ __align__(128) unsigned char memory[];
  const uint32_t base = ptx::shared_address(memory);
  const int thread = threadIdx.x, lane = thread % kWarp, warp = thread / kWarp;
  const int rank = static_cast<int>(ptx::block_in_cluster());
  const Group group(args.sizes, static_cast<int>(blockIdx.x) / blocks, rows_each);
  const GroupRows& rows = group.rows;
  const int64_t hidden = args.sizes.hidden, d = group.direction;
  const int steps = static_cast<int>(args.sizes.steps), first_unit = rank * units;
  const int g = lane / 4, q = lane % 4;

  // ---- transposed weights: columns of W_hh, two tiles at a time; k = (gate, own unit)
  uint32_t registers[L::kKept * 4];
  const SpreadWeights<L> weights(registers, base + L::kWeights, warp, lane);
  {
    const auto* weight = static_cast<const uint16_t*>(args.weight_hh) +
                         d * kStateGates * hidden * hidden + warp * kWide * 16;
    const WeightTurn<L> turn(base + warp * L::kTurnBytes, lane, weight, hidden,
                             static_cast<int>(hidden) - warp * kWide * 16);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int64_t v = first_unit + c % kGroups * 16;
      turn.put(Cell::weight_block(c / kGroups) * hidden + v, static_cast<int>(hidden - v));
#pragma unroll
      for (int w = 0; w < kWide; ++w) {
        weights.set((w / 2 * kChunks + c) * 2 + w % 2, turn.get(w));
      }
    }
  }
  __syncthreads();

  // ---- zeros in the stages, and barriers
  // One of the warps that may have fewer slots than others loads the marks.
  MarkRing<L, any_resets, true> marks(base);
  const bool asks = any_resets && warp == L::kWarps - 1;
  if (asks) marks.begin(args.resets.marks, args.sizes, group);
  clear<L>(base + L::kStages, L::kDepth * L::kStageBytes);
  uint32_t expected = L::kStateBytes;
  if (thread == 0) begin_barriers<L, 1>(base, expected);
  __syncthreads();
  DenseBackwardCopies<L> own(args, group, base, first_unit);
  for (int s = 0; s < L::kAhead; ++s) own.fetch(s < steps, s * L::kStageBytes);
  ptx::wait_copies<L::kAhead - 1>();
  // No block may send before all blocks have initialised their barriers.
  __syncthreads();
  ptx::sync_cluster();

  // ---- a lane's sends for a tile: the sums of its accumulators, units g and g + 8 of two rows
  uint32_t send_to[kWide], send_barrier[kWide];
#pragma unroll
  for (int w = 0; w < kWide; ++w) {
    const int tile = warp * kWide + w;
    const uint32_t there = ptx::in_block(base, tile / kGroups);
    send_to[w] = there + L::kState + rank * L::kBlockSums + tile % kGroups * tiles * L::kSumBytes +
                 (g * L::kPairs + q) * 16;
    send_barrier[w] = there + L::kBarriers;
  }
  const bool sends = q < L::kPairs;

  // ---- the items (unit, row) of this thread; gradients stay in registers
  const int64_t state_row = d * args.sizes.batch + rows.first;
  uint32_t place[kItems], own_stage[kItems], own_c[kItems], own_sums[kItems];
  bool has[kItems], mine[kItems], unit_exists[kItems];
  int unit[kItems], row[kItems];
  float grad_h[kItems];
  C grad_c[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int slot = i * L::kWarps + warp;
    has[i] = slot < L::kSlots;
    const int sums = has[i] ? slot / L::kPairs : 0, tile = sums % tiles, units16 = sums / tiles;
    const SlotPlace<L> at(slot, lane);
    unit[i] = units16 * 16 + at.unit;
    row[i] = tile * stride + at.row;
    place[i] = base + L::kOutgoing + sums * L::kTileBytes + at.unit / 4 * 8 * stride + at.row * 8 +
               at.unit % 4 * 2;
    own_stage[i] = base + L::kStages + row[i] * L::kStageRow + unit[i] * 2;
    own_c[i] = base + L::kStages + L::kCStates + row[i] * L::kCRow + unit[i] * 4;
    own_sums[i] = base + L::kState + sums * L::kSumBytes + at.byte;
    unit_exists[i] = first_unit + unit[i] < hidden;
    mine[i] = has[i] && at.exists;
    const bool real = mine[i] && row[i] < rows.count && unit_exists[i];
    const int64_t at_state = (state_row + row[i]) * hidden + first_unit + unit[i];
    const bool any_h = real && args.grad_h_n != nullptr, any_c = real && args.grad_c_n != nullptr;
    grad_h[i] = any_h ? widen(static_cast<const T*>(args.grad_h_n)[at_state]) : 0.0f;
    grad_c[i] = any_c ? load_c_at<T, C>(args.grad_c_n, at_state, hidden, args.sizes.half_c) : C{};
  }
  const uint32_t lane_grads = base + L::kOutgoing + q * 8 * stride + g % stride * 8;
  const uint32_t own_barrier = base + L::kBarriers;
  const GroupResets<any_resets> resets{args.resets, args.sizes, group};
  const uint32_t wanted = resets.wanted() ? ~0u : 0;
  // Stores the gradients of the states to which rows were reset.
  const auto hand_over = [&](void* grads, const auto& values, uint32_t ended, int s) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if ((ended >> row[i] & 1) == 0 || !mine[i] || !unit_exists[i]) continue;
      resets.hand_over(grads, s, row[i], first_unit + unit[i], values[i]);
    }
  };

  // There is one more iteration than steps, for grad_h0.
#pragma unroll 1
  for (int s = 0; s <= steps; ++s) {
    const uint32_t parity = (s & 1) * L::kParity, other = L::kParity - parity;
    const uint32_t stage = s % L::kDepth * L::kStageBytes;

    // ---- work that does not depend on gradients, while they arrive
    const uint32_t ended = marks.of(s);  // rows that reset before the step whose gradients arrive
    typename Cell::Slopes slopes[kItems];
    float grad_out[kItems];
    const auto prepare = [&](int i) {
      float gates[kGates];
#pragma unroll
      for (int m = 0; m < kGates; ++m) {
        gates[m] = widen_bits<T>(ptx::load2(own_stage[i] + stage + m * L::kRows * L::kStageRow));
      }
      grad_out[i] =
          widen_bits<T>(ptx::load2(own_stage[i] + stage + kGates * L::kRows * L::kStageRow));
      C c;
#pragma unroll
      for (int p = 0; p < Cell::kCParts; ++p) {
        math::part(c, p) = ptx::load_float(own_c[i] + stage + p * L::kRows * L::kCRow);
      }
      slopes[i] = Cell::slopes(gates, c);
    };
#pragma unroll
    for (int i = 0; i < L::kEarly; ++i) {
      if (!has[i]) continue;
      prepare(i);
      ptx::store4(base + L::kUnread, bits_of_all(slopes[i]));
    }
    // Rows in `ended` discard their gradients here, and ignore the gradients that arrive.
    bool receives[kItems];
    float product[kItems];
    if constexpr (any_resets) {
      if ((ended & wanted) != 0) hand_over(args.resets.grad_c, grad_c, ended, s);
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const bool ends = (ended >> row[i] & 1) != 0;
        if (ends) grad_h[i] = 0, grad_c[i] = C{};
        receives[i] = s > 0 && !ends;
      }
    }
    ptx::wait_barrier(own_barrier + parity, s >> 1 & 1);
    if (thread == 0) ptx::arrive_expecting(own_barrier + parity, expected);

    // ---- grad_h and the cell, for all slots of a warp together
    const auto finish = [&](auto slots) {
      constexpr int kCount = decltype(slots)::value;
      float parts[kCount][blocks];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
#pragma unroll
        for (int k = 0; k < blocks; ++k) {
          parts[i][k] = ptx::load_float(own_sums[i] + parity + k * L::kBlockSums);
        }
      }
      __syncwarp();
      uint16_t grads[kCount][kGates];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (i >= L::kEarly) prepare(i);
        product[i] = sum_in_pairs(parts[i]);
        // Nothing was sent before the first step.
        if (any_resets ? receives[i] : s > 0) grad_h[i] = product[i];
        const auto grad = Cell::backward(slopes[i], grad_h[i] + grad_out[i], grad_c[i]);
        if (s < steps) grad_c[i] = grad.old_cell;
#pragma unroll
        for (int m = 0; m < kGates; ++m) {
          grads[i][m] = unit_exists[i] ? Narrow<T>::from(grad.gates[m]).bits : 0;
        }
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (!mine[i]) continue;
#pragma unroll
        for (int m = 0; m < kGates; ++m) {
          ptx::store2(place[i] + parity + m * kGroups * tiles * L::kTileBytes, grads[i][m]);
        }
      }
    };
    with_slots<kItems>(has[kItems - 1], has[0], finish);
    if constexpr (any_resets) {
      if ((ended & wanted) != 0) hand_over(args.resets.grad_h, product, ended, s);
    }
    if (s == steps) break;
    uint4 fragment = weights.first();
    // After this barrier all threads also see the stage of step s + 1.
    ptx::wait_copies<L::kAhead - 2>();
    ptx::sync_threads(kSendBarrier, L::kThreads);

    // ---- products with the block's own gradients; each is sent while the next runs
    Operands<L, tiles, kChunks, kChunks * kWide / 2> operands(lane_grads + parity);
#pragma unroll
    for (int w = 0; w < kWide; w += 2) {
      float sum[2][tiles][4] = {};
      weights.template multiply<T>(w * kChunks, fragment, operands, sum);
      if (sends) {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
          for (int j = 0; j < tiles; ++j) {
            ptx::send16(send_to[w + m] + other + j * L::kSumBytes, words_of(sum[m][j]),
                        send_barrier[w + m] + other);
          }
        }
      }
    }

    // ---- copies, while the sums are being sent
    own.store(parity);
    own.fetch(s + L::kAhead < steps, (s + L::kAhead) % L::kDepth * L::kStageBytes);
    if (asks) marks.gather(s);
  }

  // ---- the gradients of the first states
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (!mine[i] || row[i] >= rows.count || !unit_exists[i]) continue;
    const int64_t at = (state_row + row[i]) * hidden + first_unit + unit[i];
    if (args.grad_h0 != nullptr) {
      static_cast<T*>(args.grad_h0)[at] = Narrow<T>::from(grad_h[i]);
    }
    if (args.grad_c0 != nullptr) {
      store_c_at<T>(args.grad_c0, at, hidden, args.sizes.half_c, grad_c[i]);
    }
  }
  // No block may exit while others still send into its shared memory.
  ptx::sync_cluster();
#endif
}

}  // namespace treadle
