// The map under every elementwise op: out[i] = f(in[i]...), any strides, any mixture of dtypes.
// f is a functor of kernels/math, on acc_t values. Two kernels:
//   dense_map    one thread per kVectors vectors of 16 bytes (or single elements, if misaligned)
//   strided_map  one thread per kStridedPerThread elements, casting each if dtypes are mixed
#pragma once

#include "kernels/convert.cuh"
#include "kernels/elementwise.h"
#include "kernels/launch.cuh"
#include "kernels/vector.cuh"

namespace treadle {

template <int n>
struct Pointers {
  char* at[n];
};

template <int operands>
struct Strided {
  int ndim;
  Dtype dtypes[operands];
  char* data[operands];
  FastDivide sizes[kMaxDims];
  uint32_t strides[kMaxDims][operands];  // bytes; wraps like two's complement where negative

  explicit Strided(const ElementwiseArgs& args) : ndim(args.ndim) {
    for (int i = 0; i < operands; ++i) {
      dtypes[i] = args.dtypes[i];
      data[i] = args.data[i];
    }
    for (int d = 0; d < ndim; ++d) {
      sizes[d] = FastDivide(static_cast<uint32_t>(args.sizes[d]));
      for (int i = 0; i < operands; ++i) strides[d][i] = static_cast<uint32_t>(args.strides[i][d]);
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

template <class F, class acc>
__device__ __forceinline__ acc apply(const F& f, const acc (&in)[1]) {
  return f(in[0]);
}
template <class F, class acc>
__device__ __forceinline__ acc apply(const F& f, const acc (&in)[2]) {
  return f(in[0], in[1]);
}

// Block b does vectors [b, b + 1) * kVectors * kBlockSize; its thread t every kBlockSize-th of
// them.
template <class scalar_t, int kWidth, int kVectors, int kInputs, class F>
__global__ void __launch_bounds__(kBlockSize)
    dense_map(F f, Pointers<kInputs + 1> data, int64_t numel) {
  begin_kernel();
  using vector_t = Vector<scalar_t, kWidth>;
  const int64_t first = int64_t{blockIdx.x} * kVectors * kBlockSize + threadIdx.x;
  vector_t in[kVectors][kInputs];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int64_t at = first + v * kBlockSize;
    if ((at + 1) * kWidth <= numel) {
#pragma unroll
      for (int i = 0; i < kInputs; ++i) {
        in[v][i] = reinterpret_cast<const vector_t*>(data.at[i + 1])[at];
      }
    }
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int64_t at = first + v * kBlockSize;
    if ((at + 1) * kWidth <= numel) {
      vector_t out;
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        acc_t<scalar_t> args[kInputs];
#pragma unroll
        for (int i = 0; i < kInputs; ++i) args[i] = widen(in[v][i].value[e]);
        out.value[e] = Narrow<scalar_t>::from(apply(f, args));
      }
      reinterpret_cast<vector_t*>(data.at[0])[at] = out;
    } else {
      for (int64_t e = at * kWidth; e < numel; ++e) {  // the last, incomplete vector
        acc_t<scalar_t> args[kInputs];
#pragma unroll
        for (int i = 0; i < kInputs; ++i) {
          args[i] = widen(reinterpret_cast<const scalar_t*>(data.at[i + 1])[e]);
        }
        reinterpret_cast<scalar_t*>(data.at[0])[e] = Narrow<scalar_t>::from(apply(f, args));
      }
    }
  }
}

inline constexpr int kStridedPerThread = 4;

template <class common_t, bool kCast, int kInputs, class F>
__global__ void __launch_bounds__(kBlockSize)
    strided_map(F f, const __grid_constant__ Strided<kInputs + 1> args, uint32_t numel) {
  begin_kernel();
  using acc = acc_t<common_t>;
  const uint32_t first = blockIdx.x * (kStridedPerThread * kBlockSize) + threadIdx.x;
  acc in[kStridedPerThread][kInputs];
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
        in[v][i] = load_cast<common_t>(source, args.dtypes[i + 1]);
      } else {
        in[v][i] = widen(*reinterpret_cast<const common_t*>(source));
      }
    }
  }
#pragma unroll
  for (int v = 0; v < kStridedPerThread; ++v) {
    if (first + v * kBlockSize >= numel) break;
    const acc result = apply(f, in[v]);
    char* target = args.data[0] + offset[v][0];
    if constexpr (kCast) {
      store_cast<common_t>(target, args.dtypes[0], result);
    } else {
      *reinterpret_cast<common_t*>(target) = Narrow<common_t>::from(result);
    }
  }
}

template <class scalar_t, int kWidth, int kInputs, class F>
cudaError_t launch_dense(const ElementwiseArgs& args, const F& f, cudaStream_t stream) {
  // One vector a thread is best for memory; arithmetic on half types needs a second one to hide in.
  constexpr int kVectors = kWidth == 1 ? 4 : (sizeof(scalar_t) <= 2 && F::kHeavy ? 2 : 1);
  constexpr int64_t per_block = int64_t{kWidth} * kVectors * kBlockSize;
  Pointers<kInputs + 1> data;
  for (int i = 0; i <= kInputs; ++i) data.at[i] = args.data[i];
  const auto grid = static_cast<unsigned>(ceil_div(args.numel, per_block));
  return launch(dense_map<scalar_t, kWidth, kVectors, kInputs, F>,
                {grid, 1, 1, kBlockSize, 0, kWidth, kWidth * kVectors}, stream, f, data,
                args.numel);
}

template <class common_t, int kInputs, class F>
cudaError_t launch_map(const ElementwiseArgs& args, const F& f, cudaStream_t stream) {
  if (args.dense) {
    constexpr int kWidth = 16 / sizeof(common_t);
    bool aligned = true;
    for (int i = 0; i <= kInputs; ++i) {
      aligned = aligned && reinterpret_cast<uintptr_t>(args.data[i]) % 16 == 0;
    }
    return aligned ? launch_dense<common_t, kWidth, kInputs>(args, f, stream)
                   : launch_dense<common_t, 1, kInputs>(args, f, stream);
  }
  bool cast = false;
  for (int i = 0; i <= kInputs; ++i) cast = cast || args.dtypes[i] != args.compute;
  const auto numel = static_cast<uint32_t>(args.numel);
  const LaunchShape shape = {ceil_div(numel, uint32_t{kStridedPerThread * kBlockSize}),
                             1,
                             1,
                             kBlockSize,
                             0,
                             1,
                             kStridedPerThread};
  const Strided<kInputs + 1> strided(args);
  return cast ? launch(strided_map<common_t, true, kInputs, F>, shape, stream, f, strided, numel)
              : launch(strided_map<common_t, false, kInputs, F>, shape, stream, f, strided, numel);
}

}  // namespace treadle
