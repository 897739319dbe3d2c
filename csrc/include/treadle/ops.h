// treadle's ops for C++ programs with LibTorch. Same contracts as in Python; each call goes through
// the dispatcher, so autograd, autocast and the device switch work as with at::add.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <optional>
#include <tuple>

// The library hides what is not named here.
#pragma GCC visibility push(default)
namespace treadle {

// a + alpha * b, one fma. a, b [*] broadcast and promote as in at::add.
at::Tensor vector_add(const at::Tensor& a, const at::Tensor& b, const at::Scalar& alpha = 1);
at::Tensor vector_add(const at::Tensor& a, const at::Scalar& b, const at::Scalar& alpha = 1);
at::Tensor& vector_add_out(at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                           const at::Scalar& alpha = 1);
at::Tensor& vector_add_(at::Tensor& a, const at::Tensor& b, const at::Scalar& alpha = 1);
at::Tensor& vector_add_(at::Tensor& a, const at::Scalar& b, const at::Scalar& alpha = 1);

// x * factor. x [*] of any number dtype, on CPU or CUDA.
at::Tensor scale(const at::Tensor& x, const at::Scalar& factor);
at::Tensor& scale_out(at::Tensor& out, const at::Tensor& x, const at::Scalar& factor);
at::Tensor& scale_(at::Tensor& x, const at::Scalar& factor);

// sin(x). x [*] of any number dtype; integers give the default floating-point dtype.
at::Tensor sine(const at::Tensor& x);
at::Tensor& sine_out(at::Tensor& out, const at::Tensor& x);
at::Tensor& sine_(at::Tensor& x);

// grad * cos(x), which is sine's derivative. grad and x [*] of one floating-point dtype.
at::Tensor sine_backward(const at::Tensor& grad, const at::Tensor& x);

// cos(x). x [*] of any number dtype; integers give the default floating-point dtype.
at::Tensor cosine(const at::Tensor& x);
at::Tensor& cosine_out(at::Tensor& out, const at::Tensor& x);
at::Tensor& cosine_(at::Tensor& x);

// -grad * sin(x), which is cosine's derivative. grad and x [*] of one floating-point dtype.
at::Tensor cosine_backward(const at::Tensor& grad, const at::Tensor& x);

// One step of the LLTM cell: (new_h [B, H], new_cell [B, H]) from input [B, I], weights
// [3H, H+I], bias [3H] or [1, 3H] or none, old_h [B, H], old_cell [B, H] (float32 beside half
// types, or input's dtype). A leading N on every tensor: N independent cells.
std::tuple<at::Tensor, at::Tensor> lltm_cell(const at::Tensor& input, const at::Tensor& weights,
                                             const std::optional<at::Tensor>& bias,
                                             const at::Tensor& old_h, const at::Tensor& old_cell);

}  // namespace treadle
