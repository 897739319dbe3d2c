// The kernel strided_map computes out[i] = f(in[i]...) for any strides and dtypes.
#pragma once

#include <cstdlib>

#include "kernels/common/fast_divide.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/elementwise/apply.cuh"
#include "kernels/elementwise/args.h"

namespace treadle {

template <int operands>
struct Strided {
  int ndim;
  Dtype dtypes[operands];
  char* data[operands];
  FastDivide sizes[kMaxDims];
  uint32_t strides[kMaxDims][operands];  // bytes; negative strides wrap around

  explicit Strided(const ElementwiseArgs& args, int first_dim = 0) : ndim(args.ndim - first_dim) {
    for (int i = 0; i < operands; ++i) {
      dtypes[i] = args.dtypes[i];
      data[i] = args.data[i];
    }
    for (int d = 0; d < ndim; ++d) {
      const int from = d + first_dim;
      sizes[d] = FastDivide(static_cast<uint32_t>(args.sizes[from]));
      for (int i = 0; i < operands; ++i) {
        strides[d][i] = static_cast<uint32_t>(args.strides[i][from]);
      }
    }
  }

  __device__ void offsets(uint32_t index, int32_t (&offset)[operands]) const {
#pragma unroll
    for (int i = 0; i < operands; ++i) offset[i] = 0;
#pragma unroll
    for (int d = 0; d < kMaxDims; ++d) {
      if (d == ndim) break;
      const uint32_t rest = sizes[d](index);
      const uint32_t here = index - rest * sizes[d].divisor;
      index = rest;
#pragma unroll
      for (int i = 0; i < operands; ++i) offset[i] += here * strides[d][i];
    }
  }
};

inline constexpr int kStridedPerThread = 4;

template <class common_t, bool kCast, int kInputs, class F>
__global__ void __launch_bounds__(kBlockSize)
    strided_map(F f, const __grid_constant__ Strided<kInputs + 1> args, uint32_t numel) {
  begin_kernel();
  const uint32_t first = blockIdx.x * (kStridedPerThread * kBlockSize) + threadIdx.x;
  Vector<common_t, kStridedPerThread> in[kInputs] = {}, out;
  int32_t offset[kStridedPerThread][kInputs + 1];
#pragma unroll
  for (int v = 0; v < kStridedPerThread; ++v) {
    const uint32_t at = first + v * kBlockSize;
    if (at >= numel) break;
    args.offsets(at, offset[v]);
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
      const char* source = args.data[i + 1] + offset[v][i + 1];
      if constexpr (kCast) {
        in[i].value[v] = load_cast<common_t>(source, args.dtypes[i + 1]);
      } else {
        in[i].value[v] = *reinterpret_cast<const common_t*>(source);
      }
    }
  }
  apply(f, out, in);
#pragma unroll
  for (int v = 0; v < kStridedPerThread; ++v) {
    if (first + v * kBlockSize >= numel) break;
    char* target = args.data[0] + offset[v][0];
    if constexpr (kCast) {
      store_cast(target, args.dtypes[0], out.value[v]);
    } else {
      *reinterpret_cast<common_t*>(target) = out.value[v];
    }
  }
}

template <class common_t, bool kCast, int kInputs, class F>
cudaError_t launch_strided(const ElementwiseArgs& args, const F& f, cudaStream_t stream) {
  const auto numel = static_cast<uint32_t>(args.numel);
  const unsigned grid = ceil_div(numel, uint32_t{kStridedPerThread * kBlockSize});
  const LaunchShape shape = {grid, 1, 1, kBlockSize, 0, 1, kStridedPerThread};
  return launch(strided_map<common_t, kCast, kInputs, F>, shape, stream, f,
                Strided<kInputs + 1>(args), numel);
}

}  // namespace treadle
