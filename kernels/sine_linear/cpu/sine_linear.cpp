// The sine layer's pointwise kernels on the CPU, in blocks that the compiler vectorises. Twins:
// kernels/sine_linear/forward.cu, backward.cu.
#include "kernels/sine_linear/cpu/sine_linear.h"

#include <algorithm>
#include <vector>

#include "kernels/elementwise/cpu/sine.h"
#include "kernels/math/sine_linear.h"

namespace treadle::cpu::TREADLE_ISA {
namespace {

template <class T, class acc>
void load_block(const void* data, int64_t begin, acc* buffer, int64_t n) {
  load_contiguous<T, acc>(static_cast<const char*>(data) + begin * int64_t{sizeof(T)}, buffer, n);
}

template <class T, class acc>
void store_block(void* data, int64_t begin, const acc* buffer, int64_t n) {
  store_contiguous<T, acc>(static_cast<char*>(data) + begin * int64_t{sizeof(T)}, buffer, n);
}

// u = omega (x W^T + b), for elements of the flat result.
template <class T>
class Arguments {
 public:
  using acc = acc_t<T>;

  explicit Arguments(const SineLinearForward& args)
      : args_(args), omega_(static_cast<acc>(args.omega)), bias_(args.columns, acc(-0.0)) {
    if (args.bias != nullptr) load_block<T>(args.bias, 0, bias_.data(), args.columns);
    if (args.product != nullptr) return;
    // Transposed to [I, O], because adjacent columns are computed together.
    std::vector<acc> weight(args.columns * args.inputs);
    load_block<T>(args.weight, 0, weight.data(), args.columns * args.inputs);
    weight_.resize(weight.size());
    for (int64_t i = 0; i < args.inputs; ++i) {
      for (int64_t c = 0; c < args.columns; ++c) {
        weight_[i * args.columns + c] = weight[c * args.inputs + i];
      }
    }
  }

  void block(int64_t begin, int64_t n, acc* u) const {
    if (args_.product != nullptr) load_block<acc>(args_.product, begin, u, n);
    for (int64_t done = 0; done < n;) {
      const int64_t row = (begin + done) / args_.columns, column = (begin + done) % args_.columns;
      const int64_t size = std::min(args_.columns - column, n - done);
      if (args_.product == nullptr) multiply(row, column, size, u + done);
      const acc* bias = bias_.data() + column;
      acc* at = u + done;
#pragma GCC ivdep
      for (int64_t i = 0; i < size; ++i) at[i] = omega_ * (at[i] + bias[i]);
      done += size;
    }
  }

 private:
  const SineLinearForward& args_;
  acc omega_;
  std::vector<acc> bias_, weight_;

  void multiply(int64_t row, int64_t column, int64_t size, acc* z) const {
    const T* x = static_cast<const T*>(args_.input) + row * args_.row_stride;
    std::fill_n(z, size, acc(0));
    for (int64_t i = 0; i < args_.inputs; ++i) {
      const acc value =
          from_stored<T, acc>(read<T>(reinterpret_cast<const char*>(x + i * args_.column_stride)));
      const acc* weight = weight_.data() + i * args_.columns + column;
#pragma GCC ivdep
      for (int64_t c = 0; c < size; ++c) z[c] = value * weight[c] + z[c];
    }
  }
};

template <class T, bool kFar>
void compute(const acc_t<T>* u, int64_t n, acc_t<T>* y,
             typename math::SineLinear<T>::Phase* phase) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const auto result = math::SineLinear<T>::template forward<kFar>(u[i]);
    y[i] = result.y;
    phase[i] = result.phase;
  }
}

template <class T>
void forward(const SineLinearForward& args, int64_t begin, int64_t end) {
  using acc = acc_t<T>;
  using Layer = math::SineLinear<T>;
  const Arguments<T> arguments(args);
  alignas(64) acc u[kBlock], y[kBlock];
  alignas(64) typename Layer::Phase phase[kBlock];
  for (; begin < end; begin += kBlock) {
    const int64_t n = std::min(kBlock, end - begin);
    arguments.block(begin, n, u);
    if constexpr (std::is_same_v<T, double>) {
      compute_wave<Wave::kSine, T>(y, n, u);
      std::copy_n(u, n, phase);
    } else if (any_beyond(u, n, math::kNearPhase<T>)) {
      compute<T, true>(u, n, y, phase);
    } else {
      compute<T, false>(u, n, y, phase);
    }
    store_block<T>(args.output, begin, y, n);
    if (args.phase == nullptr) continue;
    auto* kept = static_cast<typename Layer::phase_t*>(args.phase) + begin;
    for (int64_t i = 0; i < n; ++i) kept[i] = static_cast<typename Layer::phase_t>(phase[i]);
  }
}

// The sines or cosines of n elements, from `begin` on.
template <class T, bool kCosine>
void waves(const void* output, const void* phases, int64_t begin, int64_t n, acc_t<T>* wave) {
  using Layer = math::SineLinear<T>;
  const auto* phase = static_cast<const typename Layer::phase_t*>(phases) + begin;
  if constexpr (std::is_same_v<T, double>) {
    compute_wave<kCosine ? Wave::kCosine : Wave::kSine, T>(wave, n, phase);
  } else if constexpr (Layer::template kReadsOutput<kCosine>) {
    load_block<T>(output, begin, wave, n);
    if constexpr (kCosine) {
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) {
        wave[i] = Layer::template wave<true, false>(wave[i], phase[i]);
      }
    }
  } else {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) wave[i] = Layer::template wave<kCosine, false>(0, phase[i]);
  }
}

// a *= data[begin ...], unless data is null.
template <class T>
void multiply_by(const void* data, int64_t begin, int64_t n, acc_t<T>* a) {
  if (data == nullptr) return;
  alignas(64) acc_t<T> b[kBlock];
  load_block<T>(data, begin, b, n);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) a[i] *= b[i];
}

template <class T>
void store_product(void* data, int64_t begin, int64_t n, const acc_t<T>* a, double by,
                   const acc_t<T>* wave) {
  const acc_t<T> scale = static_cast<acc_t<T>>(by);
  alignas(64) acc_t<T> product[kBlock];
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) product[i] = a[i] * (scale * wave[i]);
  store_block<T>(data, begin, product, n);
}

template <class T, bool kCosine>
void slope(const SineLinearSlope& args, int64_t begin, int64_t end) {
  alignas(64) acc_t<T> wave[kBlock], grad[kBlock];
  for (; begin < end; begin += kBlock) {
    const int64_t n = std::min(kBlock, end - begin);
    waves<T, kCosine>(args.output, args.phase, begin, n, wave);
    load_block<T>(args.grad, begin, grad, n);
    multiply_by<T>(args.factor, begin, n, grad);
    store_product<T>(args.result, begin, n, grad, args.scale, wave);
  }
}

template <class T, bool kCosine>
void slope_backward(const SineLinearSlopeBackward& args, int64_t begin, int64_t end) {
  alignas(64) acc_t<T> wave[kBlock], next[kBlock], v[kBlock], product[kBlock];
  for (; begin < end; begin += kBlock) {
    const int64_t n = std::min(kBlock, end - begin);
    waves<T, kCosine>(args.output, args.phase, begin, n, wave);
    load_block<T>(args.v, begin, v, n);
    if (args.grad_grad != nullptr) {
      std::copy_n(v, n, product);
      multiply_by<T>(args.factor, begin, n, product);
      store_product<T>(args.grad_grad, begin, n, product, args.scale, wave);
    }
    multiply_by<T>(args.grad, begin, n, v);
    if (args.grad_factor != nullptr) {
      store_product<T>(args.grad_factor, begin, n, v, args.scale, wave);
    }
    if (args.grad_z == nullptr) continue;
    waves<T, !kCosine>(args.output, args.phase, begin, n, next);
    multiply_by<T>(args.factor, begin, n, v);
    store_product<T>(args.grad_z, begin, n, v, args.next_scale, next);
  }
}

}  // namespace

void sine_linear_forward(const SineLinearForward& args, int64_t begin, int64_t end) {
  visit_floating(args.dtype,
                 [&](auto type) { forward<typename decltype(type)::type>(args, begin, end); });
}

void sine_linear_slope(const SineLinearSlope& args, int64_t begin, int64_t end) {
  visit_floating(args.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    args.cosine ? slope<T, true>(args, begin, end) : slope<T, false>(args, begin, end);
  });
}

void sine_linear_slope_backward(const SineLinearSlopeBackward& args, int64_t begin, int64_t end) {
  visit_floating(args.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    args.cosine ? slope_backward<T, true>(args, begin, end)
                : slope_backward<T, false>(args, begin, end);
  });
}

}  // namespace treadle::cpu::TREADLE_ISA
