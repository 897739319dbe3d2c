// A tile of the product of x and W^T in half types, for GPUs without wgmma: all threads of a block
// copy to shared memory, and multiply with mma.sync.
#pragma once

#include "kernels/common/launch.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/sine_linear/common.cuh"

namespace treadle {

// The architectures (80 for sm_80) whose kernels use these tiles. sm_90 has kernels with wgmma.
// Blackwell's datacenter GPUs have other instructions for products, with which cuBLAS is much
// faster.
struct CompiledForMma {
  constexpr bool operator()(int architecture) const {
    return (architecture >= 80 && architecture < 90) || architecture >= 120;
  }
};

#if defined(__CUDA_ARCH__)
inline constexpr bool kMmaTiles = CompiledForMma{}(__CUDA_ARCH__ / 10);
#else
inline constexpr bool kMmaTiles = false;
#endif

// Prepares a launch. Returns cudaErrorNotSupported if the current GPU has no code for the kernel.
template <class... P>
cudaError_t prepare_mma_kernel(void (*kernel)(P...), size_t shared_bytes) {
  // Without this check, the driver would look for the missing code in every call. sm_90 can run
  // code of sm_80 that was assembled for it (docs/other_gpus.md).
  const int gpu = current_gpu() / 10;
  if (gpu != 90 && !CompiledForMma{}(gpu)) return cudaErrorNotSupported;
  bool compiled = false;
  cudaError_t error = has_code(kernel, CompiledForMma{}, &compiled);
  if (error == cudaSuccess && compiled) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shared_bytes));
  }
  const bool none = error == cudaSuccess ? !compiled : cannot_run(error);
  return none ? cudaErrorNotSupported : error;
}

// The factors: x [rows, inputs], whose rows are row_stride elements apart, and W [columns, inputs].
struct MmaFactors {
  const void *x, *w;
  int64_t rows, row_stride;
  int columns, inputs;
};

// [128 rows of x] x [128 rows of W]. The eight warps of a block form a grid of 4 x 2, and each
// computes 32 x 64 results. With three stages in shared memory, two blocks fit on a multiprocessor
// that has 100 KB.
template <class T>
struct MmaTile {
  static constexpr int kRows = 128, kThreads = 256, kStages = 3;
  static constexpr int kRowBytes = 64;                  // of each row, in a stage
  static constexpr int kDepth = kRowBytes / sizeof(T);  // inputs of a stage
  static constexpr int kWarpRows = kRows / 4, kWarpColumns = kRows / 2;
  static constexpr int kBands = kWarpRows / 16, kWords = kWarpColumns / 2;
  static constexpr int kFactorBytes = kRows * kRowBytes, kStageBytes = 2 * kFactorBytes;
  static constexpr size_t kSharedBytes = size_t{kStages} * kStageBytes;
  static constexpr int n = kWide<T>;

  // A thread's results: bands of 16 rows, with four floats for each 8 columns (store_sines_of).
  using Sums = float[kBands][kWords];

  // Eight rows with 16 bytes each are loaded from shared memory at once. To avoid bank conflicts,
  // the 16-byte pieces of a row are permuted: piece p is stored as piece p ^ (row / period % 4).
  // The eight rows are adjacent in x, so its period is 2. In W they are pairs of rows n apart,
  // because the columns of a group are permuted (kGroup).
  static constexpr int kPeriodOfX = 2, kPeriodOfW = n;
  static __device__ __forceinline__ int place(int row, int piece, int period) {
    return row * kRowBytes + (piece ^ (row / period % 4)) * 16;
  }

  // A thread's copies of a stage: 16 bytes of two rows of each factor.
  class Copies {
   public:
    __device__ __forceinline__ Copies(const MmaFactors& of, uint32_t shared, int64_t first_row,
                                      int first_column)
        : input_(threadIdx.x % 4 * n) {
      const int row = threadIdx.x / 4, piece = threadIdx.x % 4;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int64_t r = first_row + row + i * kRows / 2;
        const int64_t c = first_column + row + i * kRows / 2;
        x_[i] = r < of.rows ? static_cast<const T*>(of.x) + r * of.row_stride : nullptr;
        w_[i] = c < of.columns ? static_cast<const T*>(of.w) + c * of.inputs : nullptr;
      }
      to_x_ = shared + place(row, piece, kPeriodOfX);
      to_w_ = shared + kFactorBytes + place(row, piece, kPeriodOfW);
    }

    // Begins to copy the next stage. Zeros replace what the factors do not have.
    __device__ __forceinline__ void begin(const MmaFactors& of, int stage) {
      const uint32_t at = stage * kStageBytes;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        copy(to_x_ + at + i * kFactorBytes / 2, x_[i], of);
        copy(to_w_ + at + i * kFactorBytes / 2, w_[i], of);
      }
      ptx::commit_copies();
      input_ += kDepth;
    }

   private:
    __device__ __forceinline__ void copy(uint32_t to, const T* row, const MmaFactors& of) const {
      const bool any = row != nullptr && input_ < of.inputs;
      ptx::copy16_async(to, any ? row + input_ : of.x, any);
    }

    const T *x_[2], *w_[2];  // rows; null: the factor has no such row
    uint32_t to_x_, to_w_;
    int input_;  // of the next stage
  };

  // Multiplies the factors of one stage.
  static __device__ __forceinline__ void multiply(uint32_t stage, Sums& sums) {
    const int lane = threadIdx.x % 32;
    const int x_row = warp_row() + lane % 16;
    // The lane's row for the first 16 columns of a group of the permuted product.
    const int w_row = warp_column() + lane % 8 / 2 * n + lane / 16 * 2 + lane % 2;
#pragma unroll
    for (int k = 0; k < kRowBytes / 32; ++k) {
      const uint32_t x = stage + place(x_row, 2 * k + lane / 16, kPeriodOfX);
      const uint32_t w = stage + kFactorBytes + place(w_row, 2 * k + lane / 8 % 2, kPeriodOfW);
      uint4 a[kBands];
#pragma unroll
      for (int band = 0; band < kBands; ++band) {
        a[band] = ptx::load_matrices(x + band * 16 * kRowBytes);
      }
#pragma unroll
      for (int j = 0; j < kWords / 8; ++j) {
        // Each lane of a row has n columns of a group, and these are four of them.
        constexpr int kPairs = n / 4;
        const int row = j / kPairs * kGroup<T> + j % kPairs * 4;
        const uint4 b = ptx::load_matrices(w + row * kRowBytes);
#pragma unroll
        for (int band = 0; band < kBands; ++band) {
          const uint4& of_x = a[band];
          auto& even = reinterpret_cast<float (&)[4]>(sums[band][8 * j]);
          auto& odd = reinterpret_cast<float (&)[4]>(sums[band][8 * j + 4]);
          ptx::multiply_add<T>(even, of_x.x, of_x.y, of_x.z, of_x.w, b.x, b.y);
          ptx::multiply_add<T>(odd, of_x.x, of_x.y, of_x.z, of_x.w, b.z, b.w);
        }
      }
    }
  }

  // Adds the products of the tile with this first row and column to `sums`.
  static __device__ __forceinline__ void add_products(const MmaFactors& of, const void* memory,
                                                      int64_t first_row, int first_column,
                                                      Sums& sums) {
    const uint32_t shared = ptx::shared_address(memory);
    Copies copies(of, shared, first_row, first_column);
    for (int stage = 0; stage < kStages - 1; ++stage) copies.begin(of, stage);
    const int count = ceil_div(of.inputs, kDepth);
    int stage = 0, free = kStages - 1;
    for (int i = 0; i < count; ++i) {
      ptx::wait_copies<kStages - 2>();
      // All threads have copied this stage, and have multiplied the stage that is free now.
      __syncthreads();
      copies.begin(of, free);
      multiply(shared + stage * kStageBytes, sums);
      free = stage;
      stage = stage == kStages - 1 ? 0 : stage + 1;
    }
    ptx::wait_copies<0>();
  }

  // The warp's first row and column in the tile.
  static __device__ __forceinline__ int warp_row() { return threadIdx.x / 64 * kWarpRows; }
  static __device__ __forceinline__ int warp_column() {
    return threadIdx.x / 32 % 2 * kWarpColumns;
  }
};

}  // namespace treadle
