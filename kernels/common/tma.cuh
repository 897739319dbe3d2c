// TMA descriptors of tensors, encoded on the host.
#pragma once

#include "kernels/common/driver.h"
#include "kernels/common/dtype.h"

namespace treadle {

using EncodeMap = decltype(&cuTensorMapEncodeTiled);

inline EncodeMap find_encode_map() {
  return find_driver_function<EncodeMap>("cuTensorMapEncodeTiled");
}

// Encodes the descriptor of a tensor of a half type or float. Boxes in shared memory have rows of
// 128 bytes and the 128-byte swizzle. Elements outside the tensor are read as 0, and floats are
// rounded to tf32. Strides are in bytes; the first dimension is dense. Returns false if the driver
// lacks the function or rejects the arguments.
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
