// affine_scan on CUDA, in one launch: a chunked scan over time, like scan/c_states.cuh. Each warp
// composes the maps of its own steps. Then every warp applies the maps of all warps in order, which
// gives it the result before its own steps. Finally it computes its own steps. A block has 32 units
// (lanes) and up to 16 warps, which compute consecutive parts of the steps.
#include "kernels/common/launch.cuh"
#include "kernels/recurrent/launchers.h"
#include "kernels/recurrent/scan/affine_scan.h"

namespace treadle {
namespace {

constexpr int kWarps = 16, kUnits = 32;

// The number of steps that a thread has in registers at a time.
template <class T>
constexpr int kSteps = sizeof(T) == 4 ? 8 : 4;

// The map c -> keep * c + add. With `forgets` the map returns add, even if c is NaN.
template <class T>
struct Map {
  T keep, add;
  bool forgets;

  __device__ T operator()(T c) const { return forgets ? add : keep * c + add; }
  // The composition: this map first, then `next`.
  __device__ Map then(const Map& next) const {
    if (next.forgets) return next;
    return {next.keep * keep, next.keep * add + next.add, forgets};
  }
};

template <class T>
__global__ void __launch_bounds__(kWarps* kUnits, 2)
    affine_scan(const __grid_constant__ AffineScan args) {
  begin_kernel();
  __shared__ Map<T> totals[2][kWarps][kUnits];
  const int lane = threadIdx.x % kUnits, warp = threadIdx.x / kUnits;
  const int warps = blockDim.x / kUnits;
  const int64_t units = args.rows * args.columns;
  const int64_t unit = int64_t{blockIdx.x} * kUnits + lane;
  const bool real = unit < units;
  const int64_t row = real ? unit / args.columns : 0;
  const auto* keep = static_cast<const T*>(args.keep) + unit;
  const auto* add = static_cast<const T*>(args.add) + unit;
  auto* result = static_cast<T*>(args.result) + unit;
  T c = real ? static_cast<const T*>(args.start)[unit] : T(0);
  int parity = 0;  // of the round
  for (int64_t first = 0; first < args.steps; first += warps * kSteps<T>) {
    Map<T> map[kSteps<T>];
    Map<T> all{T(1), T(0), false};
#pragma unroll
    for (int i = 0; i < kSteps<T>; ++i) {
      const int64_t s = first + warp * kSteps<T> + i;
      map[i] = {T(1), T(0), false};
      if (s >= args.steps || !real) continue;
      const int64_t t = args.reverse ? args.steps - 1 - s : s;
      map[i] = {keep[t * units], add[t * units],
                args.reset != nullptr && args.reset[t * args.rows + row]};
    }
#pragma unroll
    for (int i = 0; i < kSteps<T>; ++i) all = all.then(map[i]);
    // There are two buffers, because the next round may write while other warps still read the
    // buffer of this round.
    totals[parity][warp][lane] = all;
    __syncthreads();
    T own = c;
    for (int w = 0; w < warps; ++w) {
      if (w == warp) own = c;
      c = totals[parity][w][lane](c);
    }
#pragma unroll
    for (int i = 0; i < kSteps<T>; ++i) {
      const int64_t s = first + warp * kSteps<T> + i;
      own = map[i](own);
      if (s < args.steps && real) result[(args.reverse ? args.steps - 1 - s : s) * units] = own;
    }
    parity ^= 1;
  }
}

template <class T>
cudaError_t launch_of(const AffineScan& args, cudaStream_t stream) {
  const int64_t units = args.rows * args.columns;
  const int64_t wanted = ceil_div(args.steps, int64_t{kSteps<T>});
  const int warps = wanted < kWarps ? static_cast<int>(wanted) : kWarps;
  const LaunchShape shape = {static_cast<unsigned>(ceil_div(units, int64_t{kUnits})),
                             1,
                             1,
                             static_cast<unsigned>(warps * kUnits),
                             0,
                             1,
                             static_cast<int>(ceil_div(args.steps, int64_t{warps}))};
  return launch(affine_scan<T>, shape, stream, args);
}

}  // namespace

cudaError_t launch_affine_scan(const AffineScan& args, cudaStream_t stream) {
  if (args.steps == 0 || args.rows * args.columns == 0) return cudaSuccess;
  return args.dtype == Dtype::kDouble ? launch_of<double>(args, stream)
                                      : launch_of<float>(args, stream);
}

}  // namespace treadle
