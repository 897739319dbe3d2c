#include "recurrent/cuda/step_groups.h"

#include <ATen/Functions.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>

#include <utility>

#include "common/tf32.h"
#include "kernels/common/launches.h"
#include "kernels/recurrent/plan/times.h"
#include "kernels/recurrent/step/step_group.h"

namespace treadle {
namespace {

// Creating a graph takes as much host time as about twenty steps.
constexpr int64_t kLeastSteps = 64;
// If a product takes this many microseconds, the GPU needs as long for a step as the host needs to
// launch it.
constexpr double kLongProduct = 16;

bool is_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  C10_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

// A stream that nothing else uses, so that the capture contains only these launches.
class CapturedStream {
 public:
  CapturedStream() {
    C10_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    // Relaxed: CUDA calls of other threads must not invalidate the capture.
    const cudaError_t error = cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed);
    if (error != cudaSuccess) cudaStreamDestroy(stream_);
    C10_CUDA_CHECK(error);
  }
  ~CapturedStream() {
    if (graph_ == nullptr) cudaStreamEndCapture(stream_, &graph_);  // after an error
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
    cudaStreamDestroy(stream_);
  }
  CapturedStream(const CapturedStream&) = delete;
  CapturedStream& operator=(const CapturedStream&) = delete;

  cudaStream_t stream() const { return stream_; }

  cudaGraphExec_t finish() {
    C10_CUDA_CHECK(cudaStreamEndCapture(stream_, &graph_));
    cudaGraphExec_t found = nullptr;
    C10_CUDA_CHECK(cudaGraphInstantiate(&found, graph_, 0));
    return found;
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaGraph_t graph_ = nullptr;
};

}  // namespace

GroupedSteps::GroupedSteps(CellKind cell, Dtype dtype, int64_t batch, int64_t hidden,
                           const RecurrenceStep* steps, int64_t count,
                           const RecurrenceResets& resets, std::optional<bool> tf32)
    : batch(batch) {
  if (count < kLeastSteps || batch == 0 || hidden == 0 || resets.marks != nullptr) return;
  const double flop = 2.0 * static_cast<double>(batch) * static_cast<double>(hidden) *
                      static_cast<double>(hidden) * cell_info(cell).state_gates;
  if (flop / plan_times::flop_per_us(dtype, tf32.value_or(tf32_allowed())) > kLongProduct) return;
  for (int64_t s = 0; s < count; ++s) {
    if (steps[s].rows != batch) return;
  }
  any = true;
  direction = steps[1].start > steps[0].start ? 1 : -1;
}

StepGroups::StepGroups(const char* op, Dtype dtype, std::optional<bool> tf32,
                       const GroupedSteps& steps, at::Device device, cudaStream_t stream, Step step)
    : op_(op),
      dtype_(dtype),
      tf32_(tf32),
      steps_(steps),
      device_(device),
      stream_(stream),
      step_(std::move(step)),
      // If the caller is capturing a graph, the steps become part of that graph. If launches are
      // recorded, the steps run one by one.
      graphs_(!is_captured(stream) && !launches_recorded()) {
  if (graphs_) base_ = at::empty({2}, at::TensorOptions(device).dtype(at::kLong));
}

// CUDA frees a graph only after it has stopped running.
StepGroups::~StepGroups() {
  if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
}

void StepGroups::make_graph() {
  // Without this workspace, cuBLAS would allocate its own within the capture. It is as large as
  // ATen's, so that cuBLAS chooses the same algorithm.
  const auto bytes = static_cast<int64_t>(at::cuda::getChosenWorkspaceSize());
  workspace_ = at::empty({bytes}, at::TensorOptions(device_).dtype(at::kByte));
  // Relaxed: calls made here must not invalidate a capture in another thread.
  const c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
  CapturedStream side;
  const Gemm gemm(dtype_, tf32_);
  const GemmsOnStream moved(side.stream(), workspace_.mutable_data_ptr(), bytes);
  const auto* const base = static_cast<const int64_t*>(base_.const_data_ptr());
  for (int64_t i = 0; i < kGroupSteps; ++i) {
    step_(gemm, i * steps_.direction * steps_.batch, base, side.stream());
  }
  graph_ = side.finish();
}

void StepGroups::run(const RecurrenceStep* steps, int64_t count, int64_t products_row) {
  const cudaStream_t stream = stream_;
  int64_t s = 0;
  if (graphs_ && count >= kGroupSteps) {
    if (graph_ == nullptr) make_graph();
    auto* const base = base_.mutable_data_ptr<int64_t>();
    for (; s + kGroupSteps <= count; s += kGroupSteps) {
      const int64_t row = steps[s].start;
      check_launch(op_, launch_step_base(row, row - products_row, base, stream));
      C10_CUDA_CHECK(cudaGraphLaunch(graph_, stream));
    }
  }
  if (s == count) return;
  const Gemm gemm(dtype_, tf32_);
  for (; s < count; ++s) step_(gemm, steps[s].start, nullptr, stream);
}

}  // namespace treadle
