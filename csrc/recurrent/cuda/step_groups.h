// A StepGraph is a CUDA graph of several steps of algorithm "step". If the work does not fill the
// GPU, the host takes longer to launch a GEMM and a kernel than the GPU takes to run them. So
// several steps are captured once per call, and the graph is launched repeatedly, each time in a
// few microseconds of host time. The graph reads its position in the sequence from memory.
#pragma once

#include <functional>

#include "common/cuda/gemm.h"
#include "common/cuda/launch.h"
#include "kernels/recurrent/step_args.h"
#include "recurrent/run/backend.h"

namespace treadle {

// A view as an operand of a product. It keeps its strides even for a single row or column, because
// cuBLAS's choice of an algorithm depends on them.
inline Matrix matrix_of(const MatrixView& view, int64_t rows, int64_t columns,
                        int64_t element_size) {
  return {static_cast<char*>(const_cast<void*>(view.data)),
          rows,
          columns,
          view.row_stride,
          view.column_stride,
          element_size};
}

// The number of steps in a StepGraph.
inline constexpr int64_t kGroupSteps = 8;

// Whether a sequence has enough short steps for a graph to save time. This depends only on sizes,
// so that a call that is being captured gives the same bits as any other.
struct GroupedSteps {
  bool any = false;
  int64_t batch = 0;
  int64_t direction = 1;  // -1 if the rows of later steps come first in memory

  GroupedSteps(CellKind cell, Dtype dtype, int64_t batch, int64_t hidden,
               const RecurrenceStep* steps, int64_t count, const RecurrenceResets& resets,
               std::optional<bool> tf32);
};

// Runs `step(gemm, first_row, base, stream)` for each step passed to run(), either directly or as
// part of a graph. In a graph, `first_row` is counted from base[0], and the rows of the input
// products from base[1]. An object is used for one call and owns the graph.
class StepGroups {
 public:
  // A function that launches one step. It may throw.
  using Step = std::function<void(const Gemm& gemm, int64_t first_row, const int64_t* base,
                                  cudaStream_t stream)>;

  StepGroups(const char* op, Dtype dtype, std::optional<bool> tf32, const GroupedSteps& steps,
             at::Device device, cudaStream_t stream, Step step);
  ~StepGroups();
  StepGroups(const StepGroups&) = delete;
  StepGroups& operator=(const StepGroups&) = delete;

  // `products_row`: the row of the sequence [S, ...] with which the input's products begin.
  void run(const RecurrenceStep* steps, int64_t count, int64_t products_row);

 private:
  const char* op_;
  Dtype dtype_;
  std::optional<bool> tf32_;
  GroupedSteps steps_;
  at::Device device_;
  cudaStream_t stream_;
  Step step_;
  bool graphs_;
  at::Tensor base_, workspace_;
  cudaGraphExec_t graph_ = nullptr;

  void make_graph();
};

// Runs all steps of a direction. The first step reads first_h in place of args.h, unless first_h is
// null.
void run_grouped_forward(const char* op, const RecurrenceForward& args, const GroupedSteps& steps,
                         const at::Tensor& input, const at::Tensor& weight_ih,
                         const at::Tensor& weight_hh, const RecurrencePlan& plan,
                         const void* first_h, std::optional<bool> tf32, cudaStream_t stream);

// `weight` is W_hh, contiguous and in the order of the gates.
void run_grouped_backward(const char* op, const RecurrenceBackward& args, const GroupedSteps& steps,
                          const at::Tensor& weight, std::optional<bool> tf32, cudaStream_t stream);

}  // namespace treadle
