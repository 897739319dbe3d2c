// Code that all persistent kernels share. These kernels run all steps of a layer in one launch and
// keep its weights on the chip (cluster and grid, in half types and float32). This file defines
// which rows of the batch a group of blocks computes. It also contains functions that load and
// store rows of any size and alignment and, for cluster in half types, the product with W_hh on
// tensor cores.
#pragma once

#ifndef __CUDACC_RTC__
#include <atomic>
#include <mutex>
#endif

#include "kernels/common/convert.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/math/c_parts.h"
#include "kernels/recurrent/engine/shapes.h"
#include "kernels/recurrent/persistent_args.h"

namespace treadle {

// The rows [first, first + count) of the batch that a group computes in one direction. A packed
// batch is sorted by length, so the rows that have a step t are a prefix.
struct GroupRows {
  const int64_t* starts;
  int batch;
  int64_t first;
  int count;

  // The index of the first row of step t among the rows of all steps.
  __device__ __forceinline__ int64_t start(int t) const {
    return starts == nullptr ? int64_t{t} * batch : __ldg(starts + t);
  }

  // The number of the group's rows that have step t.
  __device__ __forceinline__ int active(int t) const {
    if (starts == nullptr) return count;
    const int64_t rows = __ldg(starts + t + 1) - __ldg(starts + t) - first;
    return static_cast<int>(rows < 0 ? 0 : rows < count ? rows : count);
  }

  // How many of `steps` steps a row of the group has, by binary search over active().
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

// The rows and the direction of a group of blocks. Successive groups alternate between directions,
// so that both directions begin early.
struct Group {
  int direction;
  int reverse;  // 1: the direction runs backward in time; else 0
  GroupRows rows;

  __device__ __forceinline__ Group(const PersistentSizes& sizes, int number, int rows_each)
      : direction(sizes.first_direction + number % sizes.directions),
        reverse(direction >= sizes.groups ? 1 : 0) {
    const int64_t before = int64_t{number / sizes.directions} * rows_each;
    const int64_t first = sizes.first_row + before, rest = sizes.row_count - before;
    rows = {sizes.starts, static_cast<int>(sizes.batch), first,
            static_cast<int>(rest < rows_each ? rest : rows_each)};
  }

  // The time t of the s-th step of the forward pass and of the backward pass, which computes the
  // steps of each direction in reverse order.
  __device__ __forceinline__ int forward_time(int s, int steps) const {
    return reverse == 0 ? s : steps - 1 - s;
  }
  __device__ __forceinline__ int backward_time(int s, int steps) const {
    return reverse == 0 ? steps - 1 - s : s;
  }
};

// c and its gradient are stored in T if `half`, else in float; T may itself be float.
template <class T>
__device__ __forceinline__ float load_c(const void* c, int64_t at, bool half) {
  if constexpr (!is_half_type<T>) return static_cast<const float*>(c)[at];
  return half ? widen(static_cast<const T*>(c)[at]) : static_cast<const float*>(c)[at];
}

template <class T>
__device__ __forceinline__ void store_c(void* c, int64_t at, bool half, float value) {
  if (is_half_type<T> && half) {
    static_cast<T*>(c)[at] = Narrow<T>::from(value);
  } else {
    static_cast<float*>(c)[at] = value;
  }
}

// The index of part p of c in [..., P * H], where P is the number of c's parts. `at` is the index
// of the same row and unit in [..., H].
template <class C>
__device__ __forceinline__ int64_t part_at(int64_t at, int64_t hidden, int p) {
  constexpr int kParts = math::kPartCount<C>;
  if constexpr (kParts == 1) return at;
  return at + (at / hidden * (kParts - 1) + p) * hidden;
}

template <class T, class C>
__device__ __forceinline__ C load_c_at(const void* c, int64_t at, int64_t hidden, bool half) {
  C found;
#pragma unroll
  for (int p = 0; p < math::kPartCount<C>; ++p) {
    math::part(found, p) = load_c<T>(c, part_at<C>(at, hidden, p), half);
  }
  return found;
}

template <class T, class C>
__device__ __forceinline__ void store_c_at(void* c, int64_t at, int64_t hidden, bool half,
                                           const C& value) {
#pragma unroll
  for (int p = 0; p < math::kPartCount<C>; ++p) {
    store_c<T>(c, part_at<C>(at, hidden, p), half, math::part(value, p));
  }
}

// Loads c of a unit in a row of [..., P * H].
template <class T, class C>
__device__ __forceinline__ C load_unit_c(const void* c, int64_t row, int64_t hidden, int64_t unit,
                                         bool half) {
  constexpr int kParts = math::kPartCount<C>;
  C found;
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    math::part(found, p) = load_c<T>(c, (row * kParts + p) * hidden + unit, half);
  }
  return found;
}

template <class T, class C>
__device__ __forceinline__ void store_unit_c(void* c, int64_t row, int64_t hidden, int64_t unit,
                                             bool half, const C& value) {
  constexpr int kParts = math::kPartCount<C>;
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    store_c<T>(c, (row * kParts + p) * hidden + unit, half, math::part(value, p));
  }
}

// Loads the bits of four elements; those from `count` on are zeros. `vector` means that `at` is
// aligned to 8 bytes.
__device__ __forceinline__ uint2 load_four(const uint16_t* at, int64_t count, bool vector) {
  if (count >= 4 && vector) return __ldg(reinterpret_cast<const uint2*>(at));
  uint32_t x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = i < count ? __ldg(at + i) : 0;
  return {x[0] | x[1] << 16, x[2] | x[3] << 16};
}

// Stores the first `count` of four or eight elements, one by one. If `vector`, rows are aligned,
// and one store writes all elements, because those beyond `count` are padding.
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

// Hides from the compiler how x was computed. Otherwise it recomputes x in every step to save a
// register.
__device__ __forceinline__ void keep(uint32_t& x) { asm volatile("" : "+r"(x)); }
__device__ __forceinline__ void keep(int64_t& x) { asm volatile("" : "+l"(x)); }
__device__ __forceinline__ void keep(const char*& x) { asm volatile("" : "+l"(x)); }

template <class T>
__device__ __forceinline__ float widen_bits(uint16_t bits) {
  return widen(T{bits});
}

// Sums in a binary tree, for short dependency chains and a fixed order.
template <int n>
__device__ __forceinline__ float sum_in_pairs(float (&parts)[n]) {
#pragma unroll
  for (int step = 1; step < n; step *= 2) {
#pragma unroll
    for (int k = 0; k + step < n; k += 2 * step) parts[k] += parts[k + step];
  }
  return parts[0];
}

// ---- the product with W_hh on tensor cores

// Calls put(i, load(i)) for each i below `count`. The loop is not unrolled, although put() needs a
// constant i to store into registers: unrolled, the loads of all weights would be most of a
// kernel's code, and of the time to compile it. `batch` loads are in flight at the same time.
// The registers must have values before the loop. Without them, ptxas 13.0 gave the fragments of
// different iterations the same registers in one kernel.
template <int count, int batch, class Load, class Put>
__device__ __forceinline__ void load_in_batches(const Load& load, const Put& put) {
  constexpr int kBatches = ceil_div(count, batch);
#pragma unroll 1
  for (int n = 0; n < kBatches; ++n) {
    decltype(load(0)) loaded[batch];
#pragma unroll
    for (int i = 0; i < batch; ++i) {
      const int at = n * batch + i;
      loaded[i] = load(count % batch == 0 ? at : min(at, count - 1));
    }
#pragma unroll
    for (int constant = 0; constant < kBatches; ++constant) {
      if (n != constant) continue;
#pragma unroll
      for (int i = 0; i < batch; ++i) {
        if (constant * batch + i < count) put(constant * batch + i, loaded[i]);
      }
    }
  }
}

// One fragment of each gate that has a product with h.
template <int state_gates>
struct GateFragments {
  uint4 gate[state_gates];
  // How many of these to load at the same time.
  static constexpr int kBatch = state_gates == 1 ? 8 : state_gates == 2 ? 4 : 2;
};

// Loads this lane's part of a fragment of each gate: four elements, from k on, of the rows of W_hh
// for units u and u + apart. `weight` is W_hh of the direction. `vector` is as for load_four().
template <class Cell>
__device__ __forceinline__ GateFragments<Cell::kStateGates> load_gate_fragments(
    const uint16_t* weight, int64_t hidden, int64_t u, int apart, int64_t k, bool vector) {
  GateFragments<Cell::kStateGates> found;
#pragma unroll
  for (int m = 0; m < Cell::kStateGates; ++m) {
    const uint16_t* at = weight + (Cell::weight_block(m) * hidden + u) * hidden + k;
    const uint2 low = load_four(at, u < hidden ? hidden - k : 0, vector);
    const uint2 high = load_four(at + apart * hidden, u + apart < hidden ? hidden - k : 0, vector);
    found.gate[m] = {low.x, high.x, low.y, high.y};
  }
  return found;
}

// A warp's part of W_hh as the A operand of mma.sync m16n8k16: [chunks of 16 elements of K, the
// reduction dimension][tiles of 16 rows]. The first `in_registers` chunks stay in registers, and no
// more would fit there. The others are in shared memory, 16 bytes per lane. The caller owns the
// array `registers`, which is indexed only by constants after unrolling, so that it stays in
// registers.
template <int chunks, int tiles, int in_registers>
struct WarpWeights {
  static constexpr int kTiles = tiles, kRegisters = in_registers * tiles * 4;
  uint32_t (&registers)[kRegisters];
  uint32_t shared;
  int warp, lane;

  __device__ __forceinline__ uint32_t address(int chunk, int tile) const {
    const int at = (warp * (chunks - in_registers) + chunk - in_registers) * tiles + tile;
    return shared + at * 512 + lane * 16;
  }

  // `a` has this lane's elements of K in rows g = lane / 4 and g + 8 of the tile: the first two of
  // both rows, then the last two.
  __device__ __forceinline__ void set(int chunk, int tile, uint4 a) const {
    if (chunk < in_registers) {
      uint32_t* to = registers + (chunk < in_registers ? chunk : 0) * tiles * 4 + tile * 4;
      to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
    } else {
      ptx::store16(address(chunk, tile), a);
    }
  }

  __device__ __forceinline__ uint4 get(int chunk, int tile) const {
    if (chunk < in_registers) {
      const uint32_t* from = registers + (chunk < in_registers ? chunk : 0) * tiles * 4 + tile * 4;
      return {from[0], from[1], from[2], from[3]};
    }
    return ptx::load16(address(chunk, tile));
  }
};

// The sum of the biases of gate m of unit u. The input product and the product with h may each have
// one.
template <class Cell, class T>
__device__ __forceinline__ float bias_of(const PersistentForward& args, int64_t d, int m,
                                         int64_t u) {
  constexpr int kFirstInput = Cell::kGates - Cell::kInputGates;
  const int64_t hidden = args.sizes.hidden;
  float bias = 0;
  if (args.bias_ih != nullptr && m >= kFirstInput) {
    const int64_t block = d * Cell::kInputGates + m - kFirstInput;
    bias = widen(static_cast<const T*>(args.bias_ih)[block * hidden + u]);
  }
  if (args.bias_hh != nullptr && m < Cell::kStateGates) {
    const int64_t block = d * Cell::kStateGates + Cell::weight_block(m);
    bias += widen(static_cast<const T*>(args.bias_hh)[block * hidden + u]);
  }
  return bias;
}

// Adds W[chunk] b to `sum`, for `columns` tiles of 8 rows of the batch.
template <class T, class Weights, int columns>
__device__ __forceinline__ void multiply_chunk(const Weights& weights, int chunk,
                                               const uint2 (&b)[columns],
                                               float (&sum)[Weights::kTiles][columns][4]) {
#pragma unroll
  for (int m = 0; m < Weights::kTiles; ++m) {
    const uint4 a = weights.get(chunk, m);
#pragma unroll
    for (int j = 0; j < columns; ++j) {
      ptx::multiply_add<T>(sum[m][j], a.x, a.y, a.z, a.w, b[j].x, b[j].y);
    }
  }
}

// Stores a 16 x 8 accumulator tile to [units, 8 rows] floats: lane (g, q) has units g and g + 8 of
// rows 2q and 2q + 1.
__device__ __forceinline__ void store_sums(uint32_t to, const float (&sum)[4]) {
  ptx::store_floats(to, sum[0], sum[1]);
  ptx::store_floats(to + 8 * 8 * 4, sum[2], sum[3]);
}

#ifndef __CUDACC_RTC__
// The architectures (90 for sm_90) for which a kernel has a body. For all others it is empty.
struct CompiledFor {
  int least, most = 1000, except = 0;

  constexpr bool operator()(int architecture) const {
    return architecture >= least && architecture <= most && architecture != except;
  }
};

// The limits of a device that launches depend on.
struct DeviceLimits {
  int processors, cooperative, shared_bytes;
};

// The current device's limits, which are queried only once.
inline cudaError_t current_limits(DeviceLimits* found) {
  constexpr int kMost = 64;
  static DeviceLimits known[kMost];
  static std::atomic<bool> asked[kMost] = {};
  static std::mutex mutex;
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  if (device < kMost && asked[device].load(std::memory_order_acquire)) {
    *found = known[device];
    return cudaSuccess;
  }
  const struct {
    int* to;
    cudaDeviceAttr attribute;
  } questions[] = {
      {&found->processors, cudaDevAttrMultiProcessorCount},
      {&found->cooperative, cudaDevAttrCooperativeLaunch},
      {&found->shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin},
  };
  for (const auto& [to, attribute] : questions) {
    error = cudaDeviceGetAttribute(to, attribute, device);
    if (error != cudaSuccess) return error;
  }
  if (device < kMost) {
    const std::lock_guard<std::mutex> lock(mutex);
    known[device] = *found;
    asked[device].store(true, std::memory_order_release);
  }
  return cudaSuccess;
}

// How many blocks of a kernel without clusters can be resident at once.
template <class... P>
cudaError_t blocks_at_once(void (*kernel)(P...), int threads, size_t shared_bytes, int* count) {
  DeviceLimits limits{};
  const cudaError_t error = current_limits(&limits);
  if (error != cudaSuccess) return error;
  const cudaError_t found =
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(count, kernel, threads, shared_bytes);
  *count *= limits.processors;
  return found;
}
#endif

}  // namespace treadle
