// treadle's ops for C++ programs that use LibTorch, with the same contracts as in Python. Each call
// goes through the dispatcher, so autograd, autocast and device dispatch work as in at::add.
#pragma once

#include <ATen/core/ATen_fwd.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <optional>
#include <string_view>
#include <tuple>

// The library exports only the names below.
#pragma GCC visibility push(default)
namespace treadle {

// a + alpha * b, computed with one fma. a and b have any shape [*]. They are broadcast and promoted
// as in at::add.
at::Tensor vector_add(const at::Tensor& a, const at::Tensor& b, const at::Scalar& alpha = 1);
at::Tensor vector_add(const at::Tensor& a, const at::Scalar& b, const at::Scalar& alpha = 1);
at::Tensor& vector_add_out(at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                           const at::Scalar& alpha = 1);
at::Tensor& vector_add_(at::Tensor& a, const at::Tensor& b, const at::Scalar& alpha = 1);
at::Tensor& vector_add_(at::Tensor& a, const at::Scalar& b, const at::Scalar& alpha = 1);

// x * factor. x [*] has an integer or floating-point dtype.
at::Tensor scale(const at::Tensor& x, const at::Scalar& factor);
at::Tensor& scale_out(at::Tensor& out, const at::Tensor& x, const at::Scalar& factor);
at::Tensor& scale_(at::Tensor& x, const at::Scalar& factor);

// sin(x). x [*] has an integer or floating-point dtype. For integers the result has the default
// floating-point dtype.
at::Tensor sine(const at::Tensor& x);
at::Tensor& sine_out(at::Tensor& out, const at::Tensor& x);
at::Tensor& sine_(at::Tensor& x);

// grad * cos(x), which is sine's derivative. grad and x [*] have the same floating-point dtype.
at::Tensor sine_backward(const at::Tensor& grad, const at::Tensor& x);

// cos(x). x [*] has an integer or floating-point dtype. For integers the result has the default
// floating-point dtype.
at::Tensor cosine(const at::Tensor& x);
at::Tensor& cosine_out(at::Tensor& out, const at::Tensor& x);
at::Tensor& cosine_(at::Tensor& x);

// -grad * sin(x), which is cosine's derivative. grad and x [*] have the same floating-point dtype.
at::Tensor cosine_backward(const at::Tensor& grad, const at::Tensor& x);

// x + sin(alpha x)^2 / (beta + eps). x is [N, C, ...], alpha and beta are [C] or [1]; each has an
// integer or floating-point dtype. beta defaults to alpha. Without beta and eps, the result is
// x + alpha (x sinc(alpha x))^2, where sinc(t) = sin(t) / t. This form is smooth at alpha = 0. With
// logscale, alpha and beta are given as logarithms.
at::Tensor snake(const at::Tensor& x, const at::Tensor& alpha,
                 const std::optional<at::Tensor>& beta = std::nullopt,
                 std::optional<double> eps = std::nullopt, bool logscale = false);
at::Tensor& snake_out(at::Tensor& out, const at::Tensor& x, const at::Tensor& alpha,
                      const std::optional<at::Tensor>& beta = std::nullopt,
                      std::optional<double> eps = std::nullopt, bool logscale = false);
at::Tensor& snake_(at::Tensor& x, const at::Tensor& alpha,
                   const std::optional<at::Tensor>& beta = std::nullopt,
                   std::optional<double> eps = std::nullopt, bool logscale = false);

// One step of the LLTM cell, for B rows, I input features and H hidden units. Returns new_h and
// new_cell [B, H]. input is [B, I], weights [3H, H+I], bias [3H] or [1, 3H] or none, old_h and
// old_cell [B, H]. old_cell has input's dtype, or float32 if input is float16 or bfloat16. If every
// tensor has a leading dimension N, the op computes N independent cells.
std::tuple<at::Tensor, at::Tensor> lltm_cell(const at::Tensor& input, const at::Tensor& weights,
                                             const std::optional<at::Tensor>& bias,
                                             const at::Tensor& old_h, const at::Tensor& old_cell);

// sin(omega (input weight^T + bias)) [..., O]: a layer of a SIREN. input [..., I], weight [O, I]
// and bias [O] or none have the same floating-point dtype.
at::Tensor sine_linear(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, double omega);

// Propagates a jet [P, ..., I] through sine_linear; returns [P, ..., O]. The P parts of a jet are
// the value, its derivatives with respect to each of `coordinates` coordinates, and the second
// derivatives that `second` selects: none, laplacian (their sum) or hessian_diagonal (one per
// coordinate).
at::Tensor sine_linear_jet(const at::Tensor& jet, const at::Tensor& weight,
                           const std::optional<at::Tensor>& bias, double omega, int64_t coordinates,
                           std::string_view second = "none");

// Layers of LLTM cells over a sequence. Sizes: T steps, B rows, I input features, H hidden units, L
// layers, D directions. Returns output [T, B, D*H], and h_n and c_n [L*D, B, H].
//   input      [T, B, I], or [B, T, I] if batch_first
//   hx         {h0, c0}, each [L*D, B, H]
//   params     in the order of at::lstm: for each layer and each of its D directions weight_ih
//              [3H, I] (after the first layer [3H, D*H]), weight_hh [3H, H] and, if has_biases,
//              bias [3H]
//   recompute  saves less for the backward pass, which then recomputes the gates
//   reset      bool [T, B], or [B, T] if batch_first: where it is true, the state before that step
//              is replaced with reset_hx, or with zeros if reset_hx is empty
//   reset_hx   in the shapes of hx, or [L*D, T, B, H] for one state per step
//   lengths    [B], int64 or int32 on input's device: the number of steps of each row, from 0 to T
std::tuple<at::Tensor, at::Tensor, at::Tensor> lltm(
    const at::Tensor& input, at::TensorList hx, at::TensorList params, bool has_biases,
    int64_t num_layers, double dropout, bool train, bool bidirectional, bool batch_first,
    bool recompute = false, const std::optional<at::Tensor>& reset = std::nullopt,
    at::TensorList reset_hx = {}, const std::optional<at::Tensor>& lengths = std::nullopt);

// The same function for a packed batch: data is [S, I], and batch_sizes is [T], int64, on the CPU,
// with the sum S. output is [S, D*H]. reset is [S], and one reset_hx per step is [L*D, S, H].
std::tuple<at::Tensor, at::Tensor, at::Tensor> lltm(
    const at::Tensor& data, const at::Tensor& batch_sizes, at::TensorList hx, at::TensorList params,
    bool has_biases, int64_t num_layers, double dropout, bool train, bool bidirectional,
    bool recompute = false, const std::optional<at::Tensor>& reset = std::nullopt,
    at::TensorList reset_hx = {});

// The same functions for LSTM and GRU cells, with the arguments of at::lstm and at::gru. Weights
// are [4H, ...] or [3H, ...]; if has_biases, params has bias_ih and bias_hh in place of bias. For
// GRU, hx is h0 and there is no c_n.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm(
    const at::Tensor& input, at::TensorList hx, at::TensorList params, bool has_biases,
    int64_t num_layers, double dropout, bool train, bool bidirectional, bool batch_first,
    bool recompute = false, const std::optional<at::Tensor>& reset = std::nullopt,
    at::TensorList reset_hx = {}, const std::optional<at::Tensor>& lengths = std::nullopt);
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm(
    const at::Tensor& data, const at::Tensor& batch_sizes, at::TensorList hx, at::TensorList params,
    bool has_biases, int64_t num_layers, double dropout, bool train, bool bidirectional,
    bool recompute = false, const std::optional<at::Tensor>& reset = std::nullopt,
    at::TensorList reset_hx = {});
std::tuple<at::Tensor, at::Tensor> gru(const at::Tensor& input, const at::Tensor& hx,
                                       at::TensorList params, bool has_biases, int64_t num_layers,
                                       double dropout, bool train, bool bidirectional,
                                       bool batch_first, bool recompute = false,
                                       const std::optional<at::Tensor>& reset = std::nullopt,
                                       const std::optional<at::Tensor>& reset_hx = std::nullopt,
                                       const std::optional<at::Tensor>& lengths = std::nullopt);
std::tuple<at::Tensor, at::Tensor> gru(const at::Tensor& data, const at::Tensor& batch_sizes,
                                       const at::Tensor& hx, at::TensorList params, bool has_biases,
                                       int64_t num_layers, double dropout, bool train,
                                       bool bidirectional, bool recompute = false,
                                       const std::optional<at::Tensor>& reset = std::nullopt,
                                       const std::optional<at::Tensor>& reset_hx = std::nullopt);

// The same functions for RNN cells, whose weights are [H, ...]. rnn_tanh and rnn_relu differ in the
// nonlinearity.
std::tuple<at::Tensor, at::Tensor> rnn_tanh(
    const at::Tensor& input, const at::Tensor& hx, at::TensorList params, bool has_biases,
    int64_t num_layers, double dropout, bool train, bool bidirectional, bool batch_first,
    bool recompute = false, const std::optional<at::Tensor>& reset = std::nullopt,
    const std::optional<at::Tensor>& reset_hx = std::nullopt,
    const std::optional<at::Tensor>& lengths = std::nullopt);
std::tuple<at::Tensor, at::Tensor> rnn_tanh(
    const at::Tensor& data, const at::Tensor& batch_sizes, const at::Tensor& hx,
    at::TensorList params, bool has_biases, int64_t num_layers, double dropout, bool train,
    bool bidirectional, bool recompute = false,
    const std::optional<at::Tensor>& reset = std::nullopt,
    const std::optional<at::Tensor>& reset_hx = std::nullopt);
std::tuple<at::Tensor, at::Tensor> rnn_relu(
    const at::Tensor& input, const at::Tensor& hx, at::TensorList params, bool has_biases,
    int64_t num_layers, double dropout, bool train, bool bidirectional, bool batch_first,
    bool recompute = false, const std::optional<at::Tensor>& reset = std::nullopt,
    const std::optional<at::Tensor>& reset_hx = std::nullopt,
    const std::optional<at::Tensor>& lengths = std::nullopt);
std::tuple<at::Tensor, at::Tensor> rnn_relu(
    const at::Tensor& data, const at::Tensor& batch_sizes, const at::Tensor& hx,
    at::TensorList params, bool has_biases, int64_t num_layers, double dropout, bool train,
    bool bidirectional, bool recompute = false,
    const std::optional<at::Tensor>& reset = std::nullopt,
    const std::optional<at::Tensor>& reset_hx = std::nullopt);

// Variants of lltm and lstm that also return the cell states of the last layer: c of every step,
// [T, B, D*H] ([B, T, D*H] if batch_first) or [S, D*H], in the dtype of c_n.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> lltm_with_cells(
    const at::Tensor& input, at::TensorList hx, at::TensorList params, bool has_biases,
    int64_t num_layers, double dropout, bool train, bool bidirectional, bool batch_first,
    bool recompute = false, const std::optional<at::Tensor>& reset = std::nullopt,
    at::TensorList reset_hx = {}, const std::optional<at::Tensor>& lengths = std::nullopt);
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> lltm_with_cells(
    const at::Tensor& data, const at::Tensor& batch_sizes, at::TensorList hx, at::TensorList params,
    bool has_biases, int64_t num_layers, double dropout, bool train, bool bidirectional,
    bool recompute = false, const std::optional<at::Tensor>& reset = std::nullopt,
    at::TensorList reset_hx = {});
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> lstm_with_cells(
    const at::Tensor& input, at::TensorList hx, at::TensorList params, bool has_biases,
    int64_t num_layers, double dropout, bool train, bool bidirectional, bool batch_first,
    bool recompute = false, const std::optional<at::Tensor>& reset = std::nullopt,
    at::TensorList reset_hx = {}, const std::optional<at::Tensor>& lengths = std::nullopt);
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> lstm_with_cells(
    const at::Tensor& data, const at::Tensor& batch_sizes, at::TensorList hx, at::TensorList params,
    bool has_biases, int64_t num_layers, double dropout, bool train, bool bidirectional,
    bool recompute = false, const std::optional<at::Tensor>& reset = std::nullopt,
    at::TensorList reset_hx = {});

}  // namespace treadle
