// c before each step from the saved gates, for any cell, in one launch: what the backward pass
// reads. Chunked exclusive scan over time: a step is an affine map c -> keep * c + add; each warp
// composes the maps of its own steps, and applies them once it knows c before its first. A block
// has 32 units (lanes) and up to 16 warps, which take consecutive parts of the steps. Where a row
// starts anew (step_args.h), the map is a constant. So many units that they fill the GPU take their
// steps one after the other.
#pragma once

#include "kernels/common/convert.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/recurrent/cell_launchers.h"

namespace treadle {

inline constexpr int kScanWarps = 16, kScanUnits = 32;

// Steps whose gates a thread holds at a time.
template <class T>
inline constexpr int kScanSteps = sizeof(T) == 2   ? 8
                                  : sizeof(T) == 4 ? 4
                                                   : 2;

// A map that forgets c, and not only times 0: NaN times 0 would stay NaN. No step keeps -0 of c,
// and products with what steps keep leave it as it is.
template <class Link, class acc>
__device__ __forceinline__ Link forget(acc c) {
  return {acc(-0.0), c};
}

template <bool any_resets, class Link, class acc>
__device__ __forceinline__ acc apply(const Link& link, acc c) {
  const bool forgets = any_resets && link.keep == acc(0) && signbit(link.keep);
  return forgets ? link.add : link.keep * c + link.add;
}

// Of kWide adjacent units a thread. any_resets: compiled apart, since the registers are full without
// them.
template <class Cell, class T, bool any_resets, int kWide>
__global__ void __launch_bounds__(kScanWarps* kScanUnits, 2)
    recurrence_c_states(const __grid_constant__ PersistentCStates args, int64_t units) {
  begin_kernel();
  using acc = acc_t<T>;
  using Link = typename Cell::Link;
  constexpr int kSteps = kScanSteps<T>, kGates = Cell::kGates;
  __shared__ Link totals[2][kScanWarps][kWide][kScanUnits];
  const PersistentSizes& sizes = args.sizes;
  const int lane = threadIdx.x % kScanUnits, warp = threadIdx.x / kScanUnits;
  const int warps = blockDim.x / kScanUnits;
  const int64_t unit = (int64_t{blockIdx.x} * kScanUnits + lane) * kWide;
  const bool real = unit < units;
  const int64_t u = unit % sizes.hidden, b = unit / sizes.hidden % sizes.batch;
  const int64_t d = unit / sizes.hidden / sizes.batch, steps = sizes.steps;
  const auto start = [&](int64_t t) {
    return sizes.starts == nullptr ? t * sizes.batch : __ldg(sizes.starts + t);
  };
  const auto* gates =
      static_cast<const T*>(args.gates) + d * start(steps) * kGates * sizes.hidden + u;
  auto* c_states = static_cast<acc*>(args.c_states) + d * args.c_direction + u;
  // GroupResets has no part in this: a block here has units of any rows and directions.
  const RecurrenceResets& resets = args.resets;
  const int64_t backward = d + args.direction;  // in time, if not 0
  const auto starts_anew = [&](int64_t t) {
    const int64_t marked = t + backward;
    return marked < steps && b < start(marked + 1) - start(marked) &&
           __ldg(reinterpret_cast<const unsigned char*>(resets.marks) + start(marked) + b) != 0;
  };
  const auto replaced = [&](int64_t row, int e) {
    if (resets.c == nullptr) return acc(0);
    const int64_t at = resets.per_step ? (d * start(steps) + row) * sizes.hidden + u : unit;
    return __ldg(static_cast<const acc*>(resets.c) + at + e);
  };
  acc c[kWide] = {};
  if (real) {
#pragma unroll
    for (int e = 0; e < kWide; ++e) {
      c[e] = sizes.half_c ? widen(static_cast<const T*>(args.c0)[unit + e])
                          : static_cast<const acc*>(args.c0)[unit + e];
    }
  }
  int parity = 0;  // of the round
  for (int64_t first = 0; first < steps; first += warps * kSteps) {
    Vector<T, kWide> g[kSteps][kGates];
    int64_t row[kSteps];
    uint32_t anew = 0;  // bits of the steps before which the row starts anew
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int64_t s = first + warp * kSteps + i, t = backward == 0 ? s : steps - 1 - s;
      row[i] = -1;
      if (s >= steps || !real) continue;
      const int64_t begin = start(t);
      if (b < start(t + 1) - begin) row[i] = begin + b;
      if (row[i] < 0) continue;
      if (any_resets && starts_anew(t)) anew |= 1u << i;
      const T* const from = gates + row[i] * kGates * sizes.hidden;
#pragma unroll
      for (int m = 0; m < kGates; ++m) {
        g[i][m] = *reinterpret_cast<const Vector<T, kWide>*>(from + m * sizes.hidden);
      }
    }
    const auto values = [&](int i, int e, acc (&found)[kGates]) {
#pragma unroll
      for (int m = 0; m < kGates; ++m) found[m] = widen(g[i][m].value[e]);
    };
    // The map of this warp's steps. Two buffers: the next round may write while others still read.
#pragma unroll
    for (int e = 0; e < kWide; ++e) {
      Link all{acc(1), acc(0)};
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        if (row[i] < 0) continue;
        if (any_resets && (anew >> i & 1)) all = forget<Link>(replaced(row[i], e));
        acc own[kGates];
        values(i, e, own);
        const Link one = Cell::link(own);
        all = {one.keep * all.keep, one.keep * all.add + one.add};
      }
      totals[parity][warp][e][lane] = all;
    }
    __syncthreads();
    // Every warp applies all maps, so that all know c at the end of the round.
    acc before[kWide];
#pragma unroll
    for (int e = 0; e < kWide; ++e) {
      for (int w = 0; w < warps; ++w) {
        if (w == warp) before[e] = c[e];
        c[e] = apply<any_resets>(totals[parity][w][e][lane], c[e]);
      }
    }
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      if (row[i] < 0) continue;
      Vector<acc, kWide> found;
#pragma unroll
      for (int e = 0; e < kWide; ++e) {
        if (any_resets && (anew >> i & 1)) before[e] = replaced(row[i], e);
        found.value[e] = before[e];
        acc own[kGates];
        values(i, e, own);
        before[e] = Cell::next(own, before[e]);
      }
      *reinterpret_cast<Vector<acc, kWide>*>(c_states + row[i] * args.c_row) = found;
    }
    parity ^= 1;
  }
}

// Of kScanWide adjacent units a thread, whose loads for some steps travel together.
template <class T>
inline constexpr int kScanWide = sizeof(T) == 2 ? 2 : 1;
inline constexpr int64_t kManyUnits = int64_t{1} << 18;

template <class Cell, class T, bool any_resets>
__global__ void __launch_bounds__(kBlockSize)
    recurrence_c_states_in_turn(const __grid_constant__ PersistentCStates args, int64_t units) {
  begin_kernel();
  using acc = acc_t<T>;
  constexpr int kWide = kScanWide<T>, kSteps = 4;
  const PersistentSizes& sizes = args.sizes;
  const int64_t unit = (int64_t{blockIdx.x} * kBlockSize + threadIdx.x) * kWide;
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
  const int64_t backward = d + args.direction;  // in time, if not 0
  acc c[kWide];
#pragma unroll
  for (int e = 0; e < kWide; ++e) {
    c[e] = sizes.half_c ? widen(static_cast<const T*>(args.c0)[unit + e])
                        : static_cast<const acc*>(args.c0)[unit + e];
  }
#pragma unroll 1
  for (int64_t first = 0; first < steps; first += kSteps) {
    Vector<T, kWide> g[kSteps][Cell::kGates];
    int64_t row[kSteps];
    uint32_t anew = 0;  // bits of the steps before which the row starts anew
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
      Vector<acc, kWide> before;
#pragma unroll
      for (int e = 0; e < kWide; ++e) {
        if (any_resets && (anew >> i & 1)) {
          const int64_t at = resets.per_step ? (d * start(steps) + row[i]) * hidden + u : unit;
          c[e] = resets.c == nullptr ? acc(0) : __ldg(static_cast<const acc*>(resets.c) + at + e);
        }
        before.value[e] = c[e];
        acc values[Cell::kGates];
#pragma unroll
        for (int m = 0; m < Cell::kGates; ++m) values[m] = widen(g[i][m].value[e]);
        c[e] = Cell::next(values, c[e]);
      }
      *reinterpret_cast<Vector<acc, kWide>*>(c_states + row[i] * args.c_row) = before;
    }
  }
}

template <class Kind>
cudaError_t launch_c_states(const PersistentCStates& args, cudaStream_t stream) {
  const PersistentSizes& sizes = args.sizes;
  const int64_t units = sizes.directions * sizes.batch * sizes.hidden;
  if (units == 0 || sizes.steps == 0) return cudaSuccess;
  return visit_floating(sizes.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using Cell = typename Kind::template Cell<acc_t<T>>;
    constexpr int kSteps = kScanSteps<T>, kWide = kScanWide<T>;
    const bool wide = sizes.hidden % kWide == 0 && args.c_row % kWide == 0 &&
                      reinterpret_cast<uintptr_t>(args.gates) % (kWide * sizeof(T)) == 0;
    const bool resets = args.resets.marks != nullptr;
    if (units >= kManyUnits && wide) {
      const auto grid = ceil_div(units, int64_t{kWide} * kBlockSize);
      const LaunchShape shape = {static_cast<unsigned>(grid),  1, 1, kBlockSize, 0, kWide,
                                 static_cast<int>(sizes.steps)};
      const auto kernel = resets ? recurrence_c_states_in_turn<Cell, T, true>
                                 : recurrence_c_states_in_turn<Cell, T, false>;
      return launch(kernel, shape, stream, args, units);
    }
    const int64_t wanted = ceil_div(sizes.steps, int64_t{kSteps});
    const int warps = wanted < kScanWarps ? static_cast<int>(wanted) : kScanWarps;
    const auto scan = [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      const LaunchShape shape = {
          static_cast<unsigned>(ceil_div(units, int64_t{kScanUnits} * kWidth)),
          1,
          1,
          static_cast<unsigned>(warps * kScanUnits),
          0,
          kWidth,
          static_cast<int>(ceil_div(sizes.steps, int64_t{warps}))};
      const auto kernel = resets ? recurrence_c_states<Cell, T, true, kWidth>
                                 : recurrence_c_states<Cell, T, false, kWidth>;
      return launch(kernel, shape, stream, args, units);
    };
    if (wide) return scan(Constant<int, kWide>{});
    return scan(Constant<int, 1>{});
  });
}

}  // namespace treadle
