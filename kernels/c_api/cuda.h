// The CUDA calls that the functions of kernels.h make. In a build without CUDA, check_index raises.
#pragma once

#include <cstdint>

#include "kernels/c_api/status.h"
#include "treadle/kernels.h"

#ifdef TREADLE_CUDA_VERSION
#include <cuda_runtime_api.h>
#endif

namespace treadle::cuda {

// Raises unless the GPU exists.
void check_index(int index);

// Raises unless kernels on the GPU can access the byte at `pointer`.
void check_pointer(const char* name, const char* field, const void* pointer, int index);

#ifdef TREADLE_CUDA_VERSION

// Raises unless the call succeeded.
void check(cudaError_t error);

inline cudaStream_t stream_of(const treadle_device& device) {
  return static_cast<cudaStream_t>(device.stream);
}

// Makes the device's GPU current during this object's lifetime. Raises if CUDA says that the stream
// belongs to another GPU.
class Guard {
 public:
  explicit Guard(const treadle_device& device);
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  int before_ = 0;
};

#endif

}  // namespace treadle::cuda
