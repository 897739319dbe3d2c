// Checks of recurrent_layer and recurrent_layer_backward. Sizes may be symbolic, except in
// check_layer_data.
#pragma once

#include "common/check.h"
#include "recurrent/layer/layer.h"

namespace treadle {

// The name of the op in error texts: recurrent_layer, or the op of several layers that calls it in
// this thread. The threads of a backward pass or of a compiled graph have no such caller.
const char* layer_op_name();

// While it lives, layer_op_name() of this thread is `op`.
class LayerCaller {
 public:
  explicit LayerCaller(const char* op);
  ~LayerCaller();
  LayerCaller(const LayerCaller&) = delete;

 private:
  const char* before_;
};

// The marks of rows that reset: bool, one for each step of each row. Simulators give floats [T, B,
// 1], so the errors name the calls that convert them to marks.
void check_marks(const char* op, const char* letters, const Tensor& reset,
                 c10::SymIntArrayRef shape);

void check_layer(const char* op, const LayerArguments& arguments);

void check_layer_backward(const LayerOutputs& grads, const LayerArguments& arguments,
                          const Tensor& output, const Tensor& gates, bool recompute);

// Memory checks, after the checks above: arguments are inside their storages, and batch_sizes do
// not increase and have the right sum.
void check_layer_data(const char* op, const LayerArguments& arguments);
void check_layer_backward_data(const LayerOutputs& grads, const LayerArguments& arguments,
                               const Tensor& output, const Tensor& gates);

// Shapes as in layer.h.
c10::SymDimVector layer_output_shape(const LayerArguments& arguments);
c10::SymDimVector layer_gates_shape(const LayerArguments& arguments, bool recompute);

}  // namespace treadle
