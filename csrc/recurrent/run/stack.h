// A stack: the layers of a call without derivatives, transforms or modes. They run below the
// dispatcher, where a layer only launches its kernels. Each layer writes its last states directly
// to the call's h_n and c_n, and initial states that are zeros need not be in memory.
#pragma once

#include "recurrent/layer/layer.h"

namespace treadle {

// The h0 and c0 [D, B, H] that all layers share if the call passes no states. Kernels that accept
// null for zeros do not read them; before any other kernel runs, the zeros are written once.
class ZeroStates {
 public:
  ZeroStates(at::IntArrayRef sizes, const at::TensorOptions& of_h, at::IntArrayRef sizes_of_c,
             const at::TensorOptions& of_c)
      : h(at::empty(sizes, of_h)),
        c(of_c.dtype() == of_h.dtype() && sizes == sizes_of_c ? h : at::empty(sizes_of_c, of_c)) {}

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
  ZeroStates* zeros = nullptr;  // contains h0 and c0; null if the call passes states
};

// Runs a layer whose arguments are on one device; returns its output.
using LayerInference = Tensor (*)(const LayerArguments&, const StackStates&);

// The function for a device. It is null if this build has no kernels for the device; the dispatcher
// then raises the error.
LayerInference& layer_inference(c10::DeviceType device);

}  // namespace treadle
