// How a layer's Nodes save its output. Derivatives in float32 read the output, but in-place code
// (x = layer(x); x *= factor) may overwrite it. A SavedVariable would then raise. Instead, the Node
// gets an undefined tensor and recomputes the output from the arguments, which it saves anyway.
#pragma once

#include "sine_linear/layer.h"

namespace treadle {

// An entry of a Node's list of saved values. kOutput: the output was returned by the Node's own op.
template <bool kOutput>
struct LayerOutput {};

class SavedLayerOutput : public SavedVariable {
 public:
  SavedLayerOutput() = default;
  SavedLayerOutput(const Tensor& t, bool is_output) : SavedVariable(t, is_output) {
    if (!t.defined()) return;
    counter_ = torch::autograd::impl::version_counter(t);
    version_ = counter_.current_version();
  }

  bool written_over() const { return counter_.enabled() && counter_.current_version() != version_; }

  // Compiled autograd unpacks every SavedVariable that it collects, and an overwritten one raises.
  void forget_if_written_over() {
    if (written_over()) static_cast<SavedVariable&>(*this) = SavedVariable();
  }

 private:
  c10::VariableVersion counter_;  // shared with the tensor
  uint32_t version_ = 0;
};

template <bool kOutput>
struct Slot<LayerOutput<kOutput>> {
  using Kept = SavedLayerOutput;
  using Value = Tensor;
  static Kept keep(const Tensor& v) { return SavedLayerOutput(v, kOutput); }
  static Tensor get(const Kept& v, Node& n) {
    if (v.written_over()) return Tensor();
    if constexpr (kOutput) return v.unpack(n.getptr());
    return v.unpack();
  }
  static void collect(ca::CompiledNodeArgs& args, const Kept& v) {
    const_cast<Kept&>(v).forget_if_written_over();
    args.collect(v, kOutput);
  }
};

namespace sine_layer {

// Recomputes an overwritten output together with its phase.
inline void make_again(const Tensor& input, const Tensor& weight, const Tensor& bias,
                       Tensor& output, Tensor& phase, double omega) {
  if (output.defined() || !reads_output(input.scalar_type())) return;
  // Autocast must not change the dtype of the recomputed output.
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
  std::tie(output, phase) = forward_op().call(input, weight, optional(bias), omega);
}

}  // namespace sine_layer
}  // namespace treadle
