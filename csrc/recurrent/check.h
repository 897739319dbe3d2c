// Checks of lltm, lltm_layer and lltm_layer_backward, on symbolic sizes.
#pragma once

#include "check.h"
#include "lltm_layer.h"

namespace treadle {

void check_lltm_layer(const char* op, const Tensor& input, const OptionalTensor& batch_sizes,
                      const Tensor& h0, const Tensor& c0, const Tensor& weight_ih,
                      const Tensor& weight_hh, const OptionalTensor& bias);

void check_lltm_layer_backward(const OptionalTensor& grad_output, const OptionalTensor& grad_h_n,
                               const OptionalTensor& grad_c_n, const Tensor& input,
                               const OptionalTensor& batch_sizes, const Tensor& h0,
                               const Tensor& c0, const Tensor& weight_ih, const Tensor& weight_hh,
                               const OptionalTensor& bias, const Tensor& output,
                               const Tensor& gates, bool recompute);

// Of lltm's lists.
void check_lltm_lists(at::TensorList hx, at::TensorList params, bool has_biases, int64_t num_layers,
                      bool bidirectional);

// No storage of an argument resized away.
void check_layer_storages(const char* op, const Tensor& input, const Tensor& h0, const Tensor& c0,
                          const Tensor& weight_ih, const Tensor& weight_hh,
                          const OptionalTensor& bias);

// The values of batch_sizes.
void check_batch_sizes(const char* op, const Tensor& input, const Tensor& batch_sizes,
                       int64_t batch);

// Shapes as in lltm_layer.h.
c10::SymDimVector layer_output_shape(const Tensor& input, const Tensor& h0);
c10::SymDimVector layer_gates_shape(const Tensor& input, const Tensor& h0);

}  // namespace treadle
