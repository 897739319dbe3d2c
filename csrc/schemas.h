// The schemas of all ops of the package.
// Ops that write into an argument do not return it, because a custom op that returns an alias
// breaks torch.compile. Autograd code calls the ops whose names contain _forward, _backward or
// _slope.
#pragma once

#include <string>

namespace treadle {

inline constexpr const char* kSchemas[] = {
    "vector_add(Tensor a, Tensor b, *, Scalar alpha=1) -> Tensor",
    // This overload precedes Scalar: torch.ops tries overloads in order, and a failed match with
    // Scalar prints the whole tensor into an error that is then discarded.
    "vector_add.out(Tensor a, Tensor b, *, Scalar alpha=1, Tensor(a!) out) -> ()",
    "vector_add.Scalar(Tensor a, Scalar b, *, Scalar alpha=1) -> Tensor",
    "vector_add_(Tensor(a!) a, Tensor b, *, Scalar alpha=1) -> ()",
    "vector_add_.Scalar(Tensor(a!) a, Scalar b, *, Scalar alpha=1) -> ()",

    "scale(Tensor x, Scalar factor) -> Tensor",
    "scale.out(Tensor x, Scalar factor, *, Tensor(a!) out) -> ()",
    "scale_(Tensor(a!) x, Scalar factor) -> ()",

    "sine(Tensor x) -> Tensor",
    "sine.out(Tensor x, *, Tensor(a!) out) -> ()",
    "sine_(Tensor(a!) x) -> ()",
    "sine_backward(Tensor grad, Tensor x) -> Tensor",

    "cosine(Tensor x) -> Tensor",
    "cosine.out(Tensor x, *, Tensor(a!) out) -> ()",
    "cosine_(Tensor(a!) x) -> ()",
    "cosine_backward(Tensor grad, Tensor x) -> Tensor",

    "snake(Tensor x, Tensor alpha, Tensor? beta=None, float? eps=None, *, bool logscale=False)"
    " -> Tensor",
    "snake.out(Tensor x, Tensor alpha, Tensor? beta=None, float? eps=None, *, bool logscale=False,"
    " Tensor(a!) out) -> ()",
    "snake_(Tensor(a!) x, Tensor alpha, Tensor? beta=None, float? eps=None, *, bool logscale=False)"
    " -> ()",
    "snake_backward(Tensor grad, Tensor x, Tensor alpha, Tensor? beta, float? eps, bool[3] mask,"
    " *, bool logscale=False) -> (Tensor grad_x, Tensor grad_alpha, Tensor grad_beta)",

    "lltm_cell(Tensor input, Tensor weights, Tensor? bias, Tensor old_h, Tensor old_cell)"
    " -> (Tensor new_h, Tensor new_cell)",
    "lltm_cell_forward(Tensor input, Tensor weights, Tensor? bias, Tensor old_h, Tensor old_cell)"
    " -> (Tensor new_h, Tensor new_cell, Tensor gates)",
    "lltm_cell_backward(Tensor? grad_h, Tensor? grad_cell, Tensor input, Tensor weights,"
    " Tensor? bias, Tensor old_h, Tensor old_cell, Tensor new_cell, Tensor gates, bool[5] mask)"
    " -> (Tensor grad_input, Tensor grad_weights, Tensor grad_bias, Tensor grad_old_h,"
    " Tensor grad_old_cell)",

    // For N layers in one call, input is [N, ..., I], weight [N, O, I] and bias [N, O].
    "sine_linear(Tensor input, Tensor weight, Tensor? bias, float omega) -> Tensor",
    "sine_linear_forward(Tensor input, Tensor weight, Tensor? bias, float omega)"
    " -> (Tensor output, Tensor phase)",
    // The result `slope` is the gradient of input weight^T + bias.
    "sine_linear_backward(Tensor grad, Tensor input, Tensor weight, Tensor? bias, Tensor? output,"
    " Tensor phase, float omega, bool[4] mask)"
    " -> (Tensor grad_input, Tensor grad_weight, Tensor grad_bias, Tensor slope)",
    // Overwrites grad with the slope. Returns grad_bias if `sums`, else an undefined tensor.
    "sine_linear_backward_(Tensor(a!) grad, Tensor input, Tensor weight, Tensor? bias,"
    " Tensor? output, Tensor phase, float omega, bool sums) -> Tensor grad_bias",
    // grad * factor * the order-th derivative of the sine with respect to input weight^T + bias.
    "sine_linear_slope(Tensor grad, Tensor? factor, Tensor input, Tensor weight, Tensor? bias,"
    " Tensor? output, Tensor phase, float omega, int order) -> Tensor",
    // VJP of sine_linear_slope with respect to grad, factor and input weight^T + bias.
    "sine_linear_slope_backward(Tensor v, Tensor grad, Tensor? factor, Tensor input, Tensor weight,"
    " Tensor? bias, Tensor? output, Tensor phase, float omega, int order, bool[3] mask)"
    " -> (Tensor by_grad, Tensor by_factor, Tensor by_sum)",

    // jet [P, ..., I]: the value, its derivatives with respect to the coordinates, and the second
    // derivatives that `second` selects: none, laplacian (their sum) or hessian_diagonal (one per
    // coordinate).
    "sine_linear_jet(Tensor jet, Tensor weight, Tensor? bias, float omega, int coordinates,"
    " str second=\"none\") -> Tensor",
    "sine_linear_jet_forward(Tensor jet, Tensor weight, Tensor? bias, float omega,"
    " int coordinates, str second=\"none\") -> (Tensor output, Tensor phase)",
    "sine_linear_jet_backward(Tensor grad, Tensor jet, Tensor weight, Tensor? bias, Tensor output,"
    " Tensor phase, float omega, int coordinates, str second, bool[3] mask)"
    " -> (Tensor grad_jet, Tensor grad_weight, Tensor grad_bias)",

    // result[t] = keep[t] * result[t - 1] + add[t] (see csrc/recurrent/run/affine_scan.h).
    "affine_scan(Tensor keep, Tensor add, Tensor start, *, Tensor? reset=None, bool reverse=False)"
    " -> Tensor",

    // One layer of a cell in D directions (1 or 2). Without batch_sizes, input is [T, B, I]. With
    // batch_sizes, [T] on the CPU, input is the data [S, I] of a packed batch. Where reset, bool
    // [T, B, 1] or [S, 1], is true, a row resets (see csrc/recurrent/layer/layer.h).
    "recurrent_layer(Tensor input, Tensor? batch_sizes, Tensor h0, Tensor c0, Tensor weight_ih,"
    " Tensor weight_hh, Tensor? bias_ih, Tensor? bias_hh, *, str cell, bool recompute=False,"
    " str algorithm='auto', Tensor? reset=None, Tensor? reset_h=None, Tensor? reset_c=None)"
    " -> (Tensor output, Tensor h_n, Tensor c_n)",
    "recurrent_layer_forward(Tensor input, Tensor? batch_sizes, Tensor h0, Tensor c0,"
    " Tensor weight_ih, Tensor weight_hh, Tensor? bias_ih, Tensor? bias_hh, *, str cell,"
    " bool recompute=False, str algorithm='auto', Tensor? reset=None, Tensor? reset_h=None,"
    " Tensor? reset_c=None) -> (Tensor output, Tensor h_n, Tensor c_n, Tensor gates)",
    "recurrent_layer_backward(Tensor? grad_output, Tensor? grad_h_n, Tensor? grad_c_n,"
    " Tensor input, Tensor? batch_sizes, Tensor h0, Tensor c0, Tensor weight_ih, Tensor weight_hh,"
    " Tensor? bias_ih, Tensor? bias_hh, Tensor output, Tensor gates, str cell, bool recompute,"
    " str algorithm, bool[9] mask, Tensor? reset=None, Tensor? reset_h=None, Tensor? reset_c=None)"
    " -> (Tensor grad_input, Tensor grad_h0, Tensor grad_c0, Tensor grad_weight_ih,"
    " Tensor grad_weight_hh, Tensor grad_bias_ih, Tensor grad_bias_hh, Tensor grad_reset_h,"
    " Tensor grad_reset_c)",
};

// Composite ops, which call other ops and work on every device.
inline constexpr const char* kCompositeSchemas[] = {
    // These ops return uninitialized tensors in the shapes of the results, for the fake kernels of
    // treadle/_torch/fakes.py. torch would refuse a Meta kernel, because batch_sizes is on the CPU.
    "recurrent_layer_forward_empty(Tensor input, Tensor? batch_sizes, Tensor h0, Tensor c0,"
    " Tensor weight_ih, Tensor weight_hh, Tensor? bias_ih, Tensor? bias_hh, *, str cell,"
    " bool recompute=False, str algorithm='auto', Tensor? reset=None, Tensor? reset_h=None,"
    " Tensor? reset_c=None) -> (Tensor output, Tensor h_n, Tensor c_n, Tensor gates)",
    "recurrent_layer_backward_empty(Tensor? grad_output, Tensor? grad_h_n, Tensor? grad_c_n,"
    " Tensor input, Tensor? batch_sizes, Tensor h0, Tensor c0, Tensor weight_ih, Tensor weight_hh,"
    " Tensor? bias_ih, Tensor? bias_hh, Tensor output, Tensor gates, str cell, bool recompute,"
    " str algorithm, bool[9] mask, Tensor? reset=None, Tensor? reset_h=None, Tensor? reset_c=None)"
    " -> (Tensor grad_input, Tensor grad_h0, Tensor grad_c0, Tensor grad_weight_ih,"
    " Tensor grad_weight_hh, Tensor grad_bias_ih, Tensor grad_bias_hh, Tensor grad_reset_h,"
    " Tensor grad_reset_c)",

    "lltm.input(Tensor input, Tensor[] hx, Tensor[] params, bool has_biases, int num_layers,"
    " float dropout, bool train, bool bidirectional, bool batch_first, *, bool recompute=False,"
    " Tensor? reset=None, Tensor[]? reset_hx=None, Tensor? lengths=None)"
    " -> (Tensor, Tensor, Tensor)",
    "lltm.data(Tensor data, Tensor batch_sizes, Tensor[] hx, Tensor[] params, bool has_biases,"
    " int num_layers, float dropout, bool train, bool bidirectional, *, bool recompute=False,"
    " Tensor? reset=None, Tensor[]? reset_hx=None) -> (Tensor, Tensor, Tensor)",
    // The overloads whose names end in _cells also return the cell states, c of every step.
    "lltm.input_cells(Tensor input, Tensor[] hx, Tensor[] params, bool has_biases, int num_layers,"
    " float dropout, bool train, bool bidirectional, bool batch_first, *, bool recompute=False,"
    " Tensor? reset=None, Tensor[]? reset_hx=None, Tensor? lengths=None)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    "lltm.data_cells(Tensor data, Tensor batch_sizes, Tensor[] hx, Tensor[] params,"
    " bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, *,"
    " bool recompute=False, Tensor? reset=None, Tensor[]? reset_hx=None)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    "lstm.input(Tensor input, Tensor[] hx, Tensor[] params, bool has_biases, int num_layers,"
    " float dropout, bool train, bool bidirectional, bool batch_first, *, bool recompute=False,"
    " Tensor? reset=None, Tensor[]? reset_hx=None, Tensor? lengths=None)"
    " -> (Tensor, Tensor, Tensor)",
    "lstm.data(Tensor data, Tensor batch_sizes, Tensor[] hx, Tensor[] params, bool has_biases,"
    " int num_layers, float dropout, bool train, bool bidirectional, *, bool recompute=False,"
    " Tensor? reset=None, Tensor[]? reset_hx=None) -> (Tensor, Tensor, Tensor)",
    "lstm.input_cells(Tensor input, Tensor[] hx, Tensor[] params, bool has_biases, int num_layers,"
    " float dropout, bool train, bool bidirectional, bool batch_first, *, bool recompute=False,"
    " Tensor? reset=None, Tensor[]? reset_hx=None, Tensor? lengths=None)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    "lstm.data_cells(Tensor data, Tensor batch_sizes, Tensor[] hx, Tensor[] params,"
    " bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, *,"
    " bool recompute=False, Tensor? reset=None, Tensor[]? reset_hx=None)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    "gru.input(Tensor input, Tensor hx, Tensor[] params, bool has_biases, int num_layers,"
    " float dropout, bool train, bool bidirectional, bool batch_first, *, bool recompute=False,"
    " Tensor? reset=None, Tensor? reset_hx=None, Tensor? lengths=None) -> (Tensor, Tensor)",
    "gru.data(Tensor data, Tensor batch_sizes, Tensor hx, Tensor[] params, bool has_biases,"
    " int num_layers, float dropout, bool train, bool bidirectional, *, bool recompute=False,"
    " Tensor? reset=None, Tensor? reset_hx=None) -> (Tensor, Tensor)",
    "rnn_tanh.input(Tensor input, Tensor hx, Tensor[] params, bool has_biases, int num_layers,"
    " float dropout, bool train, bool bidirectional, bool batch_first, *, bool recompute=False,"
    " Tensor? reset=None, Tensor? reset_hx=None, Tensor? lengths=None) -> (Tensor, Tensor)",
    "rnn_tanh.data(Tensor data, Tensor batch_sizes, Tensor hx, Tensor[] params, bool has_biases,"
    " int num_layers, float dropout, bool train, bool bidirectional, *, bool recompute=False,"
    " Tensor? reset=None, Tensor? reset_hx=None) -> (Tensor, Tensor)",
    "rnn_relu.input(Tensor input, Tensor hx, Tensor[] params, bool has_biases, int num_layers,"
    " float dropout, bool train, bool bidirectional, bool batch_first, *, bool recompute=False,"
    " Tensor? reset=None, Tensor? reset_hx=None, Tensor? lengths=None) -> (Tensor, Tensor)",
    "rnn_relu.data(Tensor data, Tensor batch_sizes, Tensor hx, Tensor[] params, bool has_biases,"
    " int num_layers, float dropout, bool train, bool bidirectional, *, bool recompute=False,"
    " Tensor? reset=None, Tensor? reset_hx=None) -> (Tensor, Tensor)",
    // Layers of any cell. hx is a list of the cell's states; an empty list means zeros.
    "recurrent_layers(Tensor input, Tensor? batch_sizes, Tensor[] hx, Tensor[] params,"
    " bool has_biases, int num_layers, float dropout, bool train, bool bidirectional,"
    " bool batch_first, *, str cell, bool recompute=False, Tensor? reset=None,"
    " Tensor[]? reset_hx=None, Tensor? lengths=None) -> Tensor[]",
    // Gives the same results as the ops above with zeros for hx, but in inference the zeros need no
    // memory. The modules call this op. With batch_sizes, input is the data of a packed batch.
    "layers_from_zeros(Tensor input, Tensor? batch_sizes, Tensor[] params, bool has_biases,"
    " int num_layers, float dropout, bool train, bool bidirectional, bool batch_first, *, str cell,"
    " bool recompute=False, Tensor? reset=None, Tensor[]? reset_hx=None, Tensor? lengths=None,"
    " bool cells=False) -> Tensor[]",
    // A step of one of torch's cells by torch's ops. On a GPU, a plain call that needs gradients of
    // the weights records a single autograd Node. c is given for lstm only. Returns the new h and,
    // for lstm, the new c. The modules call this op. Like torch.lstm_cell, it has no vmap rule.
    "cell_step(Tensor input, Tensor h, Tensor? c, Tensor weight_ih, Tensor weight_hh,"
    " Tensor? bias_ih, Tensor? bias_hh, *, str cell) -> Tensor[]",
};

// Returns "scale.out" for "scale.out(Tensor x, ...".
inline std::string schema_name(const char* schema) {
  const std::string text(schema);
  return text.substr(0, text.find('('));
}

}  // namespace treadle
