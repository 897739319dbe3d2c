#include "kernels/c_api/cuda.h"

namespace treadle::cuda {

#ifndef TREADLE_CUDA_VERSION

void check_index(int) {
  raise(TREADLE_UNSUPPORTED,
        "device.type must be TREADLE_CPU (1) in a library built without CUDA, got TREADLE_CUDA "
        "(2)");
}

void check_pointer(const char*, const char*, const void*, int) {}

#else

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  (void)cudaGetLastError();  // clears the error, which the exception reports
  const int status = error == cudaErrorNoKernelImageForDevice ? TREADLE_UNSUPPORTED
                     : error == cudaErrorMemoryAllocation     ? TREADLE_NO_MEMORY
                                                              : TREADLE_CUDA_ERROR;
  raise(status, "CUDA failed: ", cudaGetErrorName(error), ": ", cudaGetErrorString(error));
}

void check_index(int index) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) (void)cudaGetLastError();
  if (error != cudaSuccess || count == 0) {
    raise(
        TREADLE_UNSUPPORTED,
        "device.type must be TREADLE_CPU (1) without a GPU and its driver, got TREADLE_CUDA (2): ",
        cudaGetErrorString(error));
  }
  require(index >= 0 && index < count, "device.index must be at least 0 and less than ", count,
          ", the number of GPUs, got ", index);
}

void check_pointer(const char* name, const char* field, const void* pointer, int index) {
  cudaPointerAttributes found = {};
  check(cudaPointerGetAttributes(&found, pointer));
  require(found.type != cudaMemoryTypeUnregistered, name, field, " must be memory of GPU ", index,
          ", got memory of the host");
  require(found.type != cudaMemoryTypeDevice || found.device == index, name, field,
          " must be memory of GPU ", index, ", got memory of GPU ", found.device);
}

namespace {

// Recent drivers accept a stream that belongs to a GPU other than the current one, and run kernels
// on the stream's GPU. Querying the GPU of a stream that is being captured would end the capture.
void check_stream(const treadle_device& device) {
#if CUDART_VERSION >= 12080
  const cudaStream_t stream = stream_of(device);
  // These streams belong to the current GPU.
  if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread) return;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &capture));
  if (capture != cudaStreamCaptureStatusNone) return;
  int found = 0;
  check(cudaStreamGetDevice(stream, &found));
  require(found == device.index, "device.stream must be a stream of GPU ", device.index,
          ", got one of GPU ", found);
#endif
}

}  // namespace

Guard::Guard(const treadle_device& device) {
  check(cudaGetDevice(&before_));
  check_stream(device);
  check(cudaSetDevice(device.index));
}

Guard::~Guard() { (void)cudaSetDevice(before_); }

#endif

}  // namespace treadle::cuda
