// For calls without derivatives, transforms or modes, whose layers run below the dispatcher, where
// only their kernels are launched. Each layer writes its last states into the results of all
// layers, and initial zeros need not be in memory.
#pragma once

#include "recurrent/layer/layer.h"

namespace treadle {

// The h0 and c0 [D, B, H] of every layer if the call has no states. Kernels that accept null for
// zeros do not read them; for other kernels they are written once.
class ZeroStates {
 public:
  ZeroStates(at::IntArrayRef sizes, const at::TensorOptions& of_h, const at::TensorOptions& of_c)
      : h(at::empty(sizes, of_h)), c(of_c.dtype() == of_h.dtype() ? h : at::empty(sizes, of_c)) {}

  void write() {
    if (written_) return;
    written_ = true;
    h.zero_();
    if (!c.is_same(h)) c.zero_();
  }

  const Tensor h, c;

 private:
  bool written_ = false;
};

// What a layer of a stack gets in addition to its arguments.
struct StackStates {
  Tensor h_n, c_n;              // [D, B, H] contiguous, to be written; undefined: not needed
  ZeroStates* zeros = nullptr;  // its h0 and c0, if they are zeros; else null
};

// Runs a layer whose arguments are on one device; returns its output.
using LayerInference = Tensor (*)(const LayerArguments&, const StackStates&);

// Null if this build has none for the device. The dispatcher then gives the error.
LayerInference& layer_inference(c10::DeviceType device);

}  // namespace treadle
