// PTX of sm_90a: wgmma on shared memory, TMA copies of tiles, and mbarriers shared by a cluster.
#pragma once

#include <cuda.h>

#include <type_traits>

#include "kernels/common/ptx.cuh"

namespace treadle::ptx {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// ---- mbarriers that wait for several arrivals

__device__ __forceinline__ void init_barrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Arrives at the barrier at the same offset in block `rank` of the cluster.
__device__ __forceinline__ void arrive_at(uint32_t barrier, uint32_t rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(in_block(barrier, rank))
               : "memory");
}

// The current one of n pipeline stages, and the number of completed rounds through all stages. The
// parity of that number is needed to wait on the stage's barrier.
template <int n>
struct Ring {
  int stage = 0;
  uint32_t round = 0;

  __device__ __forceinline__ void advance(int stages = 1) {
    stage += stages;
    while (stage >= n) {
      stage -= n;
      ++round;
    }
  }
  __device__ __forceinline__ uint32_t parity() const { return round & 1; }
};

// ---- TMA: tiles of a tensor, multicast to the blocks of the cluster whose bit in `blocks` is set

__device__ __forceinline__ void copy_tile(uint32_t to, const CUtensorMap* map, int c0, int c1,
                                          uint32_t barrier, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(c0), "r"(c1), "r"(barrier), "h"(blocks)
      : "memory");
}

// Copies a tile of a five-dimensional tensor. The tile spans the middle three dimensions.
__device__ __forceinline__ void copy_tile_of_groups(uint32_t to, const CUtensorMap* map, int c0,
                                                    int c4, uint32_t barrier, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3, %3, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(map), "r"(c0), "r"(0), "r"(c4), "r"(barrier), "h"(blocks)
      : "memory");
}

// Stores a tile from shared memory, clipped to the tensor.
__device__ __forceinline__ void store_tile(const CUtensorMap* map, int c0, int c1, uint32_t from) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
      "r"(c0), "r"(c1), "r"(from)
      : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until this thread's stores have read shared memory, which may then be overwritten.
__device__ __forceinline__ void wait_stores() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Waits until this thread's stores are complete. The end of the block does not wait for them.
__device__ __forceinline__ void finish_stores() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// Stores four [8, 8] matrices of halves from the register layout of mma results. Lane l passes the
// address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_matrices(uint32_t at, const uint32_t (&x)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at),
               "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}

// ---- wgmma

// Matrix descriptor of an operand in shared memory: rows of 128 bytes, 128-byte swizzle, groups of
// eight rows. `address` is a multiple of 1024, plus multiples of 32 bytes within a row. If a
// transposed operand is wider than a row, its next 64 columns begin `apart` bytes later.
__device__ __forceinline__ uint64_t matrix(uint32_t address, uint32_t apart = 16) {
  return (uint64_t{1} << 62) | (uint64_t{1024 >> 4} << 32) | (uint64_t{apart >> 4} << 16) |
         ((address & 0x3ffff) >> 4);
}

// Orders this thread's writes to shared memory before reads by wgmma and TMA (async proxy).
__device__ __forceinline__ void publish_to_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int n>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory");
}

#define TREADLE_EIGHT(d, i)                                                                   \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define TREADLE_PRODUCT(shape, turns, ...)                                                     \
  asm volatile(                                                                                \
      "{\n"                                                                                    \
      ".reg .pred add;\n"                                                                      \
      "setp.ne.b32 add, %66, 0;\n"                                                             \
      "wgmma.mma_async.sync.aligned." shape                                                    \
      " {%0, %1, %2, %3, %4, %5, %6, %7, "                                                     \
      "%8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, "    \
      "%25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "  \
      "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "  \
      "%59, %60, %61, %62, %63}, %64, %65, add, 1, 1" turns                                    \
      ";\n"                                                                                    \
      "}"                                                                                      \
      : TREADLE_EIGHT(c, 0), TREADLE_EIGHT(c, 8), TREADLE_EIGHT(c, 16), TREADLE_EIGHT(c, 24),  \
        TREADLE_EIGHT(c, 32), TREADLE_EIGHT(c, 40), TREADLE_EIGHT(c, 48), TREADLE_EIGHT(c, 56) \
      : "l"(a), "l"(b), "r"(static_cast<int>(add))__VA_ARGS__)
#define TREADLE_PRODUCT_OF_HALVES(types)                                                  \
  TREADLE_PRODUCT("m64n128k16.f32." types, ", %67, %68", , "n"(static_cast<int>(kTurnA)), \
                  "n"(static_cast<int>(kTurnB)))

// A warpgroup computes c [64, 128] = a [64, k] b [128, k]^T, plus the old c if `add`. The k
// elements of a row take 32 bytes. Transposed operands (half types only) are [k, 64] and [k, 128].
// float operands are read as tf32, with 10 bits of mantissa. Thread t has rows r and r + 8, where
// r = 16 (t / 32) + t % 32 / 4, of columns n = 8 j + 2 (t % 4) and n + 1, for j < 16. Row r is in
// c[4 j] and c[4 j + 1], and row r + 8 in c[4 j + 2] and c[4 j + 3].
template <class T, bool kTurnA = false, bool kTurnB = false>
__device__ __forceinline__ void multiply_tile(float (&c)[64], uint64_t a, uint64_t b, bool add) {
  if constexpr (std::is_same_v<T, float>) {
    static_assert(!kTurnA && !kTurnB);
    TREADLE_PRODUCT("m64n128k8.f32.tf32.tf32", "");
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    TREADLE_PRODUCT_OF_HALVES("bf16.bf16");
  } else {
    TREADLE_PRODUCT_OF_HALVES("f16.f16");
  }
}

#undef TREADLE_EIGHT
#undef TREADLE_PRODUCT
#undef TREADLE_PRODUCT_OF_HALVES

#endif

}  // namespace treadle::ptx
