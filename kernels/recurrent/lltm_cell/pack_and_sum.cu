// Kernels that run before and after the LLTM cell's matrix products. lltm_pack packs x = [old_h,
// input]. lltm_bias_grad computes the bias gradient, the sum of grad_gates over the rows.
#include "kernels/common/column_sum.cuh"
#include "kernels/common/convert.cuh"
#include "kernels/common/fast_divide.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/recurrent/lltm_cell/launchers.h"

namespace treadle {
namespace {

// Each thread copies one word_t of x: an element, or 16 bytes of elements.
template <class word_t>
__global__ void __launch_bounds__(kBlockSize)
    lltm_pack(const __grid_constant__ LltmPack args, FastDivide by_columns) {
  begin_kernel();
  const int64_t columns = args.hidden + args.features, words = args.problems * args.rows * columns;
  const int64_t at = int64_t{blockIdx.x} * kBlockSize + threadIdx.x;
  if (at >= words) return;
  const bool narrow = words < (int64_t{1} << 31);
  const int64_t flat = narrow ? by_columns(static_cast<uint32_t>(at)) : at / columns;
  const int64_t column = at - flat * columns;
  const int64_t problem = args.problems == 1 ? 0 : flat / args.rows,
                row = flat - problem * args.rows;
  const bool is_h = column < args.hidden;
  const LltmView& view = is_h ? args.old_h : args.input;
  static_cast<word_t*>(args.x)[at] = static_cast<const word_t*>(
      view.data)[problem * view.problem_stride + row * view.row_stride +
                 (is_h ? column : column - args.hidden) * view.column_stride];
}

constexpr int kSumRows = kBlockSize / kSumColumns;  // rows that a block adds at a time

template <class T>
__global__ void __launch_bounds__(kBlockSize)
    lltm_bias_grad(const __grid_constant__ LltmBiasGrad args) {
  begin_kernel();
  const int64_t blocks_per_problem = ceil_div(args.columns, int64_t{kSumColumns});
  const int64_t problem = blockIdx.x / blocks_per_problem;
  const int64_t column =
      (blockIdx.x - problem * blocks_per_problem) * kSumColumns + threadIdx.x % kSumColumns;
  const bool real = column < args.columns;
  const T* const first =
      static_cast<const T*>(args.grad_gates) + problem * args.rows * args.columns + column;
  const acc_t<T> sum = sum_of_column<kSumRows>(first, real, args.rows, args.columns);
  if (threadIdx.x >= kSumColumns || !real) return;
  static_cast<T*>(args.grad_bias)[problem * args.columns + column] = Narrow<T>::from(sum);
}

}  // namespace

// Whether this view's rows can be copied in 16-byte words of `elements` elements.
static bool in_words(const LltmView& view, int64_t columns, int64_t elements) {
  return view.column_stride == 1 && columns % elements == 0 && view.row_stride % elements == 0 &&
         view.problem_stride % elements == 0 && reinterpret_cast<uintptr_t>(view.data) % 16 == 0;
}

cudaError_t launch_lltm_pack(const LltmPack& elementwise, cudaStream_t stream) {
  LltmPack args = elementwise;
  const int64_t word = 16 / args.element_size;
  if (in_words(args.old_h, args.hidden, word) && in_words(args.input, args.features, word)) {
    args.element_size = 16;
    args.hidden /= word;
    args.features /= word;
    for (LltmView* view : {&args.old_h, &args.input}) {
      view->row_stride /= word;
      view->problem_stride /= word;
    }
  }
  const int64_t words = args.problems * args.rows * (args.hidden + args.features);
  const auto grid = static_cast<unsigned>(ceil_div(words, int64_t{kBlockSize}));
  const int width = args.element_size / elementwise.element_size;
  const LaunchShape shape = {grid, 1, 1, kBlockSize, 0, width, width};
  const FastDivide by_columns(static_cast<uint32_t>(args.hidden + args.features));
  switch (args.element_size) {
    case 2:
      return launch(lltm_pack<uint16_t>, shape, stream, args, by_columns);
    case 4:
      return launch(lltm_pack<uint32_t>, shape, stream, args, by_columns);
    case 8:
      return launch(lltm_pack<uint64_t>, shape, stream, args, by_columns);
    default:
      return launch(lltm_pack<uint4>, shape, stream, args, by_columns);
  }
}

cudaError_t launch_lltm_bias_grad(const LltmBiasGrad& args, cudaStream_t stream) {
  const auto grid =
      static_cast<unsigned>(args.problems * ceil_div(args.columns, int64_t{kSumColumns}));
  const int per_thread = static_cast<int>(ceil_div(args.rows, int64_t{kSumRows}));
  const LaunchShape shape = {grid, 1, 1, kBlockSize, 0, 1, per_thread};
  return visit_floating(args.dtype, [&](auto type) {
    return launch(lltm_bias_grad<typename decltype(type)::type>, shape, stream, args);
  });
}

}  // namespace treadle
