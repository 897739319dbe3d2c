// What the tensor memory accelerator is told of a tensor, on the host.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "kernels/dtype.h"

namespace treadle {

using EncodeMap = decltype(&cuTensorMapEncodeTiled);

// Of the driver, which is not linked.
inline EncodeMap find_encode_map() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult state{};
#if CUDART_VERSION >= 12050
  const auto error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                                      cudaEnableDefault, &state);
#else
  const auto error =
      cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &state);
#endif
  const bool ok = error == cudaSuccess && state == cudaDriverEntryPointSuccess;
  return ok ? reinterpret_cast<EncodeMap>(found) : nullptr;
}

// A tensor of a half type or float as the tensor memory accelerator takes boxes from it: rows of
// 128 bytes in shared memory, swizzled, zeros for what lies outside; float is rounded to tf32.
// Strides in bytes, but for the first dimension, which is dense. False: a driver that cannot.
template <int n>
bool encode_map(CUtensorMap& map, Dtype dtype, const void* data, const cuuint64_t (&sizes)[n],
                const cuuint64_t (&strides)[n - 1], const cuuint32_t (&box)[n]) {
  static const EncodeMap run = find_encode_map();
  if (run == nullptr) return false;
  cuuint32_t ones[n];
  for (auto& one : ones) one = 1;
  const auto type = dtype == Dtype::kFloat  ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
                    : dtype == Dtype::kHalf ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                            : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  return run(&map, type, n, const_cast<void*>(data), sizes, strides, box, ones,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace treadle
