// Checks of recurrent_layer and recurrent_layer_backward. Sizes may be symbolic, except in
// check_layer_data and check_layer_backward_data.
#pragma once

#include "common/check.h"
#include "recurrent/layer/layer.h"

namespace treadle {

// The op's name in error messages: recurrent_layer, or the op of several layers that calls it in
// this thread. In the threads of a backward pass or of a compiled graph it is recurrent_layer.
const char* layer_op_name();

// During its lifetime, layer_op_name() returns `op` in this thread.
class LayerCaller {
 public:
  explicit LayerCaller(const char* op);
  ~LayerCaller();
  LayerCaller(const LayerCaller&) = delete;

 private:
  const char* before_;
};

// Checks the marks of rows that reset: one bool for each step of each row. Simulators return such
// flags as floats [T, B, 1], so the error messages show how to convert them to marks.
void check_marks(const char* op, const char* letters, const Tensor& reset,
                 c10::SymIntArrayRef shape);

void check_layer(const char* op, const LayerArguments& arguments);

void check_layer_backward(const LayerOutputs& grads, const LayerArguments& arguments,
                          const Tensor& output, const Tensor& gates, bool recompute);

// Checks of memory and values, to be called after the checks above: arguments lie within their
// storages, and batch_sizes is non-increasing and has the right sum.
void check_layer_data(const char* op, const LayerArguments& arguments);
void check_layer_backward_data(const LayerOutputs& grads, const LayerArguments& arguments,
                               const Tensor& output, const Tensor& gates);

// The shapes of the results `output` and `gates` (layer.h).
c10::SymDimVector layer_output_shape(const LayerArguments& arguments);
c10::SymDimVector layer_gates_shape(const LayerArguments& arguments, bool recompute);

}  // namespace treadle
