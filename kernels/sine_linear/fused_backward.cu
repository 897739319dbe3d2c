// The sine layer's first backward pass on sm_90, half types, narrow layers: the slope g, its sums,
// g W and g^T x in one kernel, which stores no slope.
//
// A block takes 64 rows at a time, and its warpgroups share the work: one makes g of grad and phase
// and writes it to shared memory; one multiplies it by W, which stays there; two add up g^T x in
// their registers, for all rows that the block has. Then the blocks' parts are added. A layer wider
// than kInputs has two blocks for the same rows, a cluster: each has half of the inputs, and makes
// half of g for both. Every order is that of the shapes and the chip, so the bits are too.
// Formula: kernels/math/sine_linear.h. For everything else: sine_linear_sums.cu and cuBLAS.
#include <algorithm>

#include "kernels/sine_linear.h"
#include "kernels/sine_linear_gradients_products.cuh"
#include "kernels/tensor_map.cuh"

namespace treadle {
namespace {

using namespace sine_gradients;

constexpr int kSumThreads = 256;
constexpr int64_t kMostRows = int64_t{1} << 30;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int n>
__device__ __forceinline__ void set_registers() {
  if constexpr (n > 65536 / kThreads) {
    ptx::take_registers<n>();
  } else {
    ptx::give_registers<n>();
  }
}

#endif

template <class T, int kOut, int kBlocks, bool kMultiply>
__global__ void __launch_bounds__(kThreads, 1)
    sine_linear_gradients(const __grid_constant__ SineLinearGradients args,
                          const __grid_constant__ CUtensorMap x,
                          const __grid_constant__ CUtensorMap w,
                          const __grid_constant__ CUtensorMap grad_input, int count, float* parts) {
  begin_kernel();
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Is = Plan<kOut, kBlocks>;
  extern __shared__ char shared[];
  const Memory<kOut, kBlocks> memory(shared);
  if (threadIdx.x == 0) {
    constexpr int kWarps = kWarpgroup / 32;
    constexpr int kReaders = kAdders + (kMultiply ? 1 : 0);
    ptx::init_barrier(memory.weight_full(), 1);
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::init_barrier(memory.slope_full(stage), kWarps);
      ptx::init_barrier(memory.slope_empty(stage), kReaders * kBlocks * kWarps);
    }
    for (int stage = 0; stage < kInputStages; ++stage) {
      ptx::init_barrier(memory.input_full(stage), 1);
      ptx::init_barrier(memory.input_empty(stage), kAdders * kWarps);
    }
    ptx::publish_barriers();
  }
  ptx::sync_cluster();
  const int cluster = blockIdx.x / kBlocks, clusters = gridDim.x / kBlocks;
  const Tiles tiles{cluster, clusters, count, static_cast<int>(ptx::block_in_cluster())};
  const int64_t weights = args.columns * args.inputs;
  const int group = threadIdx.x / kWarpgroup;
  if (group < kAdders) {
    set_registers<Is::kAdds>();
    add_outer<T>(memory, args, tiles, parts + cluster * weights);
  } else if (group == kAdders) {
    set_registers<Is::kMultiplies>();
    multiply<T, kOut, kBlocks, kMultiply>(memory, x, w, grad_input, tiles);
  } else {
    set_registers<Is::kMakes>();
    make_slopes<T>(memory, args, tiles, parts + clusters * weights + blockIdx.x * args.columns);
  }
  // Nobody leaves while the other block still writes to it.
  __syncwarp();
  ptx::sync_cluster();
#endif
}

// The gradients of weight and bias from the parts of all clusters, and of all blocks.
template <class T>
__global__ void __launch_bounds__(kSumThreads)
    sine_linear_add_parts(const __grid_constant__ SineLinearGradients args, const float* parts,
                          int clusters, int blocks) {
  begin_kernel();
  const int64_t weights = args.columns * args.inputs;
  const int64_t at = int64_t{blockIdx.x} * kSumThreads + threadIdx.x;
  if (at >= weights + args.columns) return;
  const bool bias = at >= weights;
  const int64_t element = bias ? at - weights : at, step = bias ? args.columns : weights;
  const float* from = parts + (bias ? clusters * weights : 0) + element;
  const int count = bias ? blocks : clusters;
  float sums[4] = {};
  for (int i = 0; i < count; i += 4) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (i + j < count) sums[j] += from[(i + j) * step];
    }
  }
  void* const to = bias ? args.grad_bias : args.grad_weight;
  if (to != nullptr) {
    static_cast<T*>(to)[element] = Narrow<T>::from(sums[0] + sums[1] + (sums[2] + sums[3]));
  }
}

// ---- host

int parts_of(int blocks, int processors, int count) {
  return std::min(std::max(1, processors / blocks), count);
}

int blocks_of(const SineLinearGradients& args) {
  return args.columns <= 128 && args.inputs <= kInputs ? 1 : 2;
}

int tiles_of(const SineLinearGradients& args) {
  return static_cast<int>(ceil_div(args.rows, int64_t{kTileRows}));
}

template <class T, int kOut, int kBlocks>
cudaError_t launch_gradients(const SineLinearGradients& args, float* parts, int processors,
                             cudaStream_t stream) {
  using Is = Plan<kOut, kBlocks>;
  const auto rows = static_cast<cuuint64_t>(args.rows);
  const auto columns = static_cast<cuuint64_t>(args.columns);
  const auto inputs = static_cast<cuuint64_t>(args.inputs);
  const auto row_bytes = static_cast<cuuint64_t>(args.row_stride) * 2;
  CUtensorMap x, w, grad_input = {};
  if (!encode_map<2>(x, args.dtype, args.input, {inputs, rows}, {row_bytes},
                     {kAcross, kTileRows}) ||
      !encode_map<2>(w, args.dtype, args.weight, {inputs, columns}, {inputs * 2},
                     {kAcross, kOut}) ||
      (args.grad_input != nullptr &&
       !encode_map<2>(grad_input, args.dtype, args.grad_input, {inputs, rows}, {inputs * 2},
                      {kAcross, kTileRows}))) {
    return cudaErrorNotSupported;
  }
  const int count = tiles_of(args), clusters = parts_of(kBlocks, processors, count);
  const auto kernel = args.grad_input != nullptr ? sine_linear_gradients<T, kOut, kBlocks, true>
                                                 : sine_linear_gradients<T, kOut, kBlocks, false>;
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Is::kSharedBytes);
  if (error != cudaSuccess) return error;
  const LaunchShape shape = {
      static_cast<unsigned>(clusters * kBlocks), 1, 1, kThreads, Is::kSharedBytes, 8,
      ceil_div(count, clusters) * kTileRows};
  error = launch_with(kernel, shape, stream, cluster_launch(kBlocks), args, x, w, grad_input, count,
                      parts);
  if (error != cudaSuccess) return error;
  const int64_t sums = args.columns * (args.inputs + 1);
  const LaunchShape add = {static_cast<unsigned>(ceil_div(sums, int64_t{kSumThreads})),
                           1,
                           1,
                           kSumThreads,
                           0,
                           1,
                           clusters};
  return launch(sine_linear_add_parts<T>, add, stream, args, parts, clusters, clusters * kBlocks);
}

template <class T>
cudaError_t launch_gradients_of(const SineLinearGradients& args, float* parts, int processors,
                                cudaStream_t stream) {
  return blocks_of(args) == 1 ? launch_gradients<T, 128, 1>(args, parts, processors, stream)
                              : launch_gradients<T, 256, 2>(args, parts, processors, stream);
}

}  // namespace

bool sine_linear_gradients_takes(const SineLinearGradients& args) {
  const bool half = args.dtype == Dtype::kHalf || args.dtype == Dtype::kBFloat16;
  return compiled_for(900) && half && args.grad_weight != nullptr && args.rows >= kTileRows &&
         args.columns % 8 == 0 && args.columns <= kMostAtOnce && args.inputs % 8 == 0 &&
         args.inputs <= kMostAtOnce && args.row_stride % 8 == 0 && args.row_stride >= args.inputs &&
         aligned(args.grad) && aligned(args.phase) && aligned(args.input) && aligned(args.weight) &&
         aligned(args.grad_input) && args.rows < kMostRows;
}

int64_t sine_linear_gradients_parts(const SineLinearGradients& args, int processors) {
  const int blocks = blocks_of(args);
  return parts_of(blocks, processors, tiles_of(args)) * args.columns * (args.inputs + blocks);
}

cudaError_t launch_sine_linear_gradients(const SineLinearGradients& args, void* parts,
                                         int processors, cudaStream_t stream) {
  auto* const to = static_cast<float*>(parts);
  return args.dtype == Dtype::kHalf ? launch_gradients_of<Half>(args, to, processors, stream)
                                    : launch_gradients_of<BFloat16>(args, to, processors, stream);
}

}  // namespace treadle
