// sine_linear: what its CPU and CUDA kernels share. A backend may bring a matrix product, too; else
// it is ATen's.
#pragma once

#include <torch/library.h>

#include <array>
#include <tuple>

#include "dispatch.h"
#include "kernels/sine_linear_args.h"

namespace treadle {

struct SineLinearBackend {
  Tensor (*operand)(const Tensor& t);  // as `product` takes it
  // out [R, O] of acc_t = x [R, I] weight [O, I]^T
  void (*product)(const Tensor& out, const Tensor& x, const Tensor& weight);
  void (*forward)(const SineLinearForward& args, at::Device device);
  // The same of input and weight, both contiguous along I; false: not of these. Or null.
  bool (*whole)(const SineLinearForward& args, at::Device device);
  int64_t product_bytes;  // rows are taken together as long as their products are no more
};

struct SineLinearSlopes {
  void (*slope)(const SineLinearSlope& args, at::Device device);
  void (*slope_backward)(const SineLinearSlopeBackward& args, at::Device device);
  // A slope [R, O] and its sums [O] over the rows. Null: ATen adds up what `slope` gives.
  void (*slope_sums)(const SineLinearSlope& args, const Tensor& slope, const Tensor& sums);
  // All of sine_linear_backward but the slope, in one go; false: not of these. Or null.
  bool (*backward)(const SineLinearGradients& args, at::Device device);
};

using OutputAndPhase = std::tuple<Tensor, Tensor>;
using ThreeTensors = std::tuple<Tensor, Tensor, Tensor>;
using FourTensors = std::tuple<Tensor, Tensor, Tensor, Tensor>;

void check_sine_linear(const char* op, const Tensor& input, const Tensor& weight,
                       const OptionalTensor& bias);
void check_sine_linear_slope(const char* op, const Tensor& grad, const OptionalTensor& factor,
                             const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                             const OptionalTensor& output, const Tensor& phase, int64_t order);

void check_sine_linear_slope_backward(const Tensor& v, const Tensor& grad,
                                      const OptionalTensor& factor, const Tensor& input,
                                      const Tensor& weight, const OptionalTensor& bias,
                                      const OptionalTensor& output, const Tensor& phase,
                                      int64_t order);

inline void* data_of(const Tensor& t) { return t.defined() ? t.mutable_data_ptr() : nullptr; }

inline const void* data_if_any(const OptionalTensor& t) {
  return t.has_value() ? t->const_data_ptr() : nullptr;
}

inline OptionalTensor contiguous_if_any(const OptionalTensor& t) {
  return t.has_value() && t->defined() ? OptionalTensor(t->contiguous()) : std::nullopt;
}

// [..., O]
c10::SymDimVector output_shape(const Tensor& input, const Tensor& weight);
// What `phase` is stored as.
ScalarType phase_dtype(ScalarType dtype);
// Whether derivatives are made of the output, too, not of the phase alone.
inline bool reads_output(ScalarType dtype) { return dtype == at::kFloat; }

// [R, C], or for N layers [N, R, C], of a tensor [..., C].
Tensor rows_of(const Tensor& t, const Tensor& weight);

// a b, of the dtype of a: between the levels of torch.func autocast rounds products, even where its
// dispatch keys are excluded.
Tensor product_like(const Tensor& a, const Tensor& b);

// Gradients of input, weight and bias, as far as mask wants them, for one of input weight^T + bias.
// Made of ATen's ops, which have derivatives.
ThreeTensors gradients_of_sum(const Tensor& by_sum, const Tensor& input, const Tensor& weight,
                              std::array<bool, 3> mask);

// The phase only where it is to be saved.
OutputAndPhase sine_linear_with(const SineLinearBackend& backend, const Tensor& input,
                                const Tensor& weight, const OptionalTensor& bias, double omega,
                                bool save);

Tensor sine_linear_slope_with(const SineLinearSlopes& backend, const Tensor& grad,
                              const OptionalTensor& factor, const Tensor& input,
                              const Tensor& weight, const OptionalTensor& bias,
                              const OptionalTensor& output, const Tensor& phase, double omega,
                              int64_t order);

FourTensors sine_linear_backward_with(const SineLinearSlopes& backend, const Tensor& grad,
                                      const Tensor& input, const Tensor& weight,
                                      const OptionalTensor& bias, const OptionalTensor& output,
                                      const Tensor& phase, double omega, std::array<bool, 4> mask);

// The sums, undefined if not wanted.
Tensor sine_linear_backward_inplace_with(const SineLinearSlopes& backend, const Tensor& grad,
                                         const Tensor& input, const Tensor& weight,
                                         const OptionalTensor& bias, const OptionalTensor& output,
                                         const Tensor& phase, double omega, bool sums);

ThreeTensors sine_linear_slope_backward_with(const SineLinearSlopes& backend, const Tensor& v,
                                             const Tensor& grad, const OptionalTensor& factor,
                                             const Tensor& input, const Tensor& weight,
                                             const OptionalTensor& bias,
                                             const OptionalTensor& output, const Tensor& phase,
                                             double omega, int64_t order, std::array<bool, 3> mask);

template <const SineLinearBackend& backend>
Tensor sine_linear_kernel(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                          double omega) {
  return std::get<0>(sine_linear_with(backend, input, weight, bias, omega, /*save=*/false));
}

template <const SineLinearBackend& backend>
OutputAndPhase sine_linear_forward_kernel(const Tensor& input, const Tensor& weight,
                                          const OptionalTensor& bias, double omega) {
  return sine_linear_with(backend, input, weight, bias, omega, /*save=*/true);
}

template <const SineLinearSlopes& backend>
Tensor sine_linear_slope_kernel(const Tensor& grad, const OptionalTensor& factor,
                                const Tensor& input, const Tensor& weight,
                                const OptionalTensor& bias, const OptionalTensor& output,
                                const Tensor& phase, double omega, int64_t order) {
  return sine_linear_slope_with(backend, grad, factor, input, weight, bias, output, phase, omega,
                                order);
}

template <const SineLinearSlopes& backend>
FourTensors sine_linear_backward_kernel(const Tensor& grad, const Tensor& input,
                                        const Tensor& weight, const OptionalTensor& bias,
                                        const OptionalTensor& output, const Tensor& phase,
                                        double omega, std::array<bool, 4> mask) {
  return sine_linear_backward_with(backend, grad, input, weight, bias, output, phase, omega, mask);
}

template <const SineLinearSlopes& backend>
Tensor sine_linear_backward_inplace_kernel(Tensor& grad, const Tensor& input, const Tensor& weight,
                                           const OptionalTensor& bias, const OptionalTensor& output,
                                           const Tensor& phase, double omega, bool sums) {
  return sine_linear_backward_inplace_with(backend, grad, input, weight, bias, output, phase, omega,
                                           sums);
}

template <const SineLinearSlopes& backend>
ThreeTensors sine_linear_slope_backward_kernel(const Tensor& v, const Tensor& grad,
                                               const OptionalTensor& factor, const Tensor& input,
                                               const Tensor& weight, const OptionalTensor& bias,
                                               const OptionalTensor& output, const Tensor& phase,
                                               double omega, int64_t order,
                                               std::array<bool, 3> mask) {
  return sine_linear_slope_backward_with(backend, v, grad, factor, input, weight, bias, output,
                                         phase, omega, order, mask);
}

template <const SineLinearSlopes& backend>
void register_sine_linear_slopes(torch::Library& m) {
  m.impl("sine_linear_slope", sine_linear_slope_kernel<backend>);
  m.impl("sine_linear_backward", sine_linear_backward_kernel<backend>);
  m.impl("sine_linear_backward_", sine_linear_backward_inplace_kernel<backend>);
  m.impl("sine_linear_slope_backward", sine_linear_slope_backward_kernel<backend>);
}

template <const SineLinearBackend& backend>
void register_sine_linear(torch::Library& m) {
  m.impl("sine_linear", sine_linear_kernel<backend>);
  m.impl("sine_linear_forward", sine_linear_forward_kernel<backend>);
}

}  // namespace treadle
