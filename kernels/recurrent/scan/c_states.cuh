// Recomputes c before each step from the saved gates, for the backward pass of any cell, in one
// launch. It is a chunked exclusive scan over time. A step is an affine map c -> keep * c + add;
// each warp composes the maps of its own steps, and applies them once it knows c before its first
// step. A block has 32 units (lanes) and up to 16 warps, which compute consecutive parts of the
// steps. Where a row resets (step_args.h), the map is a constant. If there are enough units to fill
// the GPU, or if steps are not affine, there is no scan: each thread computes all steps of its
// units in sequence.
#pragma once

#include "kernels/common/convert.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/math/c_parts.h"
#include "kernels/recurrent/persistent_args.h"
#ifndef __CUDACC_RTC__
#include "kernels/recurrent/cell_launchers.h"
#include "kernels/recurrent/formula/function.h"
#endif

namespace treadle {

inline constexpr int kScanWarps = 16, kScanUnits = 32;

// The number of steps whose gates a thread has in registers at a time.
template <class T>
inline constexpr int kScanSteps = sizeof(T) == 2   ? 8
                                  : sizeof(T) == 4 ? 4
                                                   : 2;

// Returns a map that ignores its argument. keep = 0 would not suffice, because NaN times 0 is NaN.
// So keep is -0. No step has this value, products with the factors of other steps preserve it, and
// apply() tests for it.
template <class Link, class acc>
__device__ __forceinline__ Link forget(acc c) {
  return {acc(-0.0), c};
}

template <bool any_resets, class Link, class acc>
__device__ __forceinline__ acc apply(const Link& link, acc c) {
  const bool forgets = any_resets && link.keep == acc(0) && signbit(link.keep);
  return forgets ? link.add : link.keep * c + link.add;
}

// any_resets is a template parameter, because the registers are full even without resets.
template <class Cell, class T, bool any_resets>
__global__ void __launch_bounds__(kScanWarps* kScanUnits, 2)
    recurrence_c_states(const __grid_constant__ PersistentCStates args, int64_t units) {
  begin_kernel();
  using acc = acc_t<T>;
  using Link = typename Cell::Link;
  constexpr int kSteps = kScanSteps<T>;
  __shared__ Link totals[2][kScanWarps][kScanUnits];
  const PersistentSizes& sizes = args.sizes;
  const int lane = threadIdx.x % kScanUnits, warp = threadIdx.x / kScanUnits;
  const int warps = blockDim.x / kScanUnits;
  const int64_t unit = int64_t{blockIdx.x} * kScanUnits + lane;
  const bool real = unit < units;
  const int64_t u = unit % sizes.hidden, b = unit / sizes.hidden % sizes.batch;
  const int64_t d = unit / sizes.hidden / sizes.batch, steps = sizes.steps;
  const auto start = [&](int64_t t) {
    return sizes.starts == nullptr ? t * sizes.batch : __ldg(sizes.starts + t);
  };
  const auto* gates =
      static_cast<const T*>(args.gates) + d * start(steps) * Cell::kGates * sizes.hidden + u;
  auto* c_states = static_cast<acc*>(args.c_states) + d * args.c_direction + u;
  // This does not use GroupResets, because a block here can have units of several rows and
  // directions.
  const RecurrenceResets& resets = args.resets;
  const int64_t backward = d + args.direction >= sizes.groups ? 1 : 0;  // in time
  const auto starts_anew = [&](int64_t t) {
    const int64_t marked = t + backward;
    return marked < steps && b < start(marked + 1) - start(marked) &&
           __ldg(reinterpret_cast<const unsigned char*>(resets.marks) + start(marked) + b) != 0;
  };
  const auto replaced = [&](int64_t row) {
    if (resets.c == nullptr) return acc(0);
    const int64_t at = resets.per_step ? (d * start(steps) + row) * sizes.hidden + u : unit;
    return __ldg(static_cast<const acc*>(resets.c) + at);
  };
  acc c = acc(0);
  if (real) {
    c = sizes.half_c ? widen(static_cast<const T*>(args.c0)[unit])
                     : static_cast<const acc*>(args.c0)[unit];
  }
  int parity = 0;  // of the round
  for (int64_t first = 0; first < steps; first += warps * kSteps) {
    T g[kSteps][Cell::kGates];
    int64_t row[kSteps];
    uint32_t anew = 0;  // bit i: the row resets before step i
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int64_t s = first + warp * kSteps + i, t = backward == 0 ? s : steps - 1 - s;
      row[i] = -1;
      if (s >= steps || !real) continue;
      const int64_t begin = start(t);
      if (b < start(t + 1) - begin) row[i] = begin + b;
      if (row[i] < 0) continue;
      if (any_resets && starts_anew(t)) anew |= 1u << i;
#pragma unroll
      for (int m = 0; m < Cell::kGates; ++m) {
        g[i][m] = gates[(row[i] * Cell::kGates + m) * sizes.hidden];
      }
    }
    Link link[kSteps];  // the maps from c before this warp's steps to c before each step
    Link all{acc(1), acc(0)};
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      if (any_resets && (anew >> i & 1)) all = forget<Link>(replaced(row[i]));
      link[i] = all;
      if (row[i] >= 0) {
        acc values[Cell::kGates];
#pragma unroll
        for (int m = 0; m < Cell::kGates; ++m) values[m] = widen(g[i][m]);
        const Link one = Cell::link(values);
        all = {one.keep * all.keep, one.keep * all.add + one.add};
      }
    }
    // There are two buffers, because the next round may write while other warps still read the
    // buffer of this round.
    totals[parity][warp][lane] = all;
    __syncthreads();
    // Every warp applies all maps, so that every warp has c at the end of the round.
    acc begin = c;
    for (int w = 0; w < warps; ++w) {
      if (w == warp) begin = c;
      const Link total = totals[parity][w][lane];
      c = apply<any_resets>(total, c);
    }
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      if (row[i] >= 0) c_states[row[i] * args.c_row] = apply<any_resets>(link[i], begin);
    }
    parity ^= 1;
  }
}

// With at least kManyUnits units, a thread computes kTurnWide adjacent units and has the loads of
// kTurnSteps steps in flight. With at least kMoreUnits, it computes twice as many units, with half
// as many steps in flight. These numbers were the fastest on an H200.
inline constexpr int64_t kManyUnits = int64_t{1} << 16, kMoreUnits = int64_t{1} << 18;
template <class T>
inline constexpr int kTurnWide = sizeof(T) == 2 ? 2 : 1;
template <class T>
inline constexpr int kTurnSteps = sizeof(T) == 8 ? 8 : 16;

template <class Cell, class T, bool any_resets, int kWide, int kSteps>
__global__ void __launch_bounds__(kBlockSize)
    recurrence_c_states_in_turn(const __grid_constant__ PersistentCStates args, int64_t units) {
  begin_kernel();
  using acc = acc_t<T>;
  constexpr int kCParts = Cell::kCParts;
  const PersistentSizes& sizes = args.sizes;
  const int64_t unit = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kWide;
  if (unit >= units) return;
  const int64_t hidden = sizes.hidden, u = unit % hidden, b = unit / hidden % sizes.batch;
  const int64_t d = unit / hidden / sizes.batch, steps = sizes.steps;
  const auto start = [&](int64_t t) {
    return sizes.starts == nullptr ? t * sizes.batch : __ldg(sizes.starts + t);
  };
  const auto* gates =
      static_cast<const T*>(args.gates) + d * start(steps) * Cell::kGates * hidden + u;
  auto* c_states = static_cast<acc*>(args.c_states) + d * args.c_direction + u;
  const RecurrenceResets& resets = args.resets;
  const int64_t backward = d + args.direction >= sizes.groups ? 1 : 0;  // in time
  math::CType<acc, kCParts> c[kWide];
#pragma unroll
  for (int e = 0; e < kWide; ++e) {
#pragma unroll
    for (int p = 0; p < kCParts; ++p) {
      const int64_t at = ((d * sizes.batch + b) * kCParts + p) * hidden + u + e;
      math::part(c[e], p) = sizes.half_c ? widen(static_cast<const T*>(args.c0)[at])
                                         : static_cast<const acc*>(args.c0)[at];
    }
  }
#pragma unroll 1
  for (int64_t first = 0; first < steps; first += kSteps) {
    Vector<T, kWide> g[kSteps][Cell::kGates];
    int64_t row[kSteps];
    uint32_t anew = 0;  // bit i: the row resets before step i
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int64_t s = first + i, t = backward == 0 ? s : steps - 1 - s;
      row[i] = -1;
      if (s >= steps) continue;
      const int64_t begin = start(t);
      if (b < start(t + 1) - begin) row[i] = begin + b;
      if (row[i] < 0) continue;
      const int64_t marked = t + backward;
      if (any_resets && marked < steps && b < start(marked + 1) - start(marked) &&
          __ldg(reinterpret_cast<const unsigned char*>(resets.marks) + start(marked) + b) != 0) {
        anew |= 1u << i;
      }
#pragma unroll
      for (int m = 0; m < Cell::kGates; ++m) {
        g[i][m] = *reinterpret_cast<const Vector<T, kWide>*>(gates +
                                                             (row[i] * Cell::kGates + m) * hidden);
      }
    }
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      if (row[i] < 0) continue;
      Vector<acc, kWide> before[kCParts];
#pragma unroll
      for (int e = 0; e < kWide; ++e) {
        if (any_resets && (anew >> i & 1)) {
          const int64_t own = resets.per_step ? d * start(steps) + row[i] : d * sizes.batch + b;
#pragma unroll
          for (int p = 0; p < kCParts; ++p) {
            const int64_t at = (own * kCParts + p) * hidden + u + e;
            math::part(c[e], p) =
                resets.c == nullptr ? acc(0) : __ldg(static_cast<const acc*>(resets.c) + at);
          }
        }
#pragma unroll
        for (int p = 0; p < kCParts; ++p) before[p].value[e] = math::part(c[e], p);
        acc values[Cell::kGates];
#pragma unroll
        for (int m = 0; m < Cell::kGates; ++m) values[m] = widen(g[i][m].value[e]);
        c[e] = Cell::next(values, c[e]);
      }
#pragma unroll
      for (int p = 0; p < kCParts; ++p) {
        *reinterpret_cast<Vector<acc, kWide>*>(c_states + row[i] * args.c_row +
                                               p * (args.c_row / kCParts)) = before[p];
      }
    }
  }
}

#ifndef __CUDACC_RTC__
using CStatesKernel = void (*)(PersistentCStates, int64_t);

template <class Kind>
cudaError_t launch_c_states(const PersistentCStates& args, cudaStream_t stream) {
  const PersistentSizes& sizes = args.sizes;
  const int64_t units = sizes.directions * sizes.batch * sizes.hidden;
  if (units == 0 || sizes.steps == 0) return cudaSuccess;
  return visit_floating(sizes.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using Cell = typename Kind::template Cell<acc_t<T>>;
    const auto takes = [&](int wide, int64_t least) {
      return units >= least && sizes.hidden % wide == 0 && args.c_row % wide == 0 &&
             reinterpret_cast<uintptr_t>(args.gates) % (wide * sizeof(T)) == 0;
    };
    const auto in_turn = [&](auto width, auto count) {
      constexpr int kWide = decltype(width)::value, kSteps = decltype(count)::value;
      // Few units are spread over more blocks, so that more multiprocessors run them.
      const int threads = units < kManyUnits ? kScanUnits : kBlockSize;
      const auto grid = ceil_div(units, int64_t{kWide} * threads);
      const LaunchShape shape = {static_cast<unsigned>(grid),    1, 1,
                                 static_cast<unsigned>(threads), 0, kWide,
                                 static_cast<int>(sizes.steps)};
      const auto kernel =
          TREADLE_RESETS_FUNCTION(CStatesKernel, args.resets.marks != nullptr,
                                  recurrence_c_states_in_turn, (Cell, T), (resets, kWide, kSteps));
      return launch(kernel, shape, stream, args, units);
    };
    constexpr int kWide = kTurnWide<T>, kSteps = kTurnSteps<T>;
    // Only affine steps can be composed before c is known. Those of the cells in the library are.
    if constexpr (kFromFormula<Cell>) {
      if (!is_affine(sizes.cell)) return in_turn(Constant<int, 1>{}, Constant<int, kSteps>{});
    }
    if (takes(2 * kWide, kMoreUnits)) {
      return in_turn(Constant<int, 2 * kWide>{}, Constant<int, kSteps / 2>{});
    }
    if (takes(kWide, kManyUnits)) return in_turn(Constant<int, kWide>{}, Constant<int, kSteps>{});
    const int64_t wanted = ceil_div(sizes.steps, int64_t{kScanSteps<T>});
    const int warps = wanted < kScanWarps ? static_cast<int>(wanted) : kScanWarps;
    const LaunchShape shape = {static_cast<unsigned>(ceil_div(units, int64_t{kScanUnits})),
                               1,
                               1,
                               static_cast<unsigned>(warps * kScanUnits),
                               0,
                               1,
                               static_cast<int>(ceil_div(sizes.steps, int64_t{warps}))};
    const auto kernel = TREADLE_RESETS_FUNCTION(CStatesKernel, args.resets.marks != nullptr,
                                                recurrence_c_states, (Cell, T), (resets));
    return launch(kernel, shape, stream, args, units);
  });
}

#endif

}  // namespace treadle
