// The sine layer's backward pass on sm_90, for half types and few inputs and outputs. One kernel
// computes grad_input = g W, grad_weight = g^T x and grad_bias, where g is grad_z, the gradient of
// x W^T + bias. g is never written to global memory.
//
// A block processes 64 rows at a time. One warpgroup computes g from grad and phase into shared
// memory. Another multiplies g by W, which stays in shared memory. The other two accumulate g^T x
// in registers over all tiles of the block. A second kernel adds the blocks' parts. A layer with
// more than 128 inputs or outputs uses clusters of two blocks with the same rows: each block has
// half of the inputs and computes half of g for both. The bits of the results depend only on shapes
// and the number of SMs. All other cases use backward_bias.cu and cuBLAS.
#include <algorithm>

#include "kernels/common/tma.cuh"
#include "kernels/sine_linear/fused_backward_gemm.cuh"
#include "kernels/sine_linear/launchers.h"

namespace treadle {
namespace {

using namespace sine_fused_backward;

constexpr int kSumThreads = 256;
constexpr int64_t kMaxRows = int64_t{1} << 30;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int n>
__device__ __forceinline__ void setmaxnreg() {
  if constexpr (n > 65536 / kThreads) {
    ptx::setmaxnreg_inc<n>();
  } else {
    ptx::setmaxnreg_dec<n>();
  }
}

#endif

template <class T, int kOut, int kBlocks, bool kMultiply>
__global__ void __launch_bounds__(kThreads, 1)
    sine_linear_fused_backward(const __grid_constant__ SineLinearFusedBackward args,
                               const __grid_constant__ CUtensorMap x,
                               const __grid_constant__ CUtensorMap w,
                               const __grid_constant__ CUtensorMap grad_input, int count,
                               float* parts) {
  begin_kernel();
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Layout = FusedLayout<kOut, kBlocks>;
  extern __shared__ char shared[];
  const Memory<kOut, kBlocks> memory(shared);
  if (threadIdx.x == 0) {
    constexpr int kWarps = kWarpgroup / 32;
    constexpr int kReaders = kAccumulators + (kMultiply ? 1 : 0);
    ptx::init_barrier(memory.weight_full(), 1);
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::init_barrier(memory.grad_z_full(stage), kWarps);
      ptx::init_barrier(memory.grad_z_empty(stage), kReaders * kBlocks * kWarps);
    }
    for (int stage = 0; stage < kInputStages; ++stage) {
      ptx::init_barrier(memory.input_full(stage), 1);
      ptx::init_barrier(memory.input_empty(stage), kAccumulators * kWarps);
    }
    ptx::publish_barriers();
  }
  ptx::sync_cluster();
  const int cluster = blockIdx.x / kBlocks, clusters = gridDim.x / kBlocks;
  const Tiles tiles{cluster, clusters, count, static_cast<int>(ptx::block_in_cluster())};
  const int64_t weights = args.columns * args.inputs;
  const int group = threadIdx.x / kWarpgroup;
  if (group < kAccumulators) {
    setmaxnreg<Layout::kAccumulatorRegisters>();
    accumulate_grad_weight<T>(memory, args, tiles, parts + cluster * weights);
  } else if (group == kAccumulators) {
    setmaxnreg<Layout::kMultiplierRegisters>();
    multiply_by_weight<T, kOut, kBlocks, kMultiply>(memory, x, w, grad_input, tiles);
  } else {
    setmaxnreg<Layout::kProducerRegisters>();
    produce_grad_z<T>(memory, args, tiles, parts + clusters * weights + blockIdx.x * args.columns);
  }
  // A block may not exit before its peer's last write to this block's shared memory.
  __syncwarp();
  ptx::sync_cluster();
#endif
}

// Adds the parts of all clusters for grad_weight, and the parts of all blocks for grad_bias.
template <class T>
__global__ void __launch_bounds__(kSumThreads)
    sine_linear_add_parts(const __grid_constant__ SineLinearFusedBackward args, const float* parts,
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

int clusters_for(int blocks, int processors, int count) {
  return std::min(std::max(1, processors / blocks), count);
}

int blocks_of(const SineLinearFusedBackward& args) {
  return args.columns <= 128 && args.inputs <= kInputs ? 1 : 2;
}

int tiles_of(const SineLinearFusedBackward& args) {
  return static_cast<int>(ceil_div(args.rows, int64_t{kTileRows}));
}

template <class T, int kOut, int kBlocks>
cudaError_t launch_sized(const SineLinearFusedBackward& args, float* parts, int processors,
                         cudaStream_t stream) {
  using Layout = FusedLayout<kOut, kBlocks>;
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
  const int count = tiles_of(args), clusters = clusters_for(kBlocks, processors, count);
  const auto kernel = args.grad_input != nullptr
                          ? sine_linear_fused_backward<T, kOut, kBlocks, true>
                          : sine_linear_fused_backward<T, kOut, kBlocks, false>;
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           Layout::kSharedBytes);
  if (error != cudaSuccess) return error;
  const LaunchShape shape = {
      static_cast<unsigned>(clusters * kBlocks), 1, 1, kThreads, Layout::kSharedBytes, 8,
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
cudaError_t launch_typed(const SineLinearFusedBackward& args, float* parts, int processors,
                         cudaStream_t stream) {
  return blocks_of(args) == 1 ? launch_sized<T, 128, 1>(args, parts, processors, stream)
                              : launch_sized<T, 256, 2>(args, parts, processors, stream);
}

}  // namespace

bool sine_linear_fused_backward_supports(const SineLinearFusedBackward& args) {
  const bool half = args.dtype == Dtype::kHalf || args.dtype == Dtype::kBFloat16;
  return compiled_for(900) && half && args.grad_weight != nullptr && args.rows >= kTileRows &&
         args.columns % 8 == 0 && args.columns <= kMaxFusedWidth && args.inputs % 8 == 0 &&
         args.inputs <= kMaxFusedWidth && args.row_stride % 8 == 0 &&
         args.row_stride >= args.inputs && aligned(args.grad) && aligned(args.phase) &&
         aligned(args.input) && aligned(args.weight) && aligned(args.grad_input) &&
         args.rows < kMaxRows;
}

int64_t sine_linear_fused_backward_parts(const SineLinearFusedBackward& args, int processors) {
  const int blocks = blocks_of(args);
  return clusters_for(blocks, processors, tiles_of(args)) * args.columns * (args.inputs + blocks);
}

cudaError_t launch_sine_linear_fused_backward(const SineLinearFusedBackward& args, void* parts,
                                              int processors, cudaStream_t stream) {
  auto* const to = static_cast<float*>(parts);
  return args.dtype == Dtype::kHalf ? launch_typed<Half>(args, to, processors, stream)
                                    : launch_typed<BFloat16>(args, to, processors, stream);
}

}  // namespace treadle
