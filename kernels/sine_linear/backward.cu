// sine_linear_slope and its vjp on CUDA: one thread per kWidth consecutive elements of the flat
// tensors.
// Formula: kernels/math/sine_linear.h. Twin: kernels/sine_linear/cpu/sine_linear.cpp.
#include "kernels/sine_linear/common.cuh"
#include "kernels/sine_linear/launchers.h"

namespace treadle {
namespace {

template <class T, int kWidth>
__device__ __forceinline__ void store_product(void* data, int64_t element,
                                              const acc_t<T> (&a)[kWidth], acc_t<T> scale,
                                              const acc_t<T> (&wave)[kWidth]) {
  acc_t<T> product[kWidth];
#pragma unroll
  for (int e = 0; e < kWidth; ++e) product[e] = a[e] * (scale * wave[e]);
  store_rounded<T>(data, element, product);
}

// a *= data[element ...], unless data is null.
template <class T, int kWidth>
__device__ __forceinline__ void multiply_by(const void* data, int64_t element,
                                            acc_t<T> (&a)[kWidth]) {
  if (data == nullptr) return;
  acc_t<T> b[kWidth];
  widen(load_at<T, kWidth>(data, element), b);
#pragma unroll
  for (int e = 0; e < kWidth; ++e) a[e] *= b[e];
}

template <bool kCosine>
struct Slope {
  using Args = SineLinearSlope;

  template <class T, int kWidth>
  static __device__ __forceinline__ void run(const Args& args, int64_t element) {
    acc_t<T> grad[kWidth];
    widen(load_at<T, kWidth>(args.grad, element), grad);
    multiply_by<T>(args.factor, element, grad);
    const Waves<T, kWidth, !kCosine, kCosine> waves({args.output, args.phase, element});
    store_product<T>(args.result, element, grad, static_cast<acc_t<T>>(args.scale),
                     kCosine ? waves.cosine : waves.sine);
  }
};

template <bool kCosine>
struct SlopeBackward {
  using Args = SineLinearSlopeBackward;

  template <class T, int kWidth>
  static __device__ __forceinline__ void run(const Args& args, int64_t element) {
    using acc = acc_t<T>;
    const Waves<T, kWidth, true, true> waves({args.output, args.phase, element});
    const auto& wave = kCosine ? waves.cosine : waves.sine;
    const auto& next = kCosine ? waves.sine : waves.cosine;
    const acc scale = static_cast<acc>(args.scale);
    acc v[kWidth], product[kWidth];
    widen(load_at<T, kWidth>(args.v, element), v);
    if (args.grad_grad != nullptr) {
#pragma unroll
      for (int e = 0; e < kWidth; ++e) product[e] = v[e];
      multiply_by<T>(args.factor, element, product);
      store_product<T>(args.grad_grad, element, product, scale, wave);
    }
    multiply_by<T>(args.grad, element, v);
    if (args.grad_factor != nullptr) store_product<T>(args.grad_factor, element, v, scale, wave);
    if (args.grad_z == nullptr) return;
    multiply_by<T>(args.factor, element, v);
    store_product<T>(args.grad_z, element, v, static_cast<acc>(args.next_scale), next);
  }
};

template <class T, int kWidth, class Kind>
__global__ void __launch_bounds__(kBlockSize)
    sine_linear_slopes(const __grid_constant__ typename Kind::Args args) {
  begin_kernel();
  const int64_t first = (int64_t{blockIdx.x} * kBlockSize + threadIdx.x) * kWidth;
  if (first + kWidth <= args.numel) return Kind::template run<T, kWidth>(args, first);
  for (int64_t at = first; at < args.numel; ++at) Kind::template run<T, 1>(args, at);
}

template <class T, class Kind>
cudaError_t launch_slopes(const typename Kind::Args& args, bool all_aligned, cudaStream_t stream) {
  constexpr int kWidest = kWide<T>;
  if (all_aligned && args.numel >= kWideFrom) {
    return launch(sine_linear_slopes<T, kWidest, Kind>, sine_linear_shape(args.numel, kWidest),
                  stream, args);
  }
  return launch(sine_linear_slopes<T, 1, Kind>, sine_linear_shape(args.numel, 1), stream, args);
}

}  // namespace

cudaError_t launch_sine_linear_slope(const SineLinearSlope& args, cudaStream_t stream) {
  const bool all = aligned(args);
  return visit_floating(args.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    return args.cosine ? launch_slopes<T, Slope<true>>(args, all, stream)
                       : launch_slopes<T, Slope<false>>(args, all, stream);
  });
}

cudaError_t launch_sine_linear_slope_backward(const SineLinearSlopeBackward& args,
                                              cudaStream_t stream) {
  const bool all = aligned(args.v) && aligned(args.grad) && aligned(args.factor) &&
                   aligned(args.output) && aligned(args.phase) && aligned(args.grad_grad) &&
                   aligned(args.grad_factor) && aligned(args.grad_z);
  return visit_floating(args.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    return args.cosine ? launch_slopes<T, SlopeBackward<true>>(args, all, stream)
                       : launch_slopes<T, SlopeBackward<false>>(args, all, stream);
  });
}

}  // namespace treadle
