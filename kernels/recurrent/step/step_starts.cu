// Uploads an int64 table, which has the first row of each step, through kernel parameters. So the
// upload runs in stream order and can be captured in a graph, and the host's memory may be freed
// immediately.
#include "kernels/common/launch.cuh"
#include "kernels/recurrent/launchers.h"
#include "kernels/recurrent/step/step_group.h"

namespace treadle {
namespace {

// A part of the table. It fits in the 4 KB of a kernel's parameters.
struct TablePart {
  static constexpr int kSize = 480;
  int64_t values[kSize];
};

}  // namespace

static __global__ void __launch_bounds__(kBlockSize)
    upload_int64_table(const __grid_constant__ TablePart part, int count, int64_t* to) {
  begin_kernel();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kBlockSize) to[i] = part.values[i];
}

static __global__ void set_step_base(int64_t row, int64_t product, int64_t* to) {
  begin_kernel();
  to[0] = row;
  to[1] = product;
}

cudaError_t launch_step_base(int64_t row, int64_t product, int64_t* device, cudaStream_t stream) {
  const LaunchShape shape = {1, 1, 1, 1, 0, 1, 1};
  return launch(set_step_base, shape, stream, row, product, device);
}

cudaError_t launch_upload_table(const int64_t* host, int64_t count, int64_t* device,
                                cudaStream_t stream) {
  for (int64_t first = 0; first < count; first += TablePart::kSize) {
    TablePart part = {};
    const int64_t rest = count - first;
    const int own = static_cast<int>(rest < TablePart::kSize ? rest : TablePart::kSize);
    for (int i = 0; i < own; ++i) part.values[i] = host[first + i];
    const LaunchShape shape = {1, 1, 1, kBlockSize, 0, 1, ceil_div(own, kBlockSize)};
    const cudaError_t error = launch(upload_int64_table, shape, stream, part, own, device + first);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace treadle
