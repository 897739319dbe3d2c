// Jets through the sine layer on the CPU. All parts of a block of elements are computed one after
// another, in loops that the compiler vectorises. Twins: kernels/sine_linear/jet_forward.cu,
// jet_backward.cu.
#include "kernels/sine_linear/cpu/jet.h"

#include <algorithm>

#include "kernels/elementwise/cpu/sine.h"
#include "kernels/math/sine_jet.h"

namespace treadle::cpu::TREADLE_ISA {
namespace {

template <class T>
void load_block(const void* data, int64_t begin, acc_t<T>* buffer, int64_t n) {
  load_contiguous<T, acc_t<T>>(static_cast<const char*>(data) + begin * int64_t{sizeof(T)}, buffer,
                               n);
}

template <class T>
void store_block(void* data, int64_t begin, const acc_t<T>* buffer, int64_t n) {
  store_contiguous<T, acc_t<T>>(static_cast<char*>(data) + begin * int64_t{sizeof(T)}, buffer, n);
}

// The sines of a block and their first three derivatives.
template <class T>
struct Block {
  using acc = acc_t<T>;
  using Layer = math::SineLinear<T>;
  alignas(64) acc sine[kBlock], first[kBlock], second[kBlock], third[kBlock];

  void slopes(double omega_given, int64_t n, const acc* s, const acc* c) {
    const acc omega = static_cast<acc>(omega_given);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      const math::SineSlopes<acc> slopes(omega, s[i], c[i]);
      first[i] = slopes.first;
      second[i] = slopes.second;
      third[i] = slopes.third;
    }
  }

  // Forward, from u = omega z; `kept` may be null.
  void from_argument(double omega, int64_t n, const acc* u, typename Layer::phase_t* kept) {
    alignas(64) acc cosine[kBlock];
    if constexpr (std::is_same_v<T, double>) {
      compute_wave<Wave::kSine, T>(sine, n, u);
      compute_wave<Wave::kCosine, T>(cosine, n, u);
      if (kept != nullptr) std::copy_n(u, n, kept);
    } else {
      alignas(64) typename Layer::Phase phase[kBlock];
      if (any_beyond(u, n, math::kNearPhase<T>)) {
        waves<true>(n, u, phase, cosine);
      } else {
        waves<false>(n, u, phase, cosine);
      }
      if (kept != nullptr) std::copy_n(phase, n, kept);
    }
    slopes(omega, n, sine, cosine);
  }

  // Backward, from the saved values. Only float reads `output`.
  void from_kept(double omega, int64_t n, const void* output, const void* phases, int64_t begin) {
    alignas(64) acc cosine[kBlock];
    const auto* phase = static_cast<const typename Layer::phase_t*>(phases) + begin;
    if constexpr (std::is_same_v<T, double>) {
      compute_wave<Wave::kSine, T>(sine, n, phase);
      compute_wave<Wave::kCosine, T>(cosine, n, phase);
    } else {
      if constexpr (Layer::template kReadsOutput<true>) load_block<T>(output, begin, sine, n);
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) {
        const acc y = Layer::template kReadsOutput<true> ? sine[i] : acc(0);
        sine[i] = Layer::template wave<false, false>(y, phase[i]);
        cosine[i] = math::jet_cosine<T, false>(y, phase[i]);
      }
    }
    slopes(omega, n, sine, cosine);
  }

 private:
  template <bool kFar>
  void waves(int64_t n, const acc* u, typename Layer::Phase* phase, acc* cosine) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      const auto result = Layer::template forward<kFar>(u[i]);
      sine[i] = result.y;
      phase[i] = result.phase;
      cosine[i] = math::jet_cosine<T, false>(result.y, result.phase);
    }
  }
};

// u = omega (z + b), in place.
template <class T>
void add_bias(const SineJetForward& args, int64_t begin, int64_t n, acc_t<T>* z) {
  using acc = acc_t<T>;
  const acc omega = static_cast<acc>(args.omega);
  alignas(64) acc bias[kBlock];
  for (int64_t done = 0; done < n;) {
    const int64_t column = (begin + done) % args.columns;
    const int64_t size = std::min(args.columns - column, n - done);
    acc* at = z + done;
    if (args.bias == nullptr) {
      std::fill_n(bias, size, acc(-0.0));
    } else {
      load_block<T>(args.bias, column, bias, size);
    }
#pragma GCC ivdep
    for (int64_t i = 0; i < size; ++i) at[i] = omega * (at[i] + bias[i]);
    done += size;
  }
}

template <class T>
void forward_block(const SineJetForward& args, int64_t begin, int64_t n) {
  using acc = acc_t<T>;
  const bool laplacian = args.parts.second == JetSecond::kLaplacian;
  const bool diagonal = args.parts.second == JetSecond::kDiagonal;
  const int64_t d = args.parts.coordinates;
  alignas(64) acc z[kBlock], second[kBlock], square[kBlock];
  Block<T> at;
  load_block<acc>(args.value, begin, z, n);
  add_bias<T>(args, begin, n, z);
  using phase_t = typename math::SineLinear<T>::phase_t;
  auto* kept = static_cast<phase_t*>(args.phase);
  at.from_argument(args.omega, n, z, kept == nullptr ? nullptr : kept + begin);
  store_block<T>(args.output, begin, at.sine, n);

  std::fill_n(square, n, acc(0));
  const auto store_second = [&](int64_t part) {
    load_block<acc>(args.rest, begin + (part - 1) * args.rest_stride, second, n);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) second[i] = at.first[i] * second[i] + at.second[i] * square[i];
    store_block<T>(args.output, begin + part * args.part_stride, second, n);
  };
  for (int64_t k = 1; k <= d; ++k) {
    load_block<acc>(args.rest, begin + (k - 1) * args.rest_stride, z, n);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      square[i] = (diagonal ? acc(0) : square[i]) + z[i] * z[i];
      z[i] *= at.first[i];
    }
    store_block<T>(args.output, begin + k * args.part_stride, z, n);
    if (diagonal) store_second(k + d);
  }
  if (laplacian) store_second(d + 1);
}

template <class T>
void backward_block(const SineJetBackward& args, int64_t begin, int64_t n) {
  using acc = acc_t<T>;
  const bool laplacian = args.parts.second == JetSecond::kLaplacian;
  const bool diagonal = args.parts.second == JetSecond::kDiagonal;
  const int64_t d = args.parts.coordinates, stride = args.rows * args.columns;
  // of_value is the gradient of z's value. square is the square of z's derivative with respect
  // to coordinate k or, for a Laplacian, the sum of these squares. twice is 2 s'' times the
  // gradient of the second derivative, where s is the sine.
  alignas(64) acc of_value[kBlock], grad[kBlock], z[kBlock], square[kBlock], twice[kBlock],
      grad_second[kBlock], second[kBlock];
  Block<T> at;
  at.from_kept(args.omega, n, args.output, args.phase, begin);
  load_block<T>(args.grad, begin, of_value, n);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    of_value[i] *= at.first[i];
    twice[i] = square[i] = 0;
  }
  // Adds the contribution of a second derivative to of_value, except for the term with squares, and
  // stores the gradient of the second derivative itself.
  const auto take_second = [&](int64_t part) {
    load_block<T>(args.grad, begin + part * stride, grad_second, n);
    load_block<T>(args.grad_z, begin + part * stride, second, n);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      of_value[i] += grad_second[i] * (at.second[i] * second[i]);
      twice[i] = 2 * at.second[i] * grad_second[i];
      second[i] = at.first[i] * grad_second[i];
    }
    store_block<T>(args.grad_z, begin + part * stride, second, n);
  };
  const auto add_squares = [&] {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) of_value[i] += grad_second[i] * (at.third[i] * square[i]);
  };
  if (laplacian) take_second(d + 1);
  for (int64_t k = 1; k <= d; ++k) {
    if (diagonal) take_second(k + d);
    load_block<T>(args.output, begin + k * stride, z, n);
    load_block<T>(args.grad, begin + k * stride, grad, n);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      z[i] /= at.first[i];
      square[i] = (diagonal ? acc(0) : square[i]) + z[i] * z[i];
      of_value[i] += grad[i] * (at.second[i] * z[i]);
      grad[i] = at.first[i] * grad[i] + (laplacian || diagonal ? twice[i] * z[i] : acc(0));
    }
    store_block<T>(args.grad_z, begin + k * stride, grad, n);
    if (diagonal) add_squares();
  }
  if (laplacian) add_squares();
  store_block<T>(args.grad_z, begin, of_value, n);
}

}  // namespace

void sine_jet_forward(const SineJetForward& args, int64_t begin, int64_t end) {
  visit_floating(args.dtype, [&](auto type) {
    for (; begin < end; begin += kBlock) {
      forward_block<typename decltype(type)::type>(args, begin, std::min(kBlock, end - begin));
    }
  });
}

void sine_jet_backward(const SineJetBackward& args, int64_t begin, int64_t end) {
  visit_floating(args.dtype, [&](auto type) {
    for (; begin < end; begin += kBlock) {
      backward_block<typename decltype(type)::type>(args, begin, std::min(kBlock, end - begin));
    }
  });
}

}  // namespace treadle::cpu::TREADLE_ISA
