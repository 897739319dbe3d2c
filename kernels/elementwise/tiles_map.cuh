// The kernel tiles_map computes out[i] = f(in[i]...) if an input and the output are dense along
// different dimensions, as in a + b.t(). Two-dimensional tiles of that input are transposed through
// shared memory. Operands may have any strides and dtypes.
#pragma once

#include "kernels/elementwise/strided_map.cuh"

namespace treadle {

inline constexpr int kTileSide = 32;
inline constexpr int kTilePerThread = kTileSide * kTileSide / kBlockSize;

template <int operands>
struct Tiles {
  Strided<operands> outer;  // all dimensions but the two fastest
  uint32_t size[2], strides[2][operands];
  FastDivide tiles[2];
  bool turned[operands];  // dense along the second dimension

  explicit Tiles(const ElementwiseArgs& args) : outer(args, 2) {
    for (int d = 0; d < 2; ++d) {
      size[d] = static_cast<uint32_t>(args.sizes[d]);
      tiles[d] = FastDivide(ceil_div(size[d], uint32_t{kTileSide}));
      for (int i = 0; i < operands; ++i) strides[d][i] = static_cast<uint32_t>(args.strides[i][d]);
    }
    for (int i = 0; i < operands; ++i) turned[i] = i > 0 && is_turned(args, i);
  }

  static bool is_turned(const ElementwiseArgs& args, int i) {
    return args.strides[i][1] != 0 && std::abs(args.strides[i][1]) < std::abs(args.strides[i][0]);
  }

  static bool fits(const ElementwiseArgs& args) {
    if (args.ndim < 2 || args.sizes[0] < kTileSide / 2 || args.sizes[1] < kTileSide / 2)
      return false;
    bool any = false;
    for (int i = 1; i < operands; ++i) any = any || is_turned(args, i);
    return any;
  }
};

// A block computes a tile, whose rows are along the fastest dimension. A thread computes
// kTilePerThread elements of one column.
template <class common_t, bool kCast, int kInputs, class F>
__global__ void __launch_bounds__(kBlockSize)
    tiles_map(F f, const __grid_constant__ Tiles<kInputs + 1> args) {
  begin_kernel();
  // One extra column puts the elements of a column into different banks.
  __shared__ common_t tile[kInputs][kTileSide][kTileSide + 1];
  const uint32_t x = threadIdx.x % kTileSide, y = threadIdx.x / kTileSide;
  constexpr uint32_t kRows = kBlockSize / kTileSide;
  const uint32_t across = args.tiles[0](blockIdx.x), outer = args.tiles[1](across);
  const uint32_t left = (blockIdx.x - across * args.tiles[0].divisor) * kTileSide;
  const uint32_t top = (across - outer * args.tiles[1].divisor) * kTileSide;
  int32_t offset[kInputs + 1];
  args.outer.offsets(outer, offset);

  const auto at = [&](int i, uint32_t column, uint32_t row) {
    return args.outer.data[i] +
           static_cast<int32_t>(offset[i] + column * args.strides[0][i] + row * args.strides[1][i]);
  };
  const auto inside = [&](uint32_t column, uint32_t row) {
    return column < args.size[0] && row < args.size[1];
  };
  const auto load = [&](int i, uint32_t column, uint32_t row) {
    if constexpr (kCast) {
      return load_cast<common_t>(at(i, column, row), args.outer.dtypes[i]);
    } else {
      return *reinterpret_cast<const common_t*>(at(i, column, row));
    }
  };
  Vector<common_t, kTilePerThread> in[kInputs] = {}, out;
#pragma unroll
  for (int i = 0; i < kInputs; ++i) {
#pragma unroll
    for (int v = 0; v < kTilePerThread; ++v) {
      const uint32_t row = y + v * kRows;
      if (args.turned[i + 1]) {
        if (inside(left + row, top + x)) tile[i][row][x] = load(i + 1, left + row, top + x);
      } else if (inside(left + x, top + row)) {
        in[i].value[v] = load(i + 1, left + x, top + row);
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kInputs; ++i) {
#pragma unroll
    for (int v = 0; v < kTilePerThread; ++v) {
      const uint32_t row = y + v * kRows;
      if (args.turned[i + 1] && inside(left + x, top + row)) in[i].value[v] = tile[i][x][row];
    }
  }
  apply(f, out, in);
#pragma unroll
  for (int v = 0; v < kTilePerThread; ++v) {
    const uint32_t column = left + x, row = top + y + v * kRows;
    if (!inside(column, row)) continue;
    if constexpr (kCast) {
      store_cast(at(0, column, row), args.outer.dtypes[0], out.value[v]);
    } else {
      *reinterpret_cast<common_t*>(at(0, column, row)) = out.value[v];
    }
  }
}

template <class common_t, bool kCast, int kInputs, class F>
cudaError_t launch_tiles(const ElementwiseArgs& args, const F& f, cudaStream_t stream) {
  const Tiles<kInputs + 1> tiles(args);
  const auto outer = static_cast<unsigned>(args.numel / (args.sizes[0] * args.sizes[1]));
  const unsigned grid = outer * tiles.tiles[0].divisor * tiles.tiles[1].divisor;
  const LaunchShape shape = {grid, 1, 1, kBlockSize, 0, 1, kTilePerThread};
  return launch(tiles_map<common_t, kCast, kInputs, F>, shape, stream, f, tiles);
}

}  // namespace treadle
