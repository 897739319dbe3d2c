// The map under every elementwise op: out[i] = f(in[i]...), any strides, any mixture of dtypes.
// f is a functor of kernels/math. Two kernels:
//   dense_map    one thread per vector of 16 bytes, or if misaligned per 4 elements
//   strided_map  one thread per kStridedPerThread elements, casting each if dtypes are mixed
#pragma once

#include <type_traits>

#include "kernels/convert.cuh"
#include "kernels/elementwise.h"
#include "kernels/launch.cuh"
#include "kernels/vector.cuh"

namespace treadle {

// As many blocks as a processor can hold: that limits the registers of a thread.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900 || \
    __CUDA_ARCH__ == 1000 || __CUDA_ARCH__ == 1030
inline constexpr int kMostBlocks = 2048 / kBlockSize;
#elif __CUDA_ARCH__ < 800
inline constexpr int kMostBlocks = 1024 / kBlockSize;
#else
inline constexpr int kMostBlocks = 1536 / kBlockSize;
#endif

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

// out[e] = f(in[0][e], ...) for n elements. f computes one, in acc_t, or all at once from vectors.
template <class F, class scalar_t, int n, int kInputs>
__device__ __forceinline__ void apply(const F& f, Vector<scalar_t, n>& out,
                                      const Vector<scalar_t, n> (&in)[kInputs]) {
  using acc = acc_t<scalar_t>;
  if constexpr (kInputs == 1 && std::is_invocable_v<F, acc>) {
    acc x[n], results[n];
    widen(in[0], x);
#pragma unroll
    for (int e = 0; e < n; ++e) results[e] = f(x[e]);
    narrow(results, out);
  } else if constexpr (kInputs == 2 && std::is_invocable_v<F, acc, acc>) {
    acc a[n], b[n], results[n];
    widen(in[0], a);
    widen(in[1], b);
#pragma unroll
    for (int e = 0; e < n; ++e) results[e] = f(a[e], b[e]);
    narrow(results, out);
  } else if constexpr (kInputs == 1) {
    f(out, in[0]);
  } else {
    f(out, in[0], in[1]);
  }
}

// n elements of a thread, from `data` on: in one access, or kBlockSize apart.
template <class scalar_t, int n, bool kTogether>
__device__ __forceinline__ Vector<scalar_t, n> load(const char* data) {
  if constexpr (kTogether) {
    return *reinterpret_cast<const Vector<scalar_t, n>*>(data);
  } else {
    Vector<scalar_t, n> vector;
#pragma unroll
    for (int e = 0; e < n; ++e) {
      vector.value[e] = reinterpret_cast<const scalar_t*>(data)[e * kBlockSize];
    }
    return vector;
  }
}

template <bool kTogether, class scalar_t, int n>
__device__ __forceinline__ void store(char* data, const Vector<scalar_t, n>& vector) {
  if constexpr (kTogether) {
    *reinterpret_cast<Vector<scalar_t, n>*>(data) = vector;
  } else {
#pragma unroll
    for (int e = 0; e < n; ++e) {
      reinterpret_cast<scalar_t*>(data)[e * kBlockSize] = vector.value[e];
    }
  }
}

// One thread per n elements. Behind the whole blocks comes one that takes the rest one by one.
template <class scalar_t, int n, bool kTogether, int kInputs, class F>
__global__ void __launch_bounds__(kBlockSize, kMostBlocks)
    dense_map(F f, Pointers<kInputs + 1> pointers, uint32_t whole_blocks, uint32_t rest) {
  begin_kernel();
  char* data[kInputs + 1];
#pragma unroll
  for (int i = 0; i <= kInputs; ++i) {
    data[i] = pointers.at[i] + uint64_t{blockIdx.x} * (n * kBlockSize * sizeof(scalar_t));
  }
  if (blockIdx.x < whole_blocks) {
    constexpr uint32_t kStep = (kTogether ? n : 1) * sizeof(scalar_t);
    Vector<scalar_t, n> in[kInputs], out;
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
      in[i] = load<scalar_t, n, kTogether>(data[i + 1] + threadIdx.x * kStep);
    }
    apply(f, out, in);
    store<kTogether>(data[0] + threadIdx.x * kStep, out);
    return;
  }
  // All threads stay together: f may ask the whole warp.
  for (uint32_t begin = 0; begin < rest; begin += kBlockSize) {
    const uint32_t at = begin + threadIdx.x;
    Vector<scalar_t, 1> in[kInputs] = {}, out;
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
      if (at < rest) in[i].value[0] = reinterpret_cast<const scalar_t*>(data[i + 1])[at];
    }
    apply(f, out, in);
    if (at < rest) reinterpret_cast<scalar_t*>(data[0])[at] = out.value[0];
  }
}

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

template <class scalar_t, int n, bool kTogether, int kInputs, class F>
cudaError_t launch_dense(const ElementwiseArgs& args, const F& f, cudaStream_t stream) {
  constexpr int64_t kTile = int64_t{n} * kBlockSize;
  Pointers<kInputs + 1> data;
  for (int i = 0; i <= kInputs; ++i) data.at[i] = args.data[i];
  const auto whole_blocks = static_cast<unsigned>(args.numel / kTile);
  const auto rest = static_cast<unsigned>(args.numel % kTile);
  return launch(dense_map<scalar_t, n, kTogether, kInputs, F>,
                {whole_blocks + (rest != 0), 1, 1, kBlockSize, 0, kTogether ? n : 1, n}, stream, f,
                data, whole_blocks, rest);
}

template <class common_t, int kInputs, class F>
cudaError_t launch_map(const ElementwiseArgs& args, const F& f, cudaStream_t stream) {
  if (args.dense) {
    bool aligned = true;
    for (int i = 0; i <= kInputs; ++i) {
      aligned = aligned && reinterpret_cast<uintptr_t>(args.data[i]) % 16 == 0;
    }
    // One access a thread and operand hides memory's latency best, if it is a wide one.
    return aligned ? launch_dense<common_t, 16 / sizeof(common_t), true, kInputs>(args, f, stream)
                   : launch_dense<common_t, 4, false, kInputs>(args, f, stream);
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
