// The sine layer's forward pass in half types on GPUs of sm_80 and later that have no wgmma: GEMM
// and sines in one kernel. Two blocks share a multiprocessor, so that one can multiply while the
// other computes sines. Formula: kernels/math/sine_linear.h. On sm_90: fused_forward.cu.
#include <algorithm>
#include <limits>

#include "kernels/sine_linear/fused_forward_epilogue.cuh"
#include "kernels/sine_linear/launchers.h"
#include "kernels/sine_linear/mma_tile.cuh"

namespace treadle {
namespace {

constexpr int kTile = MmaTile<Half>::kRows;
// With more inputs, cuBLAS and a kernel for the sines were faster on an H200, where cuBLAS uses
// wgmma. With 512 inputs, both were equally fast.
constexpr int64_t kMostInputs = 512;

template <class T, bool kSave>
__global__ void __launch_bounds__(MmaTile<T>::kThreads, 2)
    sine_linear_mma_forward(const __grid_constant__ SineLinearForward args, const int across) {
  begin_kernel();
  if constexpr (kMmaTiles) {
    using Tile = MmaTile<T>;
    extern __shared__ __align__(128) char memory[];
    const int64_t row = int64_t{blockIdx.x / across} * kTile;
    const int column = blockIdx.x % across * kTile;
    const MmaFactors factors{args.input,
                             args.weight,
                             args.rows,
                             args.row_stride,
                             static_cast<int>(args.columns),
                             static_cast<int>(args.inputs)};
    typename Tile::Sums sums = {};
    Tile::add_products(factors, memory, row, column, sums);
    store_sines_of<T, kSave, 16>(args, row + Tile::warp_row(), column + Tile::warp_column(), sums);
  }
}

// ---- host

int64_t tiles_across(const SineLinearForward& args) {
  return ceil_div(args.columns, int64_t{kTile});
}

int64_t tiles_of(const SineLinearForward& args) {
  return ceil_div(args.rows, int64_t{kTile}) * tiles_across(args);
}

template <class T>
cudaError_t launch_typed(const SineLinearForward& args, cudaStream_t stream) {
  using Tile = MmaTile<T>;
  const auto kernel =
      args.phase != nullptr ? sine_linear_mma_forward<T, true> : sine_linear_mma_forward<T, false>;
  const cudaError_t error = prepare_mma_kernel(kernel, Tile::kSharedBytes);
  if (error != cudaSuccess) return error;
  const LaunchShape shape = {
      static_cast<unsigned>(tiles_of(args)), 1, 1, Tile::kThreads, Tile::kSharedBytes, kWide<T>,
      kTile * kTile / Tile::kThreads};
  return launch(kernel, shape, stream, args, static_cast<int>(tiles_across(args)));
}

}  // namespace

bool sine_linear_mma_forward_supports(const SineLinearForward& args) {
  return is_half(args.dtype) && fits_tiles<Half>(args, kTile) && args.inputs <= kMostInputs &&
         std::max({args.rows + kTile, args.columns + kTile, tiles_of(args)}) <
             std::numeric_limits<int>::max();
}

cudaError_t launch_sine_linear_mma_forward(const SineLinearForward& args, cudaStream_t stream) {
  return args.dtype == Dtype::kHalf ? launch_typed<Half>(args, stream)
                                    : launch_typed<BFloat16>(args, stream);
}

}  // namespace treadle
