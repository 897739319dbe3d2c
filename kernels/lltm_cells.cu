// What lltm_layer's regimes need besides their steps: the cells after each step, and tables.
#include "kernels/convert.cuh"
#include "kernels/launch.cuh"
#include "kernels/lltm_persistent.h"
#include "kernels/math/lltm_recurrence.h"

namespace treadle {

static constexpr int kCellBlock = 64;  // small, so that few units are on many multiprocessors

// One thread per unit (d, b, u) takes it through all steps. Their gates are read in batches, since
// one load takes as long as many.
template <template <class> class CellOf, class T>
__global__ void __launch_bounds__(kCellBlock)
    recurrence_cells(const __grid_constant__ PersistentCells args, int64_t units) {
  begin_kernel();
  using acc = acc_t<T>;
  using Cell = CellOf<acc>;
  constexpr int kBatch = sizeof(T) == 2 ? 32 : 8;
  const PersistentSizes& sizes = args.sizes;
  const int64_t unit = int64_t{blockIdx.x} * kCellBlock + threadIdx.x;
  if (unit >= units) return;
  const int64_t u = unit % sizes.hidden, b = unit / sizes.hidden % sizes.batch;
  const int64_t d = unit / sizes.hidden / sizes.batch, steps = sizes.steps;
  const auto start = [&](int64_t t) {
    return sizes.starts == nullptr ? t * sizes.batch : __ldg(sizes.starts + t);
  };
  const auto* gates =
      static_cast<const T*>(args.gates) + d * start(steps) * Cell::kGates * sizes.hidden + u;
  auto* cells = static_cast<acc*>(args.cells) + d * args.cell_direction + u;
  acc c = sizes.half_cells ? widen(static_cast<const T*>(args.c0)[unit])
                           : static_cast<const acc*>(args.c0)[unit];
  for (int64_t first = 0; first < steps; first += kBatch) {
    T g[kBatch][Cell::kGates];
    int64_t row[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int64_t s = first + i, t = d + args.direction == 0 ? s : steps - 1 - s;
      row[i] = -1;
      if (s >= steps) continue;
      const int64_t begin = start(t);
      if (b < start(t + 1) - begin) row[i] = begin + b;
      if (row[i] < 0) continue;
#pragma unroll
      for (int m = 0; m < Cell::kGates; ++m) {
        g[i][m] = gates[(row[i] * Cell::kGates + m) * sizes.hidden];
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (row[i] < 0) continue;
      acc values[Cell::kGates];
#pragma unroll
      for (int m = 0; m < Cell::kGates; ++m) values[m] = widen(g[i][m]);
      c = Cell::forward(values, c).new_cell;
      cells[row[i] * args.cell_row] = c;
    }
  }
}

cudaError_t launch_lltm_cells(const PersistentCells& args, cudaStream_t stream) {
  const PersistentSizes& sizes = args.sizes;
  const int64_t units = sizes.directions * sizes.batch * sizes.hidden;
  if (units == 0 || sizes.steps == 0) return cudaSuccess;
  const LaunchShape shape = {static_cast<unsigned>(ceil_div(units, int64_t{kCellBlock})),
                             1,
                             1,
                             kCellBlock,
                             0,
                             1,
                             static_cast<int>(sizes.steps)};
  return visit_floating(sizes.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
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
