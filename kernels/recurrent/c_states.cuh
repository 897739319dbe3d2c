// What lltm_layer's regimes need besides their steps: the cells after each step, and tables.
#include "kernels/convert.cuh"
#include "kernels/launch.cuh"
#include "kernels/lltm_persistent.h"
#include "kernels/math/lltm_recurrence.h"

namespace treadle {

// Warps of a block take the same 32 units, each its own of some steps that follow each other.
static constexpr int kCellWarps = 16, kCellUnits = 32;

// Steps that a warp holds at a time.
template <class T>
static constexpr int kCellSteps = sizeof(T) == 2   ? 8
                                  : sizeof(T) == 4 ? 4
                                                   : 2;

// c is a sum along the steps, of which every warp adds up its own before it knows where it begins.
template <template <class> class CellOf, class T>
__global__ void __launch_bounds__(kCellWarps* kCellUnits, 2)
    recurrence_cells(const __grid_constant__ PersistentCells args, int64_t units) {
  begin_kernel();
  using acc = acc_t<T>;
  using Cell = CellOf<acc>;
  using Link = typename Cell::Link;
  constexpr int kSteps = kCellSteps<T>;
  __shared__ Link totals[2][kCellWarps][kCellUnits];
  const PersistentSizes& sizes = args.sizes;
  const int lane = threadIdx.x % kCellUnits, warp = threadIdx.x / kCellUnits;
  const int warps = blockDim.x / kCellUnits;
  const int64_t unit = int64_t{blockIdx.x} * kCellUnits + lane;
  const bool real = unit < units;
  const int64_t u = unit % sizes.hidden, b = unit / sizes.hidden % sizes.batch;
  const int64_t d = unit / sizes.hidden / sizes.batch, steps = sizes.steps;
  const auto start = [&](int64_t t) {
    return sizes.starts == nullptr ? t * sizes.batch : __ldg(sizes.starts + t);
  };
  const auto* gates =
      static_cast<const T*>(args.gates) + d * start(steps) * Cell::kGates * sizes.hidden + u;
  auto* cells = static_cast<acc*>(args.cells) + d * args.cell_direction + u;
  acc c = acc(0);
  if (real) {
    c = sizes.half_cells ? widen(static_cast<const T*>(args.c0)[unit])
                         : static_cast<const acc*>(args.c0)[unit];
  }
  int parity = 0;
  for (int64_t first = 0; first < steps; first += warps * kSteps) {
    T g[kSteps][Cell::kGates];
    int64_t row[kSteps];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int64_t s = first + warp * kSteps + i, t = d + args.direction == 0 ? s : steps - 1 - s;
      row[i] = -1;
      if (s >= steps || !real) continue;
      const int64_t begin = start(t);
      if (b < start(t + 1) - begin) row[i] = begin + b;
      if (row[i] < 0) continue;
#pragma unroll
      for (int m = 0; m < Cell::kGates; ++m) {
        g[i][m] = gates[(row[i] * Cell::kGates + m) * sizes.hidden];
      }
    }
    Link link[kSteps];  // from before this warp's steps to after each
    Link all{acc(1), acc(0)};
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      if (row[i] >= 0) {
        acc values[Cell::kGates];
#pragma unroll
        for (int m = 0; m < Cell::kGates; ++m) values[m] = widen(g[i][m]);
        const Link one = Cell::link(values);
        all = {one.keep * all.keep, one.keep * all.add + one.add};
      }
      link[i] = all;
    }
    totals[parity][warp][lane] = all;
    __syncthreads();
    acc begin = c;
    for (int w = 0; w < warps; ++w) {
      if (w == warp) begin = c;
      const Link total = totals[parity][w][lane];
      c = total.keep * c + total.add;
    }
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      if (row[i] >= 0) cells[row[i] * args.cell_row] = link[i].keep * begin + link[i].add;
    }
    parity ^= 1;
  }
}

cudaError_t launch_lltm_cells(const PersistentCells& args, cudaStream_t stream) {
  const PersistentSizes& sizes = args.sizes;
  const int64_t units = sizes.directions * sizes.batch * sizes.hidden;
  if (units == 0 || sizes.steps == 0) return cudaSuccess;
  return visit_floating(sizes.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int kSteps = kCellSteps<T>;
    const int64_t wanted = ceil_div(sizes.steps, int64_t{kSteps});
    const int warps = wanted < kCellWarps ? static_cast<int>(wanted) : kCellWarps;
    const LaunchShape shape = {static_cast<unsigned>(ceil_div(units, int64_t{kCellUnits})),
                               1,
                               1,
                               static_cast<unsigned>(warps * kCellUnits),
                               0,
                               1,
                               static_cast<int>(ceil_div(sizes.steps, int64_t{warps}))};
    return launch(recurrence_cells<math::LltmRecurrence, T>, shape, stream, args, units);
  });
}

namespace {

// Of a kernel's parameters, of which there are 4 KB.
struct TablePart {
  static constexpr int kSize = 480;
  int64_t values[kSize];
};

}  // namespace

static __global__ void __launch_bounds__(kBlockSize)
    write_table(const __grid_constant__ TablePart part, int count, int64_t* to) {
  begin_kernel();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kBlockSize) to[i] = part.values[i];
}

cudaError_t launch_write_table(const int64_t* host, int64_t count, int64_t* device,
                               cudaStream_t stream) {
  for (int64_t first = 0; first < count; first += TablePart::kSize) {
    TablePart part = {};
    const int64_t rest = count - first;
    const int own = static_cast<int>(rest < TablePart::kSize ? rest : TablePart::kSize);
    for (int i = 0; i < own; ++i) part.values[i] = host[first + i];
    const LaunchShape shape = {1, 1, 1, kBlockSize, 0, 1, ceil_div(own, kBlockSize)};
    const cudaError_t error = launch(write_table, shape, stream, part, own, device + first);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace treadle
