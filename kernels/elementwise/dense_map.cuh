// The kernel dense_map computes out[i] = f(in[i]...) if every operand is contiguous and has the
// dtype in which f computes.
#pragma once

#include <algorithm>

#include "kernels/common/launch.cuh"
#include "kernels/elementwise/apply.cuh"
#include "kernels/elementwise/args.h"

namespace treadle {

// The number of blocks that fills a multiprocessor. It limits the registers per thread.
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

// Loads a thread's n elements from `data` on, adjacent (one access) or kBlockSize apart.
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

// A thread computes n elements. The last block computes the remainder, with one element per thread
// at a time.
template <class scalar_t, int n, bool kTogether, int kInputs, class F>
__global__ void __launch_bounds__(kBlockSize, kMostBlocks)
    dense_map(F f, Pointers<kInputs + 1> data, uint32_t whole_blocks, uint32_t rest) {
  begin_kernel();
  if (blockIdx.x < whole_blocks) {
    // Positions count accesses, in 32 bits, because computing addresses is much of the work.
    const uint32_t at = blockIdx.x * (kTogether ? kBlockSize : n * kBlockSize) + threadIdx.x;
    constexpr size_t kStep = (kTogether ? n : 1) * sizeof(scalar_t);
    Vector<scalar_t, n> in[kInputs], out;
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
      in[i] = load<scalar_t, n, kTogether>(data.at[i + 1] + at * kStep);
    }
    apply(f, out, in);
    store<kTogether>(data.at[0] + at * kStep, out);
    return;
  }
  // All threads of a warp call f, because f may vote across the warp.
  const int64_t begin = int64_t{whole_blocks} * (n * kBlockSize);
  for (uint32_t at = threadIdx.x; at - threadIdx.x < rest; at += kBlockSize) {
    Vector<scalar_t, 1> in[kInputs] = {}, out;
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
      if (at < rest) in[i].value[0] = reinterpret_cast<const scalar_t*>(data.at[i + 1])[begin + at];
    }
    apply(f, out, in);
    if (at < rest) reinterpret_cast<scalar_t*>(data.at[0])[begin + at] = out.value[0];
  }
}

template <class scalar_t, int n, bool kTogether, int kInputs, class F>
cudaError_t launch_dense(const ElementwiseArgs& args, const F& f, cudaStream_t stream) {
  constexpr int64_t kTile = int64_t{n} * kBlockSize;
  // The maximum number of tiles of a launch. With more, positions would not fit in 32 bits.
  constexpr int64_t kMostTiles = (int64_t{1} << 32) / (kTogether ? kBlockSize : kTile);
  int64_t left = args.numel;
  Pointers<kInputs + 1> data;
  for (int i = 0; i <= kInputs; ++i) data.at[i] = args.data[i];
  while (true) {
    const int64_t numel = std::min(left, kMostTiles * kTile);
    const auto whole_blocks = static_cast<unsigned>(numel / kTile);
    const auto rest = static_cast<unsigned>(numel % kTile);
    const LaunchShape shape = {whole_blocks + (rest != 0), 1, 1, kBlockSize, 0,
                               kTogether ? n : 1,          n};
    const cudaError_t error = launch(dense_map<scalar_t, n, kTogether, kInputs, F>, shape, stream,
                                     f, data, whole_blocks, rest);
    left -= numel;
    if (error != cudaSuccess || left == 0) return error;
    for (int i = 0; i <= kInputs; ++i) data.at[i] += numel * int64_t{sizeof(scalar_t)};
  }
}

}  // namespace treadle
