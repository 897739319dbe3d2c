// What the forward and backward pass of the regime "cluster" share. A cluster of blocks takes some
// rows of the batch through all steps. Each block keeps the weights of some hidden units on the
// chip; what the units give at a step, every block needs at the next, and gets it by asynchronous
// stores into its shared memory.
//
// That exchange lies in the order in which a product's registers want it: by 16 units (a chunk), in
// a chunk by lane & 3, then by row, then 4 units. A lane's registers of a product are the k of
// 2q, 2q+1, 2q+8, 2q+9; k is permuted, so that they are units 4q .. 4q+3, and weights are loaded by
// the same permutation.
#pragma once

#include "kernels/convert.cuh"
#include "kernels/launch.cuh"
#include "kernels/persistent_args.h"
#include "kernels/ptx.cuh"

namespace treadle {

inline constexpr int kWarp = 32;
// Once a step, of all threads of a block, and of those that compute.
inline constexpr int kStepBarrier = 15, kSendBarrier = 14;

constexpr int registers_of(int threads) {
  return 65536 / threads < 255 ? 65536 / threads / 8 * 8 : 255;
}

// The rows of the batch that a group of blocks takes, of one direction.
struct GroupRows {
  const int64_t* starts;
  int batch;
  int64_t first;
  int count;

  // Of S, where the rows of step t begin.
  __device__ __forceinline__ int64_t start(int t) const {
    return starts == nullptr ? int64_t{t} * batch : __ldg(starts + t);
  }

  // How many of the group's rows have a step t: they are sorted by length.
  __device__ __forceinline__ int active(int t) const {
    if (starts == nullptr) return count;
    const int64_t rows = __ldg(starts + t + 1) - __ldg(starts + t) - first;
    return static_cast<int>(rows < 0 ? 0 : rows < count ? rows : count);
  }

  // Of `steps` steps, how many a row of the group has.
  __device__ __forceinline__ int length(int row, int steps) const {
    if (starts == nullptr) return steps;
    int has = 0, all = steps;
    while (has < all) {
      const int middle = (has + all) / 2;
      if (row < active(middle)) {
        has = middle + 1;
      } else {
        all = middle;
      }
    }
    return has;
  }
};

// A group of blocks by its number. Directions take turns, so that both begin early.
struct Group {
  int direction;
  GroupRows rows;

  __device__ __forceinline__ Group(const PersistentSizes& sizes, int number, int rows_each)
      : direction(number % sizes.directions) {
    const int64_t before = int64_t{number / sizes.directions} * rows_each;
    const int64_t first = sizes.first_row + before, rest = sizes.row_count - before;
    rows = {sizes.starts, static_cast<int>(sizes.batch), first,
            static_cast<int>(rest < rows_each ? rest : rows_each)};
  }
};

// A cell, which is stored in T or in float.
template <class T>
__device__ __forceinline__ float load_cell(const void* cells, int64_t at, bool half) {
  return half ? widen(static_cast<const T*>(cells)[at]) : static_cast<const float*>(cells)[at];
}

template <class T>
__device__ __forceinline__ void store_cell(void* cells, int64_t at, bool half, float value) {
  if (half) {
    static_cast<T*>(cells)[at] = Narrow<T>::from(value);
  } else {
    static_cast<float*>(cells)[at] = value;
  }
}

// Bits of four elements from `at`, zero from element `count` on.
__device__ __forceinline__ uint2 load_four(const uint16_t* at, int64_t count, bool vector) {
  if (count >= 4 && vector) return __ldg(reinterpret_cast<const uint2*>(at));
  uint32_t x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = i < count ? __ldg(at + i) : 0;
  return {x[0] | x[1] << 16, x[2] | x[3] << 16};
}

// As many of some elements as there are: all at once, or one by one where rows are not aligned.
__device__ __forceinline__ void store_four(char* at, uint2 x, int count, bool vector) {
  if (vector) {
    *reinterpret_cast<uint2*>(at) = x;
    return;
  }
  auto* to = reinterpret_cast<uint16_t*>(at);
  const uint32_t words[2] = {x.x, x.y};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i < count) to[i] = static_cast<uint16_t>(words[i / 2] >> (i % 2 * 16));
  }
}

__device__ __forceinline__ void store_eight(char* at, uint4 x, int count, bool vector) {
  if (vector) {
    *reinterpret_cast<uint4*>(at) = x;
    return;
  }
  store_four(at, {x.x, x.y}, count, false);
  store_four(at + 8, {x.z, x.w}, count - 4, false);
}

// So that the compiler does not compute x again in every step to spare its register.
__device__ __forceinline__ void keep(uint32_t& x) { asm volatile("" : "+r"(x)); }
__device__ __forceinline__ void keep(int64_t& x) { asm volatile("" : "+l"(x)); }

template <class T>
__device__ __forceinline__ float widen_bits(uint16_t bits) {
  return widen(T{bits});
}

// The sum of the parts of K that warps hold, always in the same order.
template <int n>
__device__ __forceinline__ float sum_in_pairs(float (&parts)[n]) {
#pragma unroll
  for (int step = 1; step < n; step *= 2) {
#pragma unroll
    for (int k = 0; k + step < n; k += 2 * step) parts[k] += parts[k + step];
  }
  return parts[0];
}

// Code for an older GPU, which the driver has translated for a newer one, does nothing here.
template <class... P>
cudaError_t has_code_for_90(void (*kernel)(P...), bool* found) {
#if defined(__CUDA_ARCH_LIST__)
  // Whoever compiled for sm_90 alone need not ask.
  constexpr int archs[] = {__CUDA_ARCH_LIST__};
  *found = archs[0] >= 900;
  if (*found) return cudaSuccess;
#endif
  cudaFuncAttributes attributes = {};
  const cudaError_t error =
      cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
  *found = error == cudaSuccess && attributes.ptxVersion >= 90;
  return error;
}

// Whether a kernel asks for more than the device has. The error is taken back.
inline bool too_large(cudaError_t error) {
  return error == cudaErrorInvalidValue && cudaGetLastError() == error;
}

// More than 48 KB of shared memory and clusters of 16 blocks have to be asked for.
template <class... P>
cudaError_t allow_clusters(void (*kernel)(P...), size_t shared_bytes) {
  const auto function = reinterpret_cast<const void*>(kernel);
  const cudaError_t error = cudaFuncSetAttribute(
      function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
}

}  // namespace treadle
