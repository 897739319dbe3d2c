#include "elementwise/cuda/loop.h"

namespace treadle {

ElementwiseArgs elementwise_args(const ElementwiseLoop& loop) {
  ElementwiseArgs args;  // sizes and strides stay unset: a dense launch does not read them
  args.operands = loop.operands;
  args.ndim = 1;
  args.numel = loop.numel();
  args.dense = true;
  args.compute = to_dtype(loop.compute);
  for (int i = 0; i < loop.operands; ++i) {
    args.dtypes[i] = args.compute;
    args.data[i] = loop.data[i];
  }
  return args;
}

ElementwiseArgs elementwise_args(const char* op, const at::TensorIteratorBase& iter,
                                 Dtype compute) {
  ElementwiseArgs args = {};
  args.operands = iter.ntensors();
  args.ndim = iter.ndim();
  args.numel = iter.numel();
  args.compute = compute;
  TORCH_CHECK(args.ndim <= kMaxDims, op, ": tensors must have at most ", kMaxDims,
              " dimensions that cannot be merged, got ", args.ndim);
  args.dense = iter.is_contiguous();
  for (int i = 0; i < args.operands; ++i) {
    args.dtypes[i] = to_dtype(iter.dtype(i));
    args.data[i] = static_cast<char*>(iter.data_ptr(i));
    args.dense = args.dense && args.dtypes[i] == compute;
    for (int d = 0; d < args.ndim; ++d) args.strides[i][d] = iter.strides(i)[d];
  }
  for (int d = 0; d < args.ndim; ++d) args.sizes[d] = iter.shape()[d];
  return args;
}

}  // namespace treadle
