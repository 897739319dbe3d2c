// Kernels that run before or after a recurrent layer's steps. pad_rows pads rows with zeros to
// whole 16-byte chunks. previous_h copies h before each step, and bias_sums computes the gradients
// of the biases. Both run after the steps of the backward pass, between matrix products.
#include "kernels/common/column_sum.cuh"
#include "kernels/common/convert.cuh"
#include "kernels/common/fast_divide.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/recurrent/launchers.h"

namespace treadle {
namespace {

// Each thread copies one word_t: an element, or 16 bytes of elements.
template <class word_t>
__global__ void __launch_bounds__(kBlockSize)
    previous_h(const __grid_constant__ PreviousH args, FastDivide by_hidden) {
  begin_kernel();
  const int64_t at = int64_t{blockIdx.x} * kBlockSize + threadIdx.x;
  if (at >= args.rows * args.hidden) return;
  const bool narrow = args.rows * args.hidden < (int64_t{1} << 31);
  const int64_t row = narrow ? by_hidden(static_cast<uint32_t>(at)) : at / args.hidden;
  const int64_t column = at - row * args.hidden;
  // Reads the row's h0, or its output of the previous step.
  const int64_t first = args.direction == 0 ? row : row - (args.rows - args.batch);
  const int64_t before = args.direction == 0 ? row - args.batch : row + args.batch;
  const bool begins = args.direction == 0 ? row < args.batch : first >= 0;
  const auto* from = begins ? static_cast<const word_t*>(args.h0) + first * args.hidden
                            : static_cast<const word_t*>(args.output) + before * args.output_row;
  // A row resets before the step at t if it has a mark at t or, in direction 1, at t + 1.
  const int64_t marked = args.direction == 0 ? row : before;
  const bool anew = args.marks != nullptr && marked < args.rows && args.marks[marked];
  static_cast<word_t*>(args.to)[at] = anew ? word_t{} : from[column];
}

template <class word_t>
__global__ void __launch_bounds__(kBlockSize)
    pad_rows(const __grid_constant__ PadRows args, FastDivide by_width) {
  begin_kernel();
  const int64_t at = int64_t{blockIdx.x} * kBlockSize + threadIdx.x;
  if (at >= args.rows * args.width) return;
  const bool narrow = args.rows * args.width < (int64_t{1} << 31);
  const int64_t row = narrow ? by_width(static_cast<uint32_t>(at)) : at / args.width;
  const int64_t column = at - row * args.width;
  const auto* from = static_cast<const word_t*>(args.from) + row * args.columns;
  static_cast<word_t*>(args.to)[at] = column < args.columns ? from[column] : word_t{};
}

constexpr int kSumRows = 32;  // rows that a block adds at a time

template <class T>
__device__ __forceinline__ void store_sum(const BiasTarget& target, int64_t column, acc_t<T> sum) {
  int64_t place = column - target.first;
  if (target.data == nullptr || place < 0 || place >= target.count) return;
  place -= target.shift;
  if (place < 0) place += target.count;
  static_cast<T*>(target.data)[place] = Narrow<T>::from(sum);
}

template <class T>
__global__ void __launch_bounds__(kSumColumns* kSumRows)
    bias_sums(const __grid_constant__ BiasSums args) {
  begin_kernel();
  const int64_t column = int64_t{blockIdx.x} * kSumColumns + threadIdx.x % kSumColumns;
  const bool real = column < args.columns;
  const acc_t<T> sum = sum_of_column<kSumRows>(static_cast<const T*>(args.grad_gates) + column,
                                               real, args.rows, args.columns);
  if (threadIdx.x >= kSumColumns || !real) return;
  store_sum<T>(args.targets[0], column, sum);
  store_sum<T>(args.targets[1], column, sum);
}

bool in_words(const void* data, int64_t stride, int64_t elements) {
  return stride % elements == 0 && reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

}  // namespace

cudaError_t launch_previous_h(const PreviousH& elementwise, cudaStream_t stream) {
  PreviousH args = elementwise;
  const int64_t word = 16 / args.element_size;
  if (in_words(args.h0, args.hidden, word) && in_words(args.output, args.output_row, word) &&
      in_words(args.to, args.hidden, word)) {
    args.element_size = 16;
    args.hidden /= word;
    args.output_row /= word;
  }
  const int64_t words = args.rows * args.hidden;
  if (words == 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>(ceil_div(words, int64_t{kBlockSize}));
  const int width = args.element_size / elementwise.element_size;
  const LaunchShape shape = {grid, 1, 1, kBlockSize, 0, width, width};
  const FastDivide by_hidden(static_cast<uint32_t>(args.hidden));
  switch (args.element_size) {
    case 2:
      return launch(previous_h<uint16_t>, shape, stream, args, by_hidden);
    case 4:
      return launch(previous_h<uint32_t>, shape, stream, args, by_hidden);
    case 8:
      return launch(previous_h<uint64_t>, shape, stream, args, by_hidden);
    default:
      return launch(previous_h<uint4>, shape, stream, args, by_hidden);
  }
}

cudaError_t launch_pad_rows(const PadRows& args, cudaStream_t stream) {
  const int64_t elements = args.rows * args.width;
  if (elements == 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>(ceil_div(elements, int64_t{kBlockSize}));
  const LaunchShape shape = {grid, 1, 1, kBlockSize, 0, 1, 1};
  const FastDivide by_width(static_cast<uint32_t>(args.width));
  switch (args.element_size) {
    case 2:
      return launch(pad_rows<uint16_t>, shape, stream, args, by_width);
    case 4:
      return launch(pad_rows<uint32_t>, shape, stream, args, by_width);
    default:
      return launch(pad_rows<uint64_t>, shape, stream, args, by_width);
  }
}

cudaError_t launch_bias_sums(const BiasSums& args, cudaStream_t stream) {
  if (args.columns == 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>(ceil_div(args.columns, int64_t{kSumColumns}));
  const int per_thread = static_cast<int>(ceil_div(args.rows, int64_t{kSumRows}));
  const LaunchShape shape = {grid, 1, 1, kSumColumns * kSumRows, 0, 1, per_thread};
  return visit_floating(args.dtype, [&](auto type) {
    return launch(bias_sums<typename decltype(type)::type>, shape, stream, args);
  });
}

}  // namespace treadle
