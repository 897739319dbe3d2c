// Layers of a call without derivatives, transforms or modes, below the dispatcher: nothing but
// their kernels is launched. Each leaves its last states where the results of all layers lie, and
// zeros to begin with need not be in memory.
#pragma once

#include "recurrent/layer/layer.h"

namespace treadle {

// The h0 and c0 [D, B, H] of every layer of a call that has none. Kernels that take null for zeros
// never read them; for others they are written once.
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

// What a layer of a stack has beside its arguments.
struct StackStates {
  Tensor h_n, c_n;              // [D, B, H] contiguous, to be written; undefined: not needed
  ZeroStates* zeros = nullptr;  // its h0 and c0 are these; null: they hold values
};

// Runs a layer whose arguments are on one device; returns its output.
using LayerInference = Tensor (*)(const LayerArguments&, const StackStates&);

// Null where this build has none for the device: then the dispatcher knows what to say.
LayerInference& layer_inference(c10::DeviceType device);

}  // namespace treadle
