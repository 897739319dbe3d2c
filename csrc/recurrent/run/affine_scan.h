// affine_scan: result[t] = keep[t] * result[t - 1] + add[t], the recurrence of a cell's state, in
// one pass over T steps. `start` is the result before the first step. With `reverse`, the pass runs
// backward in time. keep, add and the result are [T, B, H], start is [B, H], and all are float32 or
// all float64. Where reset, bool [T, B, 1], is true, the result is add[t]: neither a value of
// result[t - 1] (including NaN and inf) nor a derivative passes through. Recurrent layers call this
// op. Its derivative is another affine_scan.
#pragma once

#include "common/tensors.h"
#include "kernels/recurrent/scan/affine_scan.h"

namespace treadle {

using AffineScanSignature = Tensor(const Tensor& keep, const Tensor& add, const Tensor& start,
                                   const OptionalTensor& reset, bool reverse);

// An undefined `reset` means no resets.
Tensor affine_scan(const Tensor& keep, const Tensor& add, const Tensor& start, const Tensor& reset,
                   bool reverse);

struct AffineScanBackend {
  void (*run)(const AffineScan& args, at::Device device);
};

Tensor affine_scan_kernel(const AffineScanBackend& backend, const Tensor& keep, const Tensor& add,
                          const Tensor& start, const OptionalTensor& reset, bool reverse);

}  // namespace treadle
